"""Position coupling: IDs come from the task's own coupling, with gaps between its groups in training."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.example import Examples
from lengthwise.positions.gaps import check_max_gaps, open_gaps
from lengthwise.positions.scheme import Assignment, check_num_position_ids, coupling_of, scored_everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Coupled:
    """Training: the coupling with random gaps (one gap for all tokens of a group) and a random shift.

    Evaluation: the coupling as it is, all IDs given. ``max_gaps=0`` is plain position coupling, shifted as one block.
    """

    num_position_ids: int = 20_480
    max_gaps: int = 3

    name: ClassVar[str] = "coupled"
    summary: ClassVar[str] = "the task's coupling, all IDs given; random gaps in training"
    paper: ClassVar[str] = "Cho et al. 2024 (arXiv 2405.20671); gaps after PoSE (arXiv 2309.10400)"
    needs: ClassVar[str | None] = "coupling"
    real_valued: ClassVar[bool] = False
    predicts_ids: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_num_position_ids(self.num_position_ids)
        check_max_gaps(self.max_gaps)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """The coupling, with gaps and a shift in training."""
        ids = coupling_of(examples)
        if training:
            ids = open_gaps(ids, rng, num_position_ids=self.num_position_ids, max_gaps=self.max_gaps)
        return scored_everywhere(examples, ids)
