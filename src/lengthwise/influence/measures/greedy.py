"""Greedy search for a set of far tokens."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import TokenRanking
from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Greedy search that adds the far token with the largest gain, k times.

    It misses tokens that only help together. Gains can be negative.
    """

    name: ClassVar[str] = "greedy"
    summary: ClassVar[str] = "greedy search: adds the far token with the largest gain, k times; k times the cost"
    paper: ClassVar[str] = "Nemhauser, Wolsey, Fisher 1978 (greedy choice of a set)"
    exact: ClassVar[bool] = True
    gradient_context: ClassVar[str] = "none"

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Score every remaining candidate in each of k steps."""
        indices, gains, remaining = list[int](), list[float](), scorer.candidates.tolist()
        current_score = float(scorer.scores(scorer.visibility_mask([])[None])[0])
        for _ in range(min(k, len(remaining))):
            scores = scorer.scores(np.stack([scorer.visibility_mask([*indices, index]) for index in remaining]))
            best_index = int(scores.argmin())
            indices.append(remaining.pop(best_index))
            gains.append(current_score - float(scores[best_index]))
            current_score = float(scores[best_index])
        return TokenRanking(indices=tuple(indices), gains=tuple(gains))
