"""Report: one self-contained page of runs, comparisons, sweeps, claims and influence studies."""
