"""Random gaps between groups of tokens (PoSE, Zhu et al. 2024); tokens of a group keep equal IDs."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.positions.scheme import Assignment, BoundedIDScheme, largest_id_shift, make_assignment, require_coupling
from lengthwise.tasks.examples import Examples

# Each gap takes time and memory in every batch.
MAX_GAPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomGapScheme(BoundedIDScheme):
    """Abstract scheme that adds random gaps between groups of tokens in training (PoSE, Zhu et al. 2024).

    At evaluation, the IDs have no gaps. With ``max_gaps=0``, training only adds a random shift to each level.
    """

    max_gaps: int = 3

    def __post_init__(self) -> None:
        BoundedIDScheme.__post_init__(self)
        if not 0 <= self.max_gaps <= MAX_GAPS:
            raise SettingError(f"max_gaps {self.max_gaps} is out of range; use 0 (no gaps) to {MAX_GAPS}")

    def ids_before_gaps(self, examples: Examples) -> Int[np.ndarray, "level batch seq"]:
        """Return the IDs without gaps: by default, all levels of the task's coupling."""
        return require_coupling(examples)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return the group IDs; training adds random gaps and a random shift."""
        ids = self.ids_before_gaps(examples)
        if training:
            ids = insert_gaps(ids, rng, num_position_ids=self.num_position_ids, max_gaps=self.max_gaps)
        return make_assignment(examples, ids)


def insert_gaps(
    group_ids: Int[np.ndarray, "level batch seq"], rng: np.random.Generator, *, num_position_ids: int, max_gaps: int
) -> Int[np.ndarray, "level batch seq"]:
    """Insert 0 to ``max_gaps`` random gaps between the groups of each sequence, then add a random shift.

    Tokens of one group keep equal IDs, and levels are independent. The size of each gap is a uniform random fraction of
    the unused IDs. If the sizes exceed the unused IDs in total, they are scaled down. The shift uses the remaining IDs.
    Distances can have any size up to the full range, and all IDs are below ``num_position_ids``.
    """
    num_levels, batch_size, _ = group_ids.shape
    num_unused_ids = np.array([largest_id_shift(level_ids, num_position_ids) for level_ids in group_ids])[:, None, None]
    gaps_shape = (num_levels, batch_size, max_gaps)
    has_gap = np.arange(max_gaps) < rng.integers(0, max_gaps + 1, size=(num_levels, batch_size, 1))
    fractions = np.where(has_gap, rng.random(gaps_shape), 0.0)
    gap_sizes = fractions / np.maximum(fractions.sum(axis=-1, keepdims=True), 1.0) * num_unused_ids
    gap_starts = (rng.random(gaps_shape) * group_ids.max(axis=-1)[..., None]).astype(np.int64) + 1
    ids = group_ids.copy()
    for gap in range(max_gaps):
        ids += np.where(group_ids >= gap_starts[..., [gap]], gap_sizes[..., [gap]].astype(np.int64), 0)
    max_shifts = num_position_ids - 1 - ids.max(axis=-1, keepdims=True)
    return ids + (rng.random((num_levels, batch_size, 1)) * (max_shifts + 1)).astype(np.int64)
