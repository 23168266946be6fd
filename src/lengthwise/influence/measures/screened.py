"""Screened measure, which prefilters candidates by gradient and scores the remaining ones exactly."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.influence.measures.greedy import Greedy
from lengthwise.influence.measures.measure import InfluenceMeasure, TokenRanking
from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Prefilter by gradient for the measure ``then``.

    ``then`` scores only the candidates with the largest gradients: a fraction ``share`` of them, but at least k.
    """

    name: ClassVar[str] = "screened"
    summary: ClassVar[str] = "a gradient prefilters a tenth of the far tokens; greedy or another measure scores them"
    paper: ClassVar[str] = "Michel et al. 2019, arXiv:1905.10650 (gates and their gradients)"
    exact: ClassVar[bool] = True
    gradient_context: ClassVar[str] = "none"

    then: InfluenceMeasure = field(default_factory=Greedy)
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise SettingError(f"invalid share {self.share} of far tokens; use a number above 0 and at most 1")

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Run one backward pass, then the measure ``then`` on the remaining candidates."""
        gradients = scorer.gradient(context=self.then.gradient_context)[scorer.candidates]
        num_candidates = max(k, math.ceil(self.share * len(scorer.candidates)))
        candidates = scorer.candidates[np.argsort(-gradients, kind="stable")[:num_candidates]]
        return self.then.select(scorer.restrict(candidates), k, rng)
