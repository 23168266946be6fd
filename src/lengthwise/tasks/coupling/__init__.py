"""Couplings found from examples: which earlier tokens each answer needs, and the position IDs that follow."""
