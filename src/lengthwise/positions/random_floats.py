"""Random float sampling: the IDs are random real numbers of one range, whatever the length."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.core.type_checks import check_types
from lengthwise.positions.scheme import Assignment, PositionScheme, check_num_position_ids, scored_everywhere
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomFloats(PositionScheme):
    """Training and evaluation alike: uniform real numbers from 0 to ``num_position_ids``, sorted, per sequence.

    The range is the same for every length: longer sequences lie closer, and no ID is new to the decoder.
    """

    num_position_ids: int = 512

    name: ClassVar[str] = "random_floats"
    summary: ClassVar[str] = "sorted random real numbers of one range, at evaluation too"
    paper: ClassVar[str] = "Shimizu et al. 2026, Random Float Sampling (arXiv 2602.14050)"
    real_valued: ClassVar[bool] = True
    draws_at_evaluation: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_num_position_ids(self.num_position_ids)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """Sorted real numbers."""
        return scored_everywhere(examples, np.sort(rng.random((1, *examples.tokens.shape))) * self.num_position_ids)
