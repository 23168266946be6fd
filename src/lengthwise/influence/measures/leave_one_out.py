"""Leave one out: what each far token's absence costs."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import Choice, best
from lengthwise.influence.probing.subset_scoring import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut:
    """``score(all but i) - score(all)``: blind to a token of which there is a copy."""

    name: ClassVar[str] = "leave_one_out"
    summary: ClassVar[str] = (
        "what is lost when one far token of the whole context is hidden; misses what is there twice"
    )
    paper: ClassVar[str] = "Cook 1977 (deletion); Li et al. 2016, arXiv:1612.08220"
    exact: ClassVar[bool] = True
    around: ClassVar[str] = "all"

    def choose(self, probe: Probe, k: int, rng: np.random.Generator) -> Choice:
        """One question per candidate."""
        rows = np.stack([~probe.only([])] + [~probe.only([place]) for place in probe.candidates.tolist()])
        scores = probe.scores(rows)
        return best(probe, scores[1:] - scores[0], k)
