"""Abacus: each digit's ID is its place in its own number."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.core.type_checks import check_types
from lengthwise.positions.scheme import (
    Assignment,
    PositionScheme,
    check_num_position_ids,
    places_of,
    room_above,
    scored_everywhere,
)
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Abacus(PositionScheme):
    """Training: places, counted in writing order, plus one random offset for all numbers of a sequence.

    Evaluation: places as they are, from 1. Tokens outside of numbers have ID 0 in both. Numbers that are written least
    significant digit first have equal IDs for equal significance. The paper draws one offset per batch.
    """

    num_position_ids: int = 128

    name: ClassVar[str] = "abacus"
    summary: ClassVar[str] = "the digit's place in its number, with a random offset in training"
    paper: ClassVar[str] = "McLeish et al. 2024 (arXiv 2405.17399)"
    needs: ClassVar[str | None] = "places"

    def __post_init__(self) -> None:
        check_types(self)
        check_num_position_ids(self.num_position_ids)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Each token's place, with an offset in training."""
        ids = places_of(examples)
        if training:
            offsets = rng.integers(0, room_above(ids, self.num_position_ids) + 1, size=(len(examples), 1))
            ids = np.where(ids > 0, ids + offsets, 0)
        return scored_everywhere(examples, ids[None])
