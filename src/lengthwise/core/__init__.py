"""Errors, randomness, intervals, devices and safe files: what every room uses."""
