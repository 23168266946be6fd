"""Bounds on the risk at longer lengths, each with its conditions."""
