"""Skip-wise gaps (PoSE, Zhu et al. 2024): groups keep their order and their ties, random gaps open between them."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.positions.scheme import (
    Assignment,
    PositionScheme,
    check_num_position_ids,
    coupling_of,
    room_above,
    scored_everywhere,
)
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class GappedScheme(PositionScheme):
    """Abstract scheme that opens random gaps between groups of tokens in training (PoSE, Zhu et al. 2024).

    At evaluation the groups are the IDs, without gaps. ``max_gaps=0`` shifts each level as one block in training.
    """

    num_position_ids: int = 20_480
    max_gaps: int = 3

    def __post_init__(self) -> None:
        check_types(self)
        check_num_position_ids(self.num_position_ids)
        if self.max_gaps < 0:
            raise SettingError(f"max_gaps {self.max_gaps} is negative; use 0 for no gaps")

    def groups(self, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
        """Return the IDs without gaps: by default the task's coupling on all its levels."""
        return coupling_of(examples)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return the groups as IDs, in training with gaps and a random shift."""
        groups = self.groups(examples)
        if training:
            groups = open_gaps(groups, rng, num_position_ids=self.num_position_ids, max_gaps=self.max_gaps)
        return scored_everywhere(examples, groups)


def open_gaps(
    groups: Int[np.ndarray, "level batch seq"], rng: np.random.Generator, *, num_position_ids: int, max_gaps: int
) -> Int[np.ndarray, "level batch seq"]:
    """Move the groups of each sequence apart by 0 to ``max_gaps`` random gaps, all IDs below ``num_position_ids``.

    Tokens of one group move together; each level has gaps and a shift of its own. Every gap asks for a uniform share
    of the room that is left; together they get no more than all of it, which many gaps mostly use up. What they leave
    is room for a random shift of the whole sequence. Distances of every size up to the whole range occur.
    """
    levels, size, _ = groups.shape
    room = np.array([room_above(level, num_position_ids) for level in groups])[:, None, None]
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
