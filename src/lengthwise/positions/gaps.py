"""Skip-wise gaps (PoSE, Zhu et al. 2024): groups keep their order and their ties, random gaps open between them."""

import numpy as np
from jaxtyping import Int

from lengthwise.errors import SettingError
from lengthwise.positions.scheme import room_above


def check_max_gaps(max_gaps: int) -> None:
    """Refuse a negative number of gaps."""
    if max_gaps < 0:
        raise SettingError(f"max_gaps {max_gaps} is negative; use 0 for no gaps")


def open_gaps(
    groups: Int[np.ndarray, "level batch seq"], rng: np.random.Generator, *, num_position_ids: int, max_gaps: int
) -> Int[np.ndarray, "level batch seq"]:
    """Move the groups of each sequence apart by 0 to ``max_gaps`` random gaps, all IDs below ``num_position_ids``.

    Tokens of one group move together, on every level alike. The gaps share a random part of the room that is left,
    each of them at random, so that distances of every size up to the whole range occur; the rest of the room is a
    random shift of the whole sequence.
    """
    room = room_above(groups, num_position_ids)
    levels, size, _ = groups.shape
    draws = (levels, size, max_gaps)
    largest = groups.max(axis=-1)[..., None]
    wanted = np.arange(max_gaps) < rng.integers(0, max_gaps + 1, size=(levels, size, 1))
    # Shares of the room, scaled down where they add up to more than all of it; unwanted gaps have none.
    sizes = np.where(wanted, rng.random(draws), 0.0)
    sizes = sizes / np.maximum(sizes.sum(axis=-1, keepdims=True), 1.0) * room
    starts = (rng.random(draws) * largest).astype(np.int64) + 1
    sizes = sizes.astype(np.int64)
    spread = groups.copy()
    for gap in range(max_gaps):
        spread += np.where(groups >= starts[..., gap : gap + 1], sizes[..., gap : gap + 1], 0)
    left = num_position_ids - 1 - spread.max(axis=-1, keepdims=True)
    return spread + (rng.random((levels, size, 1)) * (left + 1)).astype(np.int64)
