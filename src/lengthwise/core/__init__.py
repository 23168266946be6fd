"""Errors, random streams, intervals, devices, checkpoints and atomic file writes, shared by all packages."""

import os

# Waiting threads sleep instead of spinning, so that processes on the same cores do not slow each other down. This has
# an effect only before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
