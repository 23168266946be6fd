"""The contract of an influence measure: which k far tokens it would keep."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from lengthwise.influence.probing.subset_scoring import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Far tokens (their places) in the order of choice, and what each was found to gain.

    The unit of a gain is the measure's own: nats of the objective where it is scored exactly.
    """

    chosen: tuple[int, ...]
    gains: tuple[float, ...]


@runtime_checkable
class InfluenceMeasure(Protocol):
    """Chooses far tokens one after the other; the first k of a longer choice are the choice of k.

    ``exact``: its gains are measured, not estimated. ``around`` says from where a gradient looks for candidates.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    exact: ClassVar[bool]
    around: ClassVar[str]

    def choose(self, probe: Probe, k: int, rng: np.random.Generator) -> Choice:
        """The best k of the probe's candidates, best first."""
        ...


def best(probe: Probe, gains: Float[np.ndarray, " candidates"], k: int) -> Choice:
    """The k candidates with the largest gains; of equals the first in the text."""
    order = np.argsort(-gains, kind="stable")[:k]
    return Choice(
        chosen=tuple(int(place) for place in probe.candidates[order]), gains=tuple(float(gain) for gain in gains[order])
    )
