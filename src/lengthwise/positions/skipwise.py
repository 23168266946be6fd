"""Skip-wise: sequential IDs with random gaps (PoSE)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.core.type_checks import check_types
from lengthwise.positions.gaps import assign_groups, check_gaps
from lengthwise.positions.scheme import Assignment, PositionScheme, token_indexes
from lengthwise.tasks.examples import Examples


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipwise(PositionScheme):
    """Training: consecutive IDs in chunks with random gaps between them, and a random shift. Evaluation: 0, 1, 2, ...

    In the paper's words, ``max_gaps + 1`` is the largest number of chunks and ``num_position_ids`` the target window.
    The number of gaps is drawn per sequence, as are their places: chunks have any length. Distances up to
    ``num_position_ids`` are met in training on short sequences. On coupled IDs the scheme ``coupled`` opens the same
    gaps.
    """

    num_position_ids: int = 20_480
    max_gaps: int = 3

    name: ClassVar[str] = "skipwise"
    summary: ClassVar[str] = "consecutive IDs with random gaps between chunks (PoSE)"
    paper: ClassVar[str] = "Zhu et al. 2024, PoSE (arXiv 2309.10400)"

    def __post_init__(self) -> None:
        check_types(self)
        check_gaps(self.num_position_ids, self.max_gaps)

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """The token index, with gaps in training."""
        return assign_groups(
            examples,
            token_indexes(examples),
            rng,
            training=training,
            num_position_ids=self.num_position_ids,
            max_gaps=self.max_gaps,
        )
