"""Sequential positions (Vaswani et al. 2017): the ID is the token index."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.positions.scheme import Assignment, PositionScheme, make_assignment, token_indexes
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential(PositionScheme):
    """IDs 0, 1, 2, ... in training and at evaluation."""

    name: ClassVar[str] = "sequential"
    summary: ClassVar[str] = "the ID is the token index"
    paper: ClassVar[str] = "Vaswani et al. 2017 (arXiv 1706.03762)"

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return the token index of every token."""
        return make_assignment(examples, token_indexes(examples))
