"""The decoder, its attention, its position heads and cached generation."""
