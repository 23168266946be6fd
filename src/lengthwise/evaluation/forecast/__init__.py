"""Forecasts of accuracy at longer lengths, from forward passes of training size."""
