"""Paths as users give them."""

import os

# Public functions take a path as a text or as a Path, and make a Path of it first.
StrPath = str | os.PathLike[str]
