"""Measure based on the attention weights of the last near token."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import TokenRanking, top_k
from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeight:
    """Mean attention weight (over layers and heads) of the last near token on each far token.

    It ignores the attention values and the target.
    """

    name: ClassVar[str] = "attention"
    summary: ClassVar[str] = "mean attention weight of the last near token; ignores values and the target"
    paper: ClassVar[str] = "Abnar, Zuidema 2020, arXiv:2005.00928 (raw attention and its limits)"
    exact: ClassVar[bool] = False
    gradient_context: ClassVar[str] = "all"

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Rank all candidates with one forward pass."""
        return top_k(scorer, scorer.attention()[scorer.candidates], k)
