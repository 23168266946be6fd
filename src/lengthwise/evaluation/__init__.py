"""Evaluation of trained decoders: exact match, loss by context length, forecasts and diagnosis."""
