"""Random selection of far tokens, a control for the measures."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import TokenRanking
from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomChoice:
    """Random selection of k distinct candidates without a forward pass. All gains are 0."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "random far tokens: the control"
    paper: ClassVar[str] = ""
    exact: ClassVar[bool] = False
    gradient_context: ClassVar[str] = "none"

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Return the first k candidates of a random permutation."""
        indices = rng.permutation(scorer.candidates)[:k]
        return TokenRanking(indices=tuple(int(index) for index in indices), gains=(0.0,) * len(indices))
