"""Theory of length generalization (Golowich et al. 2025): sparse attention, exact risks, bounds, counterexamples."""
