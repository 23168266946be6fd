"""Relation between the number of far tokens that a prediction needs and its change in longer contexts."""
