"""Sparse functional attention (Golowich et al. 2025, definition 3.3), summed exactly over all sets of tokens."""
