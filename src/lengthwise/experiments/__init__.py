"""Experiments, runs, comparisons, recipes and reproductions of published claims."""
