"""Checks of the probabilities, shapes and sizes of planted distributions; errors name the invalid entry."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from lengthwise.core.errors import SettingError

MAX_SHAPES = 200_000
# Maximum number of tuples of k tokens in a table.
MAX_TUPLES = 1 << 22
SUM_TOLERANCE = 1e-9


def check_distribution(values: Sequence[float], entries: Sequence[str], description: str) -> None:
    """Raise ``SettingError`` unless the values are a distribution; ``entries`` has the name of each value."""
    for value, entry in zip(values, entries, strict=True):
        if not 0 <= value <= 1 + SUM_TOLERANCE:
            raise SettingError(f"{entry} has probability {value}; use a probability between 0 and 1")
    total = float(np.sum(values))
    if total == 0:
        raise SettingError(f"{description} are all 0 or missing; use at least one positive probability")
    if abs(total - 1) > SUM_TOLERANCE:
        raise SettingError(f"{description} have the sum {total:.6g} instead of 1; divide them by {total:.6g}")


def check_shapes(shapes: Sequence[Sequence[int]], max_span: int | None) -> None:
    """Raise ``SettingError`` unless the shapes are unique, valid and no wider than ``max_span`` tokens."""
    if not shapes or not shapes[0]:
        raise SettingError("the placement has no shape; use at least one shape such as (0, 1)")
    k = len(shapes[0])
    for shape in shapes:
        if shape[0] != 0 or any(next_distance <= distance for distance, next_distance in pairwise(shape)):
            raise SettingError(f"invalid shape {tuple(shape)}; use distances from the first token such as (0, 1, 4)")
        if len(shape) != k:
            raise SettingError(f"shape {tuple(shape)} has {len(shape)} tokens; use {k}, as in the first shape")
        if max_span is not None and shape[-1] + 1 > max_span:
            raise SettingError(
                f"shape {tuple(shape)} spans {shape[-1] + 1} tokens but widest is {max_span}; "
                f"set widest to at least {shape[-1] + 1}"
            )
    if len({tuple(shape) for shape in shapes}) < len(shapes):
        raise SettingError(f"shapes {shapes} contain a shape twice; use each shape once with its total weight")


def check_num_planted(k: int) -> None:
    """Raise ``SettingError`` unless at least one token is planted."""
    if k < 1:
        raise SettingError(f"num_planted {k} is too small; use at least 1")


def check_num_shapes(num_shapes: int, description: str) -> None:
    """Raise ``SettingError`` if there are too many shapes to enumerate."""
    if num_shapes > MAX_SHAPES:
        raise SettingError(
            f"{description} has {num_shapes:,} shapes, more than {MAX_SHAPES:,}; "
            "use a smaller length, span or number of planted tokens"
        )


def check_num_tuples(num_tuples: int, description: str) -> None:
    """Raise ``SettingError`` if a table has too many tuples."""
    if num_tuples > MAX_TUPLES:
        raise SettingError(
            f"{description} give {num_tuples:,} tuples, more than {MAX_TUPLES:,}; use fewer tokens or a smaller k"
        )
