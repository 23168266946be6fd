"""Add one in: what each far token gains alone."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import Choice, best
from lengthwise.influence.probing.subset_scoring import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOneIn:
    """``score(near) - score(near + i)``: blind to tokens that count only together, and to copies of one another."""

    name: ClassVar[str] = "add_one_in"
    summary: ClassVar[str] = "what each far token gains alone beside the near ones; misses what counts only jointly"
    paper: ClassVar[str] = "Golowich et al. 2025, arXiv:2502.16792 (short context and k more tokens)"
    exact: ClassVar[bool] = True
    around: ClassVar[str] = "none"

    def choose(self, probe: Probe, k: int, rng: np.random.Generator) -> Choice:
        """One question per candidate."""
        rows = np.stack([probe.only([])] + [probe.only([place]) for place in probe.candidates.tolist()])
        scores = probe.scores(rows)
        return best(probe, scores[0] - scores[1:], k)
