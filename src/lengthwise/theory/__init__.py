"""Theory of length generalization (Golowich et al. 2025): attention, exact risks, bounds and counterexamples."""
