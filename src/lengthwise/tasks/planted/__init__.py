"""Planted distributions (paper, Section 3): tasks with exactly known support and probabilities."""
