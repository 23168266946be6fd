"""Sparse functional attention (Golowich et al. 2025, definition 3.3) with exact sums over all sets of tokens."""
