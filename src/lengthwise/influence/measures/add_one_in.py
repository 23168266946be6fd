"""Add-one-in measure, which scores each far token alone."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import TokenRanking, top_k
from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOneIn:
    """Measure of the gain ``score(near) - score(near + i)`` from far token i alone.

    It misses joint effects of several tokens, and it selects redundant copies of a token.
    """

    name: ClassVar[str] = "add_one_in"
    summary: ClassVar[str] = "gain of each far token added alone to the near tokens; misses joint effects"
    paper: ClassVar[str] = "Golowich et al. 2025, arXiv:2502.16792 (short context and k more tokens)"
    exact: ClassVar[bool] = True
    gradient_context: ClassVar[str] = "none"

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Score the near tokens without and with each candidate."""
        subsets = [[], *([index] for index in scorer.candidates.tolist())]
        scores = scorer.scores(np.stack([scorer.visibility_mask(indices) for indices in subsets]))
        return top_k(scorer, scores[0] - scores[1:], k)
