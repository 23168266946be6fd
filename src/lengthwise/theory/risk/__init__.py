"""Risks of sparse functional attention on planted laws: exact, sampled, limiting, and that of the Bayes predictor."""
