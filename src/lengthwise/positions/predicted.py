"""Predictive Position Coupling: coupled IDs, of which only the prompt's are given at test time."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.example import Examples
from lengthwise.positions.coupled import Coupled
from lengthwise.positions.scheme import Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """IDs as in ``coupled``; the decoder learns to predict the response's IDs and is scored on them too."""

    num_position_ids: int = 20_480
    max_gaps: int = 3

    name: ClassVar[str] = "predicted"
    summary: ClassVar[str] = "the task's coupling, response IDs predicted by the decoder (PPC)"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), section 5.2"
    needs: ClassVar[str | None] = "coupling"
    real_valued: ClassVar[bool] = False
    predicts_ids: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._given()

    def assign(self, examples: Examples, rng: np.random.Generator, *, training: bool) -> Assignment:
        """As ``coupled`` assigns them: what changes is who supplies the response's IDs at test time."""
        return self._given().assign(examples, rng, training=training)

    def _given(self) -> Coupled:
        return Coupled(num_position_ids=self.num_position_ids, max_gaps=self.max_gaps)
