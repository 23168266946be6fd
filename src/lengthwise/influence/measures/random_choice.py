"""Random: the control that no measure may fall below."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import Choice
from lengthwise.influence.probing.subset_scoring import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomChoice:
    """Any k candidates; asks the model nothing."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "any far tokens: the control"
    paper: ClassVar[str] = ""
    exact: ClassVar[bool] = False
    around: ClassVar[str] = "none"

    def choose(self, probe: Probe, k: int, rng: np.random.Generator) -> Choice:
        """Without repetition."""
        chosen = rng.permutation(probe.candidates)[:k]
        return Choice(chosen=tuple(int(place) for place in chosen), gains=(0.0,) * len(chosen))
