"""Abacus positions (McLeish et al. 2024): the ID of a digit is its index within the number, counted from 1."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.positions.scheme import (
    Assignment,
    BoundedIDScheme,
    largest_id_shift,
    make_assignment,
    require_step_index,
)
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Abacus(BoundedIDScheme):
    """IDs that count the digits of a number from 1 in writing order; training adds one random offset per sequence.

    Tokens outside numbers have ID 0. If the task writes the least significant digit first, digits of equal significance
    have equal IDs. The paper samples one offset per batch.
    """

    num_position_ids: int = 128

    name: ClassVar[str] = "abacus"
    summary: ClassVar[str] = "the index of a digit within its number, plus a random offset in training"
    paper: ClassVar[str] = "McLeish et al. 2024 (arXiv 2405.17399)"
    needs: ClassVar[str | None] = "step_index"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return the index of each digit within its number; training adds one random offset per sequence."""
        ids = require_step_index(examples)
        if training:
            sequence_offsets = rng.integers(
                0, largest_id_shift(ids, self.num_position_ids) + 1, size=(len(examples), 1)
            )
            ids = np.where(ids > 0, ids + sequence_offsets, 0)
        return make_assignment(examples, ids[None])
