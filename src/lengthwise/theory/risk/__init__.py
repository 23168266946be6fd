"""Exact, estimated and Bayes risks of sparse functional attention on planted distributions."""
