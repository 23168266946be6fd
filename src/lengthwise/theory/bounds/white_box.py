"""White-box bounds, which use the scores inside the pieces of a cover and do not need kappa. Derived here.

The error of a sequence is at most a sum over its pieces: the loss of the sets that each piece claims. Within a piece,
the weights of its sets sum to 1. The expectation of each summand is over sequences of the training length.
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
from lengthwise.theory.risk.exact_risk import (
    Leakage,
    Loss,
    Losses,
    Outputs,
    PlantedSets,
    Predictor,
    Tokens,
    enumerated_risk,
    num_sequences,
)

CoverType = type[GridCover] | type[ProportionalCover]
# The largest number of sequences, summed over all windows, of an exact bound.
MAX_SEQUENCES = 1 << 22


@dataclass(frozen=True, slots=True)
class Window:
    """Piece of a cover with indexes relative to the piece: the ends of its runs, and its core.

    The window claims the sets that start in ``left``, end in ``right`` or, with ``claims_core``, lie inside the core.
    """

    run_ends: tuple[int, ...]
    core: Interval
    left: Interval
    right: Interval
    claims_core: bool

    def contains(self, sets: Int[np.ndarray, "sets k"]) -> np.ndarray:
        """Return one flag per set: True if the set lies inside one run."""
        run_index = np.searchsorted(self.run_ends, sets, side="right")
        return np.asarray(run_index[:, 0] == run_index[:, -1])

    def claims(self, sets: Int[np.ndarray, "sets k"]) -> np.ndarray:
        """Return one flag per set: True if the window claims the set."""
        first_index, last_index = sets[:, 0], sets[:, -1]
        is_in_core = (first_index >= self.core[0]) & (last_index < self.core[1]) & self.claims_core
        starts_in_left = (first_index >= self.left[0]) & (first_index < self.left[1])
        ends_in_right = (last_index >= self.right[0]) & (last_index < self.right[1])
        return np.asarray(self.contains(sets) & (is_in_core | starts_in_left | ends_in_right))


def to_window(piece: Piece) -> Window:
    """Convert a piece to a window, with token indexes that count from the start of the piece."""
    core, left, right, *runs = (
        (piece.index_of(start), piece.index_of(end - 1) + 1) if start < end else (0, 0)
        for start, end in (piece.core, piece.left, piece.right, *piece.runs)
    )
    return Window(tuple(end for _, end in runs), core, left, right, piece.claims_core)


@dataclass(frozen=True, slots=True)
class WindowLoss:
    """Loss in [0, 1] of the sets that a window claims; the attention weights are over all sets inside its runs."""

    window: Window
    loss: Loss

    name: ClassVar[str] = "window"

    def evaluate(self, predictor: Predictor, tokens: Tokens, planted: PlantedSets, labels: Outputs) -> Losses:
        """Return the loss per sequence; without weights, that of the default with ``claims_core`` and 0 otherwise."""
        assert isinstance(predictor, TabularAttention)
        sets, log_scores, values = predictor.score_sets(tokens)
        is_inside = self.window.contains(sets)
        weights, total_score = normalize_scores(log_scores[:, is_inside])
        if isinstance(self.loss, Leakage):
            set_loss = (sets[None, is_inside] != planted[:, None]).any(axis=2).astype(float)
            default_loss = np.ones(len(tokens))
        else:
            set_loss = 1 - np.einsum("bso,bo->bs", values[:, is_inside], labels)
            default_loss = 1 - labels @ predictor.default
        is_claimed = self.window.claims(sets[is_inside])
        claimed_loss = (weights * set_loss)[:, is_claimed].sum(axis=1)
        return np.asarray(np.where(total_score > 0, claimed_loss, default_loss * self.window.claims_core))


@dataclass(frozen=True, slots=True)
class FixedSet:
    """Placement that plants the set with the same token indexes at every length."""

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
        """The shortest length, at which the last token is planted."""
        return self.start + self.shape[-1] + 1

    def law(self, length: int) -> ShapeLaw:
        """Return the distribution in which the set has probability 1."""
        return ShapeLaw(shapes=np.array([self.shape]), probability=np.eye(1, length, self.start))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Return ``size`` copies of the token indexes of the set."""
        return np.tile(self.start + np.array(self.shape), (size, 1))


@dataclass(frozen=True, slots=True)
class Summand:
    """One expectation of the bound: the mean loss of a window if its planted set is the set of ``placement``."""

    window: Window
    placement: FixedSet

    def law(self, law: Planted) -> Planted:
        """Return ``law`` with the placement that plants the set of this summand with probability 1."""
        return replace(law, placement=self.placement)


