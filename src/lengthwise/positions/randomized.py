"""Randomized positions (Ruoss et al. 2023): IDs are a sorted random subset of a range."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.positions.scheme import Assignment, BoundedIDScheme, largest_id_shift, make_assignment, token_indexes
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Randomized(BoundedIDScheme):
    """Sorted random subset of the IDs below ``num_position_ids``, in training and at evaluation.

    Each sequence has its own subset, and all subsets are equally likely. A sequence cannot be longer than the range.
    """

    name: ClassVar[str] = "randomized"
    summary: ClassVar[str] = "a sorted random subset of the IDs, in training and at evaluation"
    paper: ClassVar[str] = "Ruoss et al. 2023 (arXiv 2305.16843)"
    random_at_evaluation: ClassVar[bool] = True

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return one random subset per sequence; raise ``PositionRangeError`` if a sequence is too long."""
        largest_id_shift(token_indexes(examples), self.num_position_ids)
        batch_size, seq_length = examples.tokens.shape
        return make_assignment(examples, sample_sorted_ids(rng, self.num_position_ids, batch_size, seq_length)[None])


def sample_sorted_ids(
    rng: np.random.Generator, num_position_ids: int, num_subsets: int, subset_size: int
) -> Int[np.ndarray, "batch seq"]:
    """Return sorted, uniformly random subsets of ``subset_size`` numbers below ``num_position_ids``."""
    # A permutation of the full range is faster if many IDs would repeat.
    if 8 * subset_size > num_position_ids:
        full_range = np.broadcast_to(np.arange(num_position_ids), (num_subsets, num_position_ids))
        return np.sort(rng.permuted(full_range, axis=1)[:, :subset_size], axis=1)
    ids = np.sort(rng.integers(0, num_position_ids, size=(num_subsets, subset_size)), axis=1)
    # Resample duplicates. All numbers are equally likely, and therefore all subsets are equally likely.
    while (is_duplicate := ids[:, 1:] == ids[:, :-1]).any():
        ids[:, 1:][is_duplicate] = rng.integers(0, num_position_ids, size=int(is_duplicate.sum()))
        ids.sort(axis=1)
    return ids
