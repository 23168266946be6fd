"""Errors, random streams, intervals, devices, checkpoints and atomic file writes, shared by all packages."""
