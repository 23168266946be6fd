"""Distributions on which generalization fails when one condition of the theory is dropped."""
