"""Forecasts of accuracy at longer lengths, from forward passes with as few tokens as in training."""
