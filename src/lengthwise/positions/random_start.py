"""Random start: sequential IDs that begin anywhere in a range."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.core.type_checks import check_types
from lengthwise.positions.scheme import (
    Assignment,
    PositionScheme,
    check_num_position_ids,
    room_above,
    scored_everywhere,
    token_indexes,
)
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomStart(PositionScheme):
    """Training: consecutive IDs from a random start, per sequence. Evaluation: from 0.

    Every ID below ``num_position_ids`` is met in training, but no distance beyond the training length.
    """

    num_position_ids: int = 20_480

    name: ClassVar[str] = "random_start"
    summary: ClassVar[str] = "consecutive IDs from a random start"
    paper: ClassVar[str] = "Kiyono et al. 2021, SHAPE (arXiv 2109.05644)"

    def __post_init__(self) -> None:
        check_types(self)
        check_num_position_ids(self.num_position_ids)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """The token index plus one random shift per sequence."""
        ids = token_indexes(examples)
        if training:
            ids = ids + rng.integers(0, room_above(ids, self.num_position_ids) + 1, size=(1, len(examples), 1))
        return scored_everywhere(examples, ids)
