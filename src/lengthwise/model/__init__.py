"""Decoder, attention, position heads and cached generation."""
