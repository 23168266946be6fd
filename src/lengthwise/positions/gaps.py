"""Skip-wise gaps (PoSE, Zhu et al. 2024) between groups of tokens; the groups stay together and in order."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.positions.scheme import Assignment, RangedScheme, largest_shift, require_coupling, score_all_answers
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class GappedScheme(RangedScheme):
    """Abstract scheme that opens random gaps between groups of tokens in training (PoSE, Zhu et al. 2024).

    At evaluation, the IDs are the groups, without gaps. With ``max_gaps=0``, training only shifts each level.
    """

    max_gaps: int = 3

    def __post_init__(self) -> None:
        RangedScheme.__post_init__(self)
        if self.max_gaps < 0:
            raise SettingError(f"max_gaps {self.max_gaps} is negative; use 0 for no gaps")

    def groups(self, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
        """Return the IDs without gaps, by default the task's coupling on all its levels."""
        return require_coupling(examples)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return the groups as IDs; training adds random gaps and a random shift."""
        groups = self.groups(examples)
        if training:
            groups = open_gaps(groups, rng, num_position_ids=self.num_position_ids, max_gaps=self.max_gaps)
        return score_all_answers(examples, groups)


def open_gaps(
    groups: Int[np.ndarray, "level batch seq"], rng: np.random.Generator, *, num_position_ids: int, max_gaps: int
) -> Int[np.ndarray, "level batch seq"]:
    """Insert 0 to ``max_gaps`` random gaps between the groups of each sequence, then shift it at random.

    Tokens of one group move together, and levels are independent. Each gap is a uniform share of the free IDs. Gaps
    whose sum exceeds the free IDs are scaled down, and the shift uses the remaining IDs. Therefore, distances of every
    size up to the whole range occur, and all IDs are below ``num_position_ids``.
    """
    levels, size, _ = groups.shape
    free = np.array([largest_shift(level, num_position_ids) for level in groups])[:, None, None]
    shape = (levels, size, max_gaps)
    largest = groups.max(axis=-1)[..., None]
    is_open = np.arange(max_gaps) < rng.integers(0, max_gaps + 1, size=(levels, size, 1))
    sizes = np.where(is_open, rng.random(shape), 0.0)
    sizes = sizes / np.maximum(sizes.sum(axis=-1, keepdims=True), 1.0) * free
    starts = (rng.random(shape) * largest).astype(np.int64) + 1
    sizes = sizes.astype(np.int64)
    ids = groups.copy()
    for gap in range(max_gaps):
        ids += np.where(groups >= starts[..., gap : gap + 1], sizes[..., gap : gap + 1], 0)
    max_shift = num_position_ids - 1 - ids.max(axis=-1, keepdims=True)
    return ids + (rng.random((levels, size, 1)) * (max_shift + 1)).astype(np.int64)
