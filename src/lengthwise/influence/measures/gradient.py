"""Gradient: all far tokens from one backward pass, to first order."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import Choice, best
from lengthwise.influence.probing.subset_scoring import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """The slope of the score by a gate on the attention to each far token, from where these together weigh as one."""

    name: ClassVar[str] = "gradient"
    summary: ClassVar[str] = "slope of the loss by a gate on the attention to each far token: one backward pass for all"
    paper: ClassVar[str] = "Michel et al. 2019, arXiv:1905.10650 (gates and their gradients)"
    exact: ClassVar[bool] = False
    around: ClassVar[str] = "none"

    def choose(self, probe: Probe, k: int, rng: np.random.Generator) -> Choice:
        """One question for all candidates."""
        return best(probe, probe.gradient(around=self.around)[probe.candidates], k)
