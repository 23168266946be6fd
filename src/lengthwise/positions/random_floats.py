"""Random float sampling (Shimizu et al. 2026): IDs are sorted random real numbers."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.positions.scheme import Assignment, BoundedIDScheme, make_assignment
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFloats(BoundedIDScheme):
    """Sorted uniform real numbers from 0 to ``num_position_ids``, in training and at evaluation.

    The range is the same for every length. Longer sequences have denser IDs but no IDs out of range.
    """

    num_position_ids: int = 512

    name: ClassVar[str] = "random_floats"
    summary: ClassVar[str] = "sorted random real numbers from a fixed range, in training and at evaluation"
    paper: ClassVar[str] = "Shimizu et al. 2026, Random Float Sampling (arXiv 2602.14050)"
    real_valued: ClassVar[bool] = True
    random_at_evaluation: ClassVar[bool] = True

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Return new sorted random IDs for every sequence."""
        return make_assignment(examples, np.sort(rng.random((1, *examples.tokens.shape))) * self.num_position_ids)
