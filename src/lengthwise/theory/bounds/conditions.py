"""Conditions of the bounds: the error of one that fails, regularity of the placement, and weight across joints."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import LengthwiseError, SettingError
from lengthwise.tasks.planted.placement import Placement
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention

Joints = tuple[bool, bool]


class BoundError(LengthwiseError):
    """A bound does not hold here; the message names the condition, what came, and a counterexample without it."""


def finite(value: float, what: str, counterexample: str) -> float:
    """The value, unless it is infinite; ``what`` names the condition and says what to change."""
    if not math.isfinite(value):
        raise BoundError(f"{what} (it is {value}; counterexample {counterexample} shows what happens without)")
    return value


def check_room(trained: int, tested: int, span: int, spans: int) -> None:
    """Refuse a trained length below ``spans`` times the span, and one beyond the tested length."""
    if tested < trained:
        raise BoundError(f"tested length {tested} is below trained length {trained}; bounds are for longer ones")
    if trained < spans * span:
        raise BoundError(
            f"trained length {trained} is below {spans} times the span of {span}; train at {spans * span} or longer "
            "(counterexample C2b shows what sets do that training has no room for)"
        )


def support(placement: Placement, lengths: Iterable[int]) -> Int[np.ndarray, "shapes k"]:
    """The shapes that have any probability at one of the lengths, in lexicographic order."""
    found: set[tuple[int, ...]] = set()
    for length in lengths:
        law = placement.law(length)
        found.update(map(tuple, law.shapes[law.probability.any(axis=1)].tolist()))
    return np.array(sorted(found))


def on_shapes(
    placement: Placement, shapes: Int[np.ndarray, "shapes k"], length: int
) -> Float[np.ndarray, "shapes length"]:
    """The probability of each of the given shapes at each start; 0 for shapes that the law does not have."""
    law = placement.law(length)
    row = {tuple(shape): probability for shape, probability in zip(law.shapes.tolist(), law.probability, strict=True)}
    return np.array([row.get(tuple(shape), np.zeros(length)) for shape in shapes.tolist()])


def rho(placement: Placement, tested: int, trained: int) -> float:
    """``max Q_tested(o, c) / Q_trained(o, c')`` over shapes o and all starts c, c' that fit. Reconstructed.

    One side of what Golowich et al. 2025 (arXiv 2502.16792, section 4) assume. Infinite where the trained length lacks
    a set, at any start, of a shape that the tested length has.
    """
    shapes = support(placement, [tested])
    _, high = _extremes(placement, shapes, tested)
    low, _ = _extremes(placement, shapes, trained)
    return float(quotients(high, low).max())


def eta(placement: Placement, length: int, span: int) -> float:
    """The least number that bounds, from both sides, how much the law differs between this length and shorter ones.

    ``1 / eta <= Q_length(o, c) / Q_l(o, c') <= eta`` for ``span <= l <= length``, all shapes o that either has and all
    starts that fit. Regularity as in Golowich et al. 2025 (arXiv 2502.16792), section 4; that the starts vary on their
    own is reconstructed. Infinite where one side vanishes; ``SettingError`` for a length below the span.
    """
    if length < span:
        raise SettingError(f"length {length} has no room for the span {span}; eta compares lengths from the span on")
    lengths = range(span, length + 1)
    shapes = support(placement, lengths)
    low, high = _extremes(placement, shapes, length)
    worst = 1.0
    for each in lengths:
        low_there, high_there = _extremes(placement, shapes, each)
        worst = max(worst, quotients(high, low_there).max(), quotients(high_there, low).max())
    return float(worst)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniformity:
    """``low q(o) / (l - o_k) <= Q_l(o, c) <= high q(o) / (l - o_k)``: one law of shapes, places about uniform."""

    shapes: Int[np.ndarray, "shapes k"]
    shape_law: Float[np.ndarray, " shapes"]
    low: float
    high: float

    @property
    def rho0(self) -> float:
        """1 for a uniform place; infinite where a set that fits is left out."""
        return self.high / self.low if self.low > 0 else float("inf")


def uniformity(placement: Placement, lengths: Iterable[int]) -> Uniformity:
    """The law of shapes with the smallest ratio of the two constants, over all given lengths. Reconstructed."""
    lengths = list(lengths)
    shapes = support(placement, lengths)
    low, high = np.full(len(shapes), np.inf), np.zeros(len(shapes))
    for length in lengths:
        least, most = _extremes(placement, shapes, length)
        places = length - shapes[:, -1]
        low, high = np.minimum(low, least * np.maximum(places, 0)), np.maximum(high, most * np.maximum(places, 0))
    ratio = float(quotients(high, low).max())
    total = float(high.sum())
    return Uniformity(shapes=shapes, shape_law=high / total, low=total / ratio, high=total)


def _extremes(
    placement: Placement, shapes: Int[np.ndarray, "shapes k"], length: int
) -> tuple[Float[np.ndarray, " shapes"], Float[np.ndarray, " shapes"]]:
    """The smallest and the largest probability of each shape over the starts that fit; both 0 where none does."""
    probability = on_shapes(placement, shapes, length)
    fits = np.arange(length) < length - shapes[:, -1:]
    low = np.where(fits, probability, np.inf).min(axis=1)
    return np.where(fits.any(axis=1), low, 0.0), probability.max(axis=1)


def quotients(above: Float[np.ndarray, " shapes"], below: Float[np.ndarray, " shapes"]) -> Float[np.ndarray, " shapes"]:
    """Quotients, infinite where only the lower number is 0, 0 where both are."""
    return np.divide(above, below, out=np.where(above > 0, np.inf, 0.0), where=below > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointWeight:
    """How the weight of sets that cross a joint compares with the weight of the sequence before tokens were deleted.

    Of each planted tuple, for a joint left and right of the planted run: ``swap``, the largest ratio of two scores that
    differ in the tokens beyond the joint alone; ``crossing``, the log of the largest weight that can cross the joint.
    ``peak`` is the log score of the planted set itself. Derived here.
    """

    swap: Float[np.ndarray, "tuples 2"]
    crossing: Float[np.ndarray, "tuples 2"]
    peak: Float[np.ndarray, "shapes tuples"]

    def bounded_ratio(self, joints: Joints) -> Float[np.ndarray, " tuples"]:
        """Kappa from the swap: a crossing set has a twin in the whole sequence that shares its tokens on one side."""
        return np.max(np.where(joints, self.swap, 1.0), axis=1, initial=1.0)

    def planted_peak(self, joints: Joints) -> Float[np.ndarray, "shapes tuples"]:
        """Kappa from the peak: one plus what can cross, relative to the score of the planted set."""
        with np.errstate(over="ignore", invalid="ignore"):
            relative = np.exp(self.crossing[None] - self.peak[:, :, None])  # shapes tuples 2
        # Nothing crosses: no weight, also relative to a score of 0.
        relative = np.where(self.crossing == -np.inf, 0.0, relative)
        return np.asarray(1 + np.where(joints, relative, 0.0).sum(axis=2))

    def kappa(self, joints: Joints) -> Float[np.ndarray, "shapes tuples"]:
        """The smaller of the two, for each planted shape and tuple; 1 without joints or for single tokens."""
        return np.minimum(self.bounded_ratio(joints)[None], self.planted_peak(joints))

    def by_joints(self) -> dict[Joints, Float[np.ndarray, "shapes tuples"]]:
        """Kappa for joints on no side, on one, on both."""
        return {joints: self.kappa(joints) for joints in ((False, False), (True, False), (False, True), (True, True))}


def joint_weight(law: Planted, predictor: TabularAttention, shapes: Int[np.ndarray, "shapes k"]) -> JointWeight:
    """The quantities for every planted tuple; beyond a joint stand background tokens alone. Derived here."""
    sides = [[_across(law, predictor, planted, far_first) for far_first in (True, False)] for planted in law.tuples]
    row = {tuple(shape): scores for shape, scores in zip(predictor.shapes.tolist(), predictor.log_scores, strict=True)}
    nothing = np.full(predictor.log_scores.shape[1], -np.inf)
    codes = law.codes(np.array(law.tuples))
    return JointWeight(
        swap=np.array(sides)[:, :, 0],
        crossing=np.array(sides)[:, :, 1],
        peak=np.array([row.get(tuple(shape), nothing)[codes] for shape in shapes.tolist()]),
    )


def _across(
    law: Planted, predictor: TabularAttention, planted: tuple[int, ...], far_first: bool
) -> tuple[float, float]:
    """The swap ratio and the log crossing weight of one joint; ``far_first`` where the planted run is on the right."""
    drawn = np.flatnonzero(np.array(law.background) > 0)
    near = np.union1d(drawn, planted)
    swap, crossing = 1.0, -np.inf
    for shape, scores in zip(predictor.shapes, predictor.log_scores, strict=True):
        table = scores.reshape((predictor.num_tokens,) * predictor.k)
        for cut in range(1, predictor.k):
            first, last = (drawn, near) if far_first else (near, drawn)
            tokens = [first] * cut + [last] * (predictor.k - cut)
            shown = table[np.ix_(*tokens)].reshape(len(first) ** cut, -1)
            swap = max(swap, _swap(shown if far_first else shown.T))
            # So many sets of the shape have this cut at the joint.
            starts = shape[cut] - shape[cut - 1]
            crossing = np.logaddexp(crossing, np.log(starts) + shown.max())
    return swap, float(crossing)


def _swap(log_scores: Float[np.ndarray, "beyond near"]) -> float:
    """The largest ratio of two scores with the same near tokens; two scores of 0 are alike."""
    top, least = log_scores.max(axis=0), log_scores.min(axis=0)
    with np.errstate(over="ignore"):
        return float(
            np.exp(top - np.where(top > -np.inf, least, 0.0), where=top > -np.inf, out=np.ones_like(top)).max()
        )
