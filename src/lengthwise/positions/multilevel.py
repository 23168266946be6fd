"""Multi-level position coupling: one ID per level of the task's own coupling."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.core.type_checks import check_types
from lengthwise.positions.gaps import assign_groups, check_gaps
from lengthwise.positions.scheme import Assignment, PositionScheme, coupling_of
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiLevel(PositionScheme):
    """Training: the coupling on all its levels, each with random gaps and a random shift of its own.

    Evaluation: the coupling as it is, all IDs given. On one level it is ``coupled``.
    """

    num_position_ids: int = 20_480
    max_gaps: int = 3

    name: ClassVar[str] = "multilevel"
    summary: ClassVar[str] = "the task's coupling on all its levels, all IDs given; random gaps in training"
    paper: ClassVar[str] = "Cho et al. 2025 (arXiv 2410.15787); gaps after PoSE (arXiv 2309.10400)"
    needs: ClassVar[str | None] = "coupling"

    def __post_init__(self) -> None:
        check_types(self)
        check_gaps(self.num_position_ids, self.max_gaps)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """The coupling of every level, with gaps and shifts in training."""
        return assign_groups(
            examples,
            coupling_of(examples),
            rng,
            training=training,
            num_position_ids=self.num_position_ids,
            max_gaps=self.max_gaps,
        )