def count_summands(case: Extrapolation, cover_type: CoverType) -> dict[Summand, float]:
    """Return the expected number of pieces for each distinct summand; long test lengths add few distinct summands.

    Raises ``BoundError`` if the lengths are too short for the cover, the predictor or the law is not local, or the loss
    is not linear.
    """
    case.check_linear()
    cover = cover_type(test_length=case.test_length, train_length=case.train_length, span=case.span)
    set_probability = case.probability(case.test_length).sum(axis=2)
    expected_counts: dict[Summand, float] = defaultdict(float)
    for set_start in np.flatnonzero(set_probability.any(axis=0)).tolist():
        for piece in cover.pieces(set_start):
            window, planted_index = to_window(piece), piece.index_of(set_start)
            for shape, probability in zip(case.shapes.tolist(), set_probability[:, set_start].tolist(), strict=True):
                if probability > 0:
                    expected_counts[Summand(window, FixedSet(tuple(shape), planted_index))] += probability
    return expected_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownScores:
    """Bound ``sum_S Q_N(S) sum_J E[sum of g e over sets that J claims / sum of g over sets inside runs of J]``.

    S is a planted set with probability ``Q_N(S)`` at the test length N, and J is a piece of the cover for S. The score
    of a set is g, and its error is e.
    """

    cover: CoverType = ProportionalCover

    name: ClassVar[str] = "window cover, known scores"
    provenance: ClassVar[str] = "derived here"

    def value(self, case: Extrapolation) -> float:
        """Compute the bound by enumeration. Raises ``SettingError`` for too many sequences of the training length."""
        counts, bound = count_summands(case, self.cover), 0.0
        total_sequences = len(counts) * num_sequences(case.law, case.train_length)
        if total_sequences > MAX_SEQUENCES:
            raise SettingError(
                f"{len(counts)} windows of {case.train_length} tokens have {total_sequences:,} sequences, "
                f"more than the {MAX_SEQUENCES:,} allowed; use a shorter training length, or SampledKnownScores"
            )
        for summand, count in counts.items():
            loss = WindowLoss(summand.window, case.loss)
            bound += count * enumerated_risk(summand.law(case.law), case.attention, case.train_length, loss).mean
        return bound


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledKnownScores:
    """Upper confidence bound on ``KnownScores`` from ``num_samples`` sequences.

    The bound is invalid with probability at most ``failure_probability``. Summands are sampled in proportion to their
    expected number of pieces. The empirical Bernstein inequality bounds their mean (Maurer and Pontil 2009, theorem 4).
    """

    cover: CoverType = ProportionalCover
    num_samples: int = 10_000
    failure_probability: float = 0.05
    seed: int = 0

    name: ClassVar[str] = "window cover, known scores, 95% by sampling"
    provenance: ClassVar[str] = "derived here"

    def __post_init__(self) -> None:
        if self.num_samples < 2 or not 0 < self.failure_probability < 1:
            raise SettingError(
                f"invalid num_samples {self.num_samples} or failure_probability {self.failure_probability}; use at "
                "least 2 samples and a failure_probability between 0 and 1"
            )

    def value(self, case: Extrapolation) -> float:
        """Return the upper confidence bound on the risk at the test length."""
        expected_counts = count_summands(case, self.cover)
        rng = stream(self.seed, "cut", case.train_length, case.test_length)
        total_count = sum(expected_counts.values())
        sizes = rng.multinomial(self.num_samples, np.array(list(expected_counts.values())) / total_count).tolist()
        losses = [_sample_losses(case, *sample, rng) for sample in zip(expected_counts, sizes, strict=True)]
        return total_count * bernstein_upper_bound(np.concatenate(losses), self.failure_probability)


def _sample_losses(case: Extrapolation, summand: Summand, num_samples: int, rng: np.random.Generator) -> Losses:
    law = summand.law(case.law)
    tokens, sets, _ = law.sample_arrays(case.train_length, num_samples, rng)
    labels = law.label_law[law.tuple_codes(np.take_along_axis(tokens, sets, axis=1))]
    return WindowLoss(summand.window, case.loss).evaluate(case.attention, tokens, sets, labels)


def bernstein_upper_bound(values: Float[np.ndarray, " samples"], failure_probability: float) -> float:
    """Return a bound that the mean of independent values in [0, 1] exceeds with at most ``failure_probability``."""
    size, log_factor = len(values), log(2 / failure_probability)
    variance = float(values.var(ddof=1))
    return float(values.mean()) + sqrt(2 * variance * log_factor / size) + 7 * log_factor / (3 * (size - 1))
