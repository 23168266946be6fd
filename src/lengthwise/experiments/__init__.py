"""Experiments, runs, comparisons, recipes, and the reproduction of published claims."""
