"""Planted distributions (paper, Section 3): tasks whose support and law are known exactly."""
