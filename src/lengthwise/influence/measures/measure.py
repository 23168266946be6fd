"""Interface of an influence measure, which selects far tokens."""

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from lengthwise.influence.probing.subset_scoring import SubsetScorer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRanking:
    """Indices and gains of far tokens, in the order of selection.

    Gains of an exact measure are in nats of the objective. Other measures have other units.
    """

    indices: tuple[int, ...]
    gains: tuple[float, ...]


@runtime_checkable
class InfluenceMeasure(Protocol):
    """Measure that ranks far tokens. The first k tokens of a ranking are the selection of k tokens.

    ``exact`` is True if forward passes compute the gains, and False for an approximation. ``gradient_context`` is the
    context of the gradient that prefilters candidates for this measure; see ``SubsetScorer.gradient``.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    exact: ClassVar[bool]
    gradient_context: ClassVar[str]

    def select(self, scorer: SubsetScorer, k: int, rng: np.random.Generator) -> TokenRanking:
        """Return the best k candidates of the scorer, best first."""
        ...


def top_k(scorer: SubsetScorer, gains: Float[np.ndarray, " candidates"], k: int) -> TokenRanking:
    """Return the k candidates with the largest gains. Ties are broken in favor of the earlier token."""
    sorted_positions = np.argsort(-gains, kind="stable")[:k]
    return TokenRanking(
        indices=tuple(int(index) for index in scorer.candidates[sorted_positions]),
        gains=tuple(float(gain) for gain in gains[sorted_positions]),
    )
