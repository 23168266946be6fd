"""Influence of far tokens on the predictions of language models."""
