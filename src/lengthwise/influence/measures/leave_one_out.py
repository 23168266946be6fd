"""Leave-one-out measure, which hides one far token at a time."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import TokenRanking, top_k
from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut:
    """Measure of the score increase ``score(all without i) - score(all)`` if far token i is hidden.

    It misses tokens with a copy in the context.
    """

    name: ClassVar[str] = "leave_one_out"
    summary: ClassVar[str] = "loss increase when one far token of the whole context is hidden; misses copies"
    paper: ClassVar[str] = "Cook 1977 (deletion); Li et al. 2016, arXiv:1612.08220"
    exact: ClassVar[bool] = True
    gradient_context: ClassVar[str] = "all"

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Score the whole context, and the context without each candidate."""
        subsets = [[], *([index] for index in scorer.candidates.tolist())]
        scores = scorer.scores(np.stack([~scorer.visibility_mask(indices) for indices in subsets]))
        return top_k(scorer, scores[1:] - scores[0], k)
