"""White-box certificates: scores inside the pieces of a cover are read, so no kappa is needed. All derived here.

The error of the whole is at most the sum, over pieces, of what the sets that a piece claims would cost if the piece's
own sets were all there is. The expectation of each term is over sequences of the trained length.
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
from lengthwise.theory.attention.tabular import TabularAttention, normalized
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.sequence_cover import GridCover, Interval, Piece, ProportionalCover
from lengthwise.theory.risk.exact_risk import Leakage, Loss, Predictor, enumerated_risk, num_sequences

CoverKind = type[GridCover] | type[ProportionalCover]
# Sequences that all windows of an exact cut have together, at most.
MOST_SEQUENCES = 1 << 22


@dataclass(frozen=True, slots=True)
class Window:
    """A piece in its own token indexes: where its runs end, and which sets it claims."""

    ends: tuple[int, ...]
    core: Interval
    left: Interval
    right: Interval
    inside: bool

    def within(self, sets: Int[np.ndarray, "sets k"]) -> np.ndarray:
        """Which sets lie in one run."""
        run = np.searchsorted(self.ends, sets, side="right")
        return np.asarray(run[:, 0] == run[:, -1])

    def claimed(self, sets: Int[np.ndarray, "sets k"]) -> np.ndarray:
        """Which of them the piece claims."""
        first, last = sets[:, 0], sets[:, -1]
        inside = (first >= self.core[0]) & (last < self.core[1]) & self.inside
        left = (first >= self.left[0]) & (first < self.left[1])
        right = (last >= self.right[0]) & (last < self.right[1])
        return np.asarray(self.within(sets) & (inside | left | right))


def window_of(piece: Piece) -> Window:
    """The piece after its runs have closed up."""
    core, left, right, *runs = (
        (piece.place(start), piece.place(end - 1) + 1) if start < end else (0, 0)
        for start, end in (piece.core, piece.left, piece.right, *piece.runs)
    )
    return Window(tuple(end for _, end in runs), core, left, right, piece.inside)


@dataclass(frozen=True, slots=True)
class CutLoss:
    """What the sets that a window claims cost, relative to the weight of all sets inside its runs; in [0, 1]."""

    window: Window
    loss: Loss

    name: ClassVar[str] = "cut"

    def of(
        self,
        predictor: Predictor,
        tokens: Int[np.ndarray, "batch length"],
        planted: Int[np.ndarray, "batch k"],
        labels: Float[np.ndarray, "batch outputs"],
    ) -> Float[np.ndarray, " batch"]:
        """Where no set inside a run has weight, the window that claims the core pays for the default answer."""
        assert isinstance(predictor, TabularAttention)
        sets, log_scores, values = predictor.scored(tokens)
        within = self.window.within(sets)
        weights, total = normalized(log_scores[:, within])
        if isinstance(self.loss, Leakage):
            cost = (sets[None, within] != planted[:, None]).any(axis=2).astype(float)
            default = np.ones(len(tokens))
        else:
            cost = 1 - np.einsum("bso,bo->bs", values[:, within], labels)
            default = 1 - labels @ predictor.default
        claimed = self.window.claimed(sets[within])
        paid = (weights * cost)[:, claimed].sum(axis=1)
        return np.asarray(np.where(total > 0, paid, default * self.window.inside))


@dataclass(frozen=True, slots=True)
class Pinned:
    """The planted set of one place, at every length."""

    shape: tuple[int, ...]
    start: int

    name: ClassVar[str] = "pinned"
    summary: ClassVar[str] = "one set only"

    @property
    def k(self) -> int:
        """The size of the set."""
        return len(self.shape)

    @property
    def span(self) -> int | None:
        """What the set reaches over."""
        return self.shape[-1] + 1

    @property
    def min_length(self) -> int:
        """Up to the last planted token."""
        return self.start + self.shape[-1] + 1

    def law(self, length: int) -> ShapeLaw:
        """Probability 1."""
        return ShapeLaw(shapes=np.array([self.shape]), probability=np.eye(1, length, self.start))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Always the same."""
        return np.tile(self.start + np.array(self.shape), (size, 1))


