"""Sparse functional attention (paper, Section 3), computed exactly."""
