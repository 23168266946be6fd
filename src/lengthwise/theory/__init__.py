"""The theory as code: planted correlations, sparse functional attention, exact risks, bounds, counterexamples."""
