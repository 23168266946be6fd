"""Evaluation of trained decoders: exact match, loss by context, forecasts and diagnosis."""
