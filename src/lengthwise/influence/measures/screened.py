"""Screened: a gradient finds the candidates, another measure scores them exactly."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.influence.measures.greedy import Greedy
from lengthwise.influence.measures.measure import Choice, InfluenceMeasure
from lengthwise.influence.probing.subset_scoring import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """Keeps the ``share`` of far tokens with the steepest gates (never fewer than asked for), and scores only those."""

    name: ClassVar[str] = "screened"
    summary: ClassVar[str] = "a gradient keeps a tenth of the far tokens, greedy (or another) scores these exactly"
    paper: ClassVar[str] = "Michel et al. 2019, arXiv:1905.10650 (gates and their gradients)"
    exact: ClassVar[bool] = True
    around: ClassVar[str] = "none"

    then: InfluenceMeasure = field(default_factory=Greedy)
    share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise SettingError(f"screening keeps a share of the far tokens, not {self.share}; use 0.1, or up to 1")

    def choose(self, probe: Probe, k: int, rng: np.random.Generator) -> Choice:
        """One backward pass, then what the other measure asks about the rest."""
        slopes = probe.gradient(around=self.then.around)[probe.candidates]
        kept = max(k, math.ceil(self.share * len(probe.candidates)))
        candidates = probe.candidates[np.argsort(-slopes, kind="stable")[:kept]]
        return self.then.choose(probe.among(candidates), k, rng)
