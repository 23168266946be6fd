"""What may be planted: probabilities that make a distribution, shapes that are shapes; refusals name the entry."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from lengthwise.core.errors import SettingError

# More sets than this are not listed one by one.
MOST_SHAPES = 200_000
# A table over all tuples of k tokens has no more rows than this.
MOST_CODES = 1 << 22
# How far probabilities may be from adding up to one.
ROUNDING = 1e-9


def check_distribution(values: Sequence[float], entries: Sequence[str], what: str) -> None:
    """Refuse what is no probability distribution, and name the entry; ``entries`` says what each value belongs to."""
    for value, entry in zip(values, entries, strict=True):
        if not 0 <= value <= 1 + ROUNDING:
            raise SettingError(f"{entry} has probability {value}; probabilities lie between 0 and 1")
    total = float(np.sum(values))
    if total == 0:
        raise SettingError(f"{what} are 0 or missing, so nothing can be drawn; give at least one a positive one")
    if abs(total - 1) > ROUNDING:
        raise SettingError(f"{what} add up to {total:.6g}, not to 1; divide them by {total:.6g}")


def check_shapes(shapes: Sequence[Sequence[int]], widest: int | None) -> None:
    """Refuse what are no distances from a first token, or reach beyond the span that was promised."""
    if not shapes or not shapes[0]:
        raise SettingError("a placement without a shape plants nothing; give at least one shape such as (0, 1)")
    for shape in shapes:
        if shape[0] != 0 or any(later <= earlier for earlier, later in pairwise(shape)):
            raise SettingError(f"shape {tuple(shape)} is none; write distances from the first token such as (0, 1, 4)")
        if len(shape) != len(shapes[0]):
            raise SettingError(
                f"shape {tuple(shape)} has {len(shape)} tokens and the first has {len(shapes[0])}; give all the same k"
            )
        if widest is not None and shape[-1] + 1 > widest:
            raise SettingError(
                f"shape {tuple(shape)} reaches over {shape[-1] + 1} tokens, beyond the span of {widest}; "
                "leave it out or promise a larger span"
            )
    if len({tuple(shape) for shape in shapes}) < len(shapes):
        raise SettingError(f"shapes {shapes} name one twice; give each once with its whole weight")


def check_num_planted(k: int) -> None:
    """Refuse to plant nothing."""
    if k < 1:
        raise SettingError(f"{k} planted tokens predict nothing; plant at least 1")


def check_listed(number: int, what: str) -> None:
    """Refuse to list too many shapes."""
    if number > MOST_SHAPES:
        raise SettingError(
            f"{what} has {number} shapes, more than the {MOST_SHAPES} that can be listed; use a shorter one, or samples"
        )


def check_coded(number: int, what: str) -> None:
    """Refuse a table with a row for each of too many tuples."""
    if number > MOST_CODES:
        raise SettingError(
            f"{what} make {number:,} tuples, more than the {MOST_CODES:,} a table holds; use fewer of either"
        )
