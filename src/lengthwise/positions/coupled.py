"""Position coupling: IDs come from the task's own coupling, with gaps between its groups in training."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.core.errors import UnservedTaskError
from lengthwise.core.type_checks import check_types
from lengthwise.positions.gaps import assign_groups, check_gaps
from lengthwise.positions.scheme import Assignment, PositionScheme, coupling_of
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupled(PositionScheme):
    """Training: the coupling with random gaps (one gap for all tokens of a group) and a random shift.

    Evaluation: the coupling as it is, all IDs given. ``max_gaps=0`` is plain position coupling, shifted as one block.
    One ID per token: tasks that couple on several levels are served by ``multilevel``.
    """

    num_position_ids: int = 20_480
    max_gaps: int = 3

    name: ClassVar[str] = "coupled"
    summary: ClassVar[str] = "the task's coupling, all IDs given; random gaps in training"
    paper: ClassVar[str] = "Cho et al. 2024 (arXiv 2405.20671); gaps after PoSE (arXiv 2309.10400)"
    needs: ClassVar[str | None] = "coupling"

    def __post_init__(self) -> None:
        check_types(self)
        check_gaps(self.num_position_ids, self.max_gaps)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """The coupling, with gaps and a shift in training."""
        groups = coupling_of(examples)
        if len(groups) != 1:
            raise UnservedTaskError(
                f"this task couples on {len(groups)} levels, coupled gives one ID; "
                "use the scheme multilevel or predicted"
            )
        return assign_groups(
            examples,
            groups,
            rng,
            training=training,
            num_position_ids=self.num_position_ids,
            max_gaps=self.max_gaps,
        )
