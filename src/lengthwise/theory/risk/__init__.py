"""Risks of sparse functional attention on planted laws: exact, sampled and limiting risks, and the Bayes risk."""
