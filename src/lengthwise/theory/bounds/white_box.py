"""White-box bounds, which use the scores inside the pieces of a cover and do not need kappa. Derived here.

The error of a sequence is at most the sum over its pieces of the loss of the claimed sets. Within a piece, the weights
of its sets sum to 1. The expectation of each summand is over sequences of the training length.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from math import log, sqrt
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.placement import ShapeLaw
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention, normalize_scores
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.sequence_cover import GridCover, Interval, Piece, ProportionalCover
from lengthwise.theory.risk.exact_risk import Leakage, Loss, Predictor, enumerated_risk, num_sequences

CoverType = type[GridCover] | type[ProportionalCover]
# The largest number of sequences, summed over all windows, of an exact bound.
MAX_SEQUENCES = 1 << 22


@dataclass(frozen=True, slots=True)
class Window:
    """Piece of a cover in its own token indexes: the ends of its runs and the intervals of the sets that it claims."""

    ends: tuple[int, ...]
    core: Interval
    left: Interval
    right: Interval
    claims_core: bool

    def contains(self, sets: Int[np.ndarray, "sets k"]) -> np.ndarray:
        """Return True for the sets that lie inside one run."""
        run = np.searchsorted(self.ends, sets, side="right")
        return np.asarray(run[:, 0] == run[:, -1])

    def claims(self, sets: Int[np.ndarray, "sets k"]) -> np.ndarray:
        """Return True for the sets that the piece claims."""
        first, last = sets[:, 0], sets[:, -1]
        core = (first >= self.core[0]) & (last < self.core[1]) & self.claims_core
        left = (first >= self.left[0]) & (first < self.left[1])
        right = (last >= self.right[0]) & (last < self.right[1])
        return np.asarray(self.contains(sets) & (core | left | right))


def to_window(piece: Piece) -> Window:
    """Convert a piece to a window with token indexes within the piece."""
    core, left, right, *runs = (
        (piece.index_of(start), piece.index_of(end - 1) + 1) if start < end else (0, 0)
        for start, end in (piece.core, piece.left, piece.right, *piece.runs)
    )
    return Window(tuple(end for _, end in runs), core, left, right, piece.claims_core)


@dataclass(frozen=True, slots=True)
class WindowLoss:
    """Loss in [0, 1] of the sets that a window claims, with weights over all sets inside its runs."""

    window: Window
    loss: Loss

    name: ClassVar[str] = "window"

    def evaluate(
        self,
        predictor: Predictor,
        tokens: Int[np.ndarray, "batch length"],
        planted: Int[np.ndarray, "batch k"],
        labels: Float[np.ndarray, "batch outputs"],
    ) -> Float[np.ndarray, " batch"]:
        """Return the loss; without weight, it is the loss of the default with ``claims_core``, and 0 otherwise."""
        assert isinstance(predictor, TabularAttention)
        sets, log_scores, values = predictor.score_sets(tokens)
        is_inside = self.window.contains(sets)
        weights, total = normalize_scores(log_scores[:, is_inside])
        if isinstance(self.loss, Leakage):
            cost = (sets[None, is_inside] != planted[:, None]).any(axis=2).astype(float)
            default = np.ones(len(tokens))
        else:
            cost = 1 - np.einsum("bso,bo->bs", values[:, is_inside], labels)
            default = 1 - labels @ predictor.default
        claims = self.window.claims(sets[is_inside])
        total_cost = (weights * cost)[:, claims].sum(axis=1)
        return np.asarray(np.where(total > 0, total_cost, default * self.window.claims_core))


@dataclass(frozen=True, slots=True)
class FixedSet:
    """Placement that plants one fixed set at every length."""

    shape: tuple[int, ...]
    start: int

    name: ClassVar[str] = "fixed"
    summary: ClassVar[str] = "one set at every length"

    @property
    def k(self) -> int:
        """The number of planted tokens."""
        return len(self.shape)

    @property
    def span(self) -> int | None:
        """The span of the set in tokens."""
        return self.shape[-1] + 1

    @property
    def min_length(self) -> int:
        """The number of tokens up to the last planted token."""
        return self.start + self.shape[-1] + 1

    def law(self, length: int) -> ShapeLaw:
        """Return the distribution in which the set has probability 1."""
        return ShapeLaw(shapes=np.array([self.shape]), probability=np.eye(1, length, self.start))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Repeat the set ``size`` times."""
        return np.tile(self.start + np.array(self.shape), (size, 1))


