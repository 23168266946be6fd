"""Random selection, the control of all measures."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import TokenRanking
from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomChoice:
    """Random candidates without repetition, with gains of 0. Runs no forward pass."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random far tokens: the control"
    paper: ClassVar[str] = ""
    exact: ClassVar[bool] = False
    around: ClassVar[str] = "none"

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Return the first k of a random permutation of the candidates."""
        indices = rng.permutation(scorer.candidates)[:k]
        return TokenRanking(indices=tuple(int(index) for index in indices), gains=(0.0,) * len(indices))