@dataclass(frozen=True, slots=True)
class Term:
    """A window, and the set planted in it: the law that a summand of the certificate is a mean under."""

    window: Window
    placement: Pinned

    def law(self, law: Planted) -> Planted:
        """The planted law with the set at its place."""
        return replace(law, placement=self.placement)


def terms(case: Extrapolation, kind: CoverKind) -> dict[Term, float]:
    """All summands, and how often each comes on average: few different ones, however long the tested length.

    ``BoundError`` where the cover has no room, the class or the law is not local, or the loss not linear.
    """
    case.check_linear()
    cover = kind(tested=case.tested, trained=case.trained, span=case.span)
    planted = case.probability(case.tested).sum(axis=2)
    found: dict[Term, float] = defaultdict(float)
    for start in np.flatnonzero(planted.any(axis=0)).tolist():
        for piece in cover.pieces(start):
            window, place = window_of(piece), piece.place(start)
            for shape, probability in zip(case.shapes.tolist(), planted[:, start].tolist(), strict=True):
                if probability > 0:
                    found[Term(window, Pinned(tuple(shape), place))] += probability
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """``sum_S Q_N(S) sum_J E[sum of g e over the sets that J claims / sum of g over the sets inside runs of J]``."""

    cover: CoverKind = ProportionalCover

    name: ClassVar[str] = "B0"
    title: ClassVar[str] = "window cover, scores read"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, scores and values, all sequences of the trained length"

    def value(self, case: Extrapolation) -> float:
        """By enumeration: ``SettingError`` where the windows have too many sequences of the trained length."""
        windows, total = terms(case, self.cover), 0.0
        number = len(windows) * num_sequences(case.law, case.trained)
        if number > MOST_SEQUENCES:
            raise SettingError(
                f"{len(windows)} windows of {case.trained} tokens have {number:,} sequences, more than the "
                f"{MOST_SEQUENCES:,} that are enumerated; use a shorter trained length, or the sampled bound"
            )
        for term, weight in windows.items():
            loss = CutLoss(term.window, case.loss)
            total += weight * enumerated_risk(term.law(case.law), case.attention, case.trained, loss).mean
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledCut:
    """The same from ``samples`` sequences of the trained length; below the risk with probability ``failure`` at most.

    Summands are drawn by their weight, and their mean is bounded by the empirical Bernstein inequality (Maurer and
    Pontil 2009, theorem 4).
    """

    cover: CoverKind = ProportionalCover
    samples: int = 10_000
    failure: float = 0.05
    seed: int = 0

    name: ClassVar[str] = "B0_sampled"
    title: ClassVar[str] = "window cover, scores read, 95% by sampling"
    provenance: ClassVar[str] = "derived here"
    needs: ClassVar[str] = "span, scores and values, sampled sequences of the trained length"

    def __post_init__(self) -> None:
        if self.samples < 2 or not 0 < self.failure < 1:
            raise SettingError(
                f"{self.samples} samples and failure {self.failure} certify nothing; use 2 or more, and below 1"
            )

    def value(self, case: Extrapolation) -> float:
        """The upper confidence bound."""
        weights = terms(case, self.cover)
        rng = stream(self.seed, "cut", case.trained, case.tested)
        total = sum(weights.values())
        numbers = rng.multinomial(self.samples, np.array(list(weights.values())) / total)
        drawn = [_costs(case, term, number, rng) for term, number in zip(weights, numbers.tolist(), strict=True)]
        return total * bernstein_above(np.concatenate(drawn), self.failure)


def _costs(case: Extrapolation, term: Term, number: int, rng: np.random.Generator) -> Float[np.ndarray, " number"]:
    law = term.law(case.law)
    tokens, sets, _ = law.draw(case.trained, number, rng)
    labels = law.label_law[law.codes(np.take_along_axis(tokens, sets, axis=1))]
    return CutLoss(term.window, case.loss).of(case.attention, tokens, sets, labels)


def bernstein_above(values: Float[np.ndarray, " samples"], failure: float) -> float:
    """A number that the mean of independent values in [0, 1] exceeds with probability ``failure`` at most."""
    level = log(2 / failure)
    spread = float(values.var(ddof=1))
    return float(values.mean()) + sqrt(2 * spread * level / len(values)) + 7 * level / (3 * (len(values) - 1))
