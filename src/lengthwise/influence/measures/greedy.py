"""Greedy: again and again the far token that gains most beside those already chosen."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.influence.measures.measure import Choice
from lengthwise.influence.probing.subset_scoring import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Adds the best next token k times; a later one may cost. Blind to tokens of which no single one gains."""

    name: ClassVar[str] = "greedy"
    summary: ClassVar[str] = "again and again the far token that gains most beside those chosen; k times the cost"
    paper: ClassVar[str] = "Nemhauser, Wolsey, Fisher 1978 (greedy choice of a set)"
    exact: ClassVar[bool] = True
    around: ClassVar[str] = "none"

    def choose(self, probe: Probe, k: int, rng: np.random.Generator) -> Choice:
        """One question per candidate and step."""
        chosen: list[int] = []
        gains: list[float] = []
        left = [int(place) for place in probe.candidates.tolist()]
        reached = float(probe.scores(probe.only([])[None])[0])
        for _ in range(min(k, len(left))):
            scores = probe.scores(np.stack([probe.only([*chosen, place]) for place in left]))
            step = int(scores.argmin())
            chosen.append(left.pop(step))
            gains.append(reached - float(scores[step]))
            reached = float(scores[step])
        return Choice(chosen=tuple(chosen), gains=tuple(gains))
