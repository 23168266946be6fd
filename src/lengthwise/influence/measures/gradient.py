"""Measure based on gradients of attention gates."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import TokenRanking, top_k
from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """Gradient of the score with respect to a gate on the attention to each far token."""

    name: ClassVar[str] = "gradient"
    summary: ClassVar[str] = "gradient with respect to attention gates, one per far token; one backward pass for all"
    paper: ClassVar[str] = "Michel et al. 2019, arXiv:1905.10650 (gates and their gradients)"
    exact: ClassVar[bool] = False
    gradient_context: ClassVar[str] = "none"

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Rank all candidates with one backward pass."""
        return top_k(scorer, scorer.gradient(context=self.gradient_context)[scorer.candidates], k)
