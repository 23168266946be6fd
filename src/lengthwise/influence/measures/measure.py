"""Interface of an influence measure, which selects far tokens."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRanking:
    """Indices of far tokens in the order of selection, and the gain of each.

    The unit of a gain depends on the measure: nats of the objective if the measure is exact.
    """

    indices: tuple[int, ...]
    gains: tuple[float, ...]


@runtime_checkable
class InfluenceMeasure(Protocol):
    """Measure that ranks far tokens; the first k tokens of a longer ranking are the selection of k tokens.

    ``exact`` is True if gains are computed with forward passes, not estimated. ``around`` is the context at which a
    gradient prefilters candidates for this measure, see ``SubsetScorer.gradient``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    exact: ClassVar[bool]
    around: ClassVar[str]

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Return the best k candidates of the scorer, best first."""
        ...


def top_k(scorer: SubsetScorer, gains: Float[np.ndarray, " candidates"], k: int) -> TokenRanking:
    """Return the k candidates with the largest gains; ties go to the earlier token."""
    order = np.argsort(-gains, kind="stable")[:k]
    return TokenRanking(
        indices=tuple(int(index) for index in scorer.candidates[order]),
        gains=tuple(float(gain) for gain in gains[order]),
    )
