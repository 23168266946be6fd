"""Checks of planted distributions: probabilities, shapes and sizes. Errors name the invalid entry."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from lengthwise.core.errors import SettingError

# Maximum number of shapes to enumerate.
MAX_SHAPES = 200_000
# Maximum number of entries of a table over all tuples of k tokens.
MAX_CODES = 1 << 22
# Tolerance of a sum of probabilities.
TOLERANCE = 1e-9


def check_distribution(values: Sequence[float], entries: Sequence[str], what: str) -> None:
    """Raise ``SettingError`` unless the values are a probability distribution; ``entries`` names each value."""
    for value, entry in zip(values, entries, strict=True):
        if not 0 <= value <= 1 + TOLERANCE:
            raise SettingError(f"{entry} has probability {value}; use a probability between 0 and 1")
    total = float(np.sum(values))
    if total == 0:
        raise SettingError(f"{what} are all 0 or missing; use at least one positive probability")
    if abs(total - 1) > TOLERANCE:
        raise SettingError(f"{what} have the sum {total:.6g} instead of 1; divide them by {total:.6g}")


def check_shapes(shapes: Sequence[Sequence[int]], max_span: int | None) -> None:
    """Raise ``SettingError`` unless the shapes are different tuples of distances from a first token within the span."""
    if not shapes or not shapes[0]:
        raise SettingError("the placement has no shape; use at least one shape such as (0, 1)")
    for shape in shapes:
        if shape[0] != 0 or any(later <= earlier for earlier, later in pairwise(shape)):
            raise SettingError(f"invalid shape {tuple(shape)}; use distances from the first token such as (0, 1, 4)")
        if len(shape) != len(shapes[0]):
            raise SettingError(f"shape {tuple(shape)} has {len(shape)} tokens; use {len(shapes[0])} as in the first")
        if max_span is not None and shape[-1] + 1 > max_span:
            raise SettingError(f"shape {tuple(shape)} spans {shape[-1] + 1} tokens; use at most {max_span} (widest)")
    if len({tuple(shape) for shape in shapes}) < len(shapes):
        raise SettingError(f"shapes {shapes} contain a shape twice; use each shape once with its total weight")


def check_num_planted(k: int) -> None:
    """Raise ``SettingError`` unless at least one token is planted."""
    if k < 1:
        raise SettingError(f"num_planted {k} is too small; use at least 1")


def check_listed(number: int, what: str) -> None:
    """Raise ``SettingError`` for too many shapes to enumerate."""
    if number > MAX_SHAPES:
        raise SettingError(f"{what} has {number} shapes, more than {MAX_SHAPES}; use a smaller value, or samples")


def check_coded(number: int, what: str) -> None:
    """Raise ``SettingError`` for a table over too many tuples."""
    if number > MAX_CODES:
        raise SettingError(f"{what} give {number:,} tuples, more than {MAX_CODES:,}; use fewer tokens or a smaller k")
