"""Random start (SHAPE, Kiyono et al. 2021): consecutive IDs with a random first ID."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.positions.scheme import Assignment, BoundedIDScheme, largest_id_shift, make_assignment, token_indexes
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomStart(BoundedIDScheme):
    """Consecutive IDs that start at a random ID per sequence in training, and at 0 at evaluation.

    Training covers every ID below ``num_position_ids``, but no distance between IDs longer than the training sequences.
    """

    name: ClassVar[str] = "random_start"
    summary: ClassVar[str] = "consecutive IDs with a random first ID in training"
    paper: ClassVar[str] = "Kiyono et al. 2021, SHAPE (arXiv 2109.05644)"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return the token indexes; training adds one random shift per sequence."""
        ids = token_indexes(examples)
        if training:
            ids = ids + rng.integers(0, largest_id_shift(ids, self.num_position_ids) + 1, size=(1, len(examples), 1))
        return make_assignment(examples, ids)
