"""Faster forms of computations; ``switch`` turns all of them off."""