@dataclass(frozen=True, slots=True)
class Summand:
    """A window and the set planted in it, which define one expectation of the bound."""

    window: Window
    placement: FixedSet

    def law(self, law: Planted) -> Planted:
        """Return the planted law with this set."""
        return replace(law, placement=self.placement)


def count_summands(case: Extrapolation, cover_type: CoverType) -> dict[Summand, float]:
    """Return the expected count of each distinct summand; their number stays small at long test lengths.

    Raises ``BoundError`` for a cover without room, a class or law that is not local, or a loss that is not linear.
    """
    case.check_linear()
    cover = cover_type(test_length=case.test_length, train_length=case.train_length, span=case.span)
    set_probability = case.probability(case.test_length).sum(axis=2)
    expected_counts: dict[Summand, float] = defaultdict(float)
    for start in np.flatnonzero(set_probability.any(axis=0)).tolist():
        for piece in cover.pieces(start):
            window, index = to_window(piece), piece.index_of(start)
            for shape, probability in zip(case.shapes.tolist(), set_probability[:, start].tolist(), strict=True):
                if probability > 0:
                    expected_counts[Summand(window, FixedSet(tuple(shape), index))] += probability
    return expected_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownScores:
    """Bound ``sum_S Q_N(S) sum_J E[sum of g e over sets that J claims / sum of g over sets inside runs of J]``."""

    cover: CoverType = ProportionalCover

    name: ClassVar[str] = "window cover, known scores"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Return the bound by enumeration; raises ``SettingError`` for too many sequences of the training length."""
        weights, total = count_summands(case, self.cover), 0.0
        total_sequences = len(weights) * num_sequences(case.law, case.train_length)
        if total_sequences > MAX_SEQUENCES:
            raise SettingError(
                f"{len(weights)} windows of {case.train_length} tokens have {total_sequences:,} sequences, more than "
                f"the {MAX_SEQUENCES:,} allowed; use a shorter training length or SampledKnownScores"
            )
        for summand, weight in weights.items():
            loss = WindowLoss(summand.window, case.loss)
            total += weight * enumerated_risk(summand.law(case.law), case.attention, case.train_length, loss).mean
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledKnownScores:
    """Upper confidence bound on ``KnownScores`` from ``samples`` sequences.

    The bound is invalid with probability at most ``failure_probability``. Summands are sampled in proportion to their
    weights, and the empirical Bernstein inequality bounds their mean (Maurer and Pontil 2009, theorem 4).
    """

    cover: CoverType = ProportionalCover
    samples: int = 10_000
    failure_probability: float = 0.05
    seed: int = 0

    name: ClassVar[str] = "window cover, known scores, 95% by sampling"
    provenance: ClassVar[str] = "derived here"

    def __post_init__(self) -> None:
        if self.samples < 2 or not 0 < self.failure_probability < 1:
            raise SettingError(
                f"invalid {self.samples} samples or failure_probability {self.failure_probability}; use at least 2 "
                "samples and a probability between 0 and 1"
            )

    def value(self, case: Extrapolation) -> float:
        """Return the upper confidence bound."""
        weights = count_summands(case, self.cover)
        rng = stream(self.seed, "cut", case.train_length, case.test_length)
        total = sum(weights.values())
        counts = rng.multinomial(self.samples, np.array(list(weights.values())) / total)
        losses = [
            _sample_losses(case, summand, count, rng) for summand, count in zip(weights, counts.tolist(), strict=True)
        ]
        return total * bernstein_upper_bound(np.concatenate(losses), self.failure_probability)


def _sample_losses(
    case: Extrapolation, summand: Summand, size: int, rng: np.random.Generator
) -> Float[np.ndarray, " size"]:
    law = summand.law(case.law)
    tokens, sets, _ = law.sample_arrays(case.train_length, size, rng)
    labels = law.label_law[law.tuple_codes(np.take_along_axis(tokens, sets, axis=1))]
    return WindowLoss(summand.window, case.loss).evaluate(case.attention, tokens, sets, labels)


def bernstein_upper_bound(values: Float[np.ndarray, " samples"], failure_probability: float) -> float:
    """Return an upper bound on the mean of independent values in [0, 1]; it fails with ``failure_probability``."""
    log_odds = log(2 / failure_probability)
    variance = float(values.var(ddof=1))
    return float(values.mean()) + sqrt(2 * variance * log_odds / len(values)) + 7 * log_odds / (3 * (len(values) - 1))
