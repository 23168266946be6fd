"""Predictive Position Coupling: coupled IDs, of which only the prompt's are given at test time."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.core.type_checks import check_types
from lengthwise.positions.gaps import assign_groups, check_gaps
from lengthwise.positions.scheme import Assignment, PositionScheme, coupling_of
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted(PositionScheme):
    """Training: IDs as in ``multilevel``, gaps and shift included; the decoder learns to predict the response's IDs.

    Evaluation: the coupling as it is, of which the prompt's IDs are given; the decoder is scored on the others too.
    """

    num_position_ids: int = 20_480
    max_gaps: int = 3

    name: ClassVar[str] = "predicted"
    summary: ClassVar[str] = "the task's coupling, response IDs predicted by the decoder (PPC)"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), section 5.2"
    needs: ClassVar[str | None] = "coupling"
    predicts_ids: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_gaps(self.num_position_ids, self.max_gaps)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """As ``multilevel`` assigns them: what changes is who supplies the response's IDs at test time."""
        return assign_groups(
            examples,
            coupling_of(examples),
            rng,
            training=training,
            num_position_ids=self.num_position_ids,
            max_gaps=self.max_gaps,
        )
