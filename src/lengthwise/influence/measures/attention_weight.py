"""Attention weight: what the target's query looks at."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import Choice, best
from lengthwise.influence.probing.subset_scoring import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWeight:
    """The mean over layers and heads of the last near token's weights; reads neither values nor the target."""

    name: ClassVar[str] = "attention"
    summary: ClassVar[str] = "mean attention weight of the last near token; reads neither values nor the target"
    paper: ClassVar[str] = "Abnar, Zuidema 2020, arXiv:2005.00928 (raw attention, and what it misses)"
    exact: ClassVar[bool] = False
    around: ClassVar[str] = "all"

    def choose(self, probe: Probe, k: int, rng: np.random.Generator) -> Choice:
        """One pass for all candidates."""
        return best(probe, probe.attention()[probe.candidates], k)
