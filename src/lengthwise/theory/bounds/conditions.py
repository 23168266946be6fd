"""Conditions of the bounds: regularity of the placement and the factor kappa, with their errors."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import LengthwiseError, SettingError
from lengthwise.tasks.planted.placement import Placement
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention

# Two flags: True if the planted run has a joint on its left, and True if it has a joint on its right.
Joints = tuple[bool, bool]


class BoundError(LengthwiseError):
    """Error for a failed condition of a bound; the message gives the condition, its value, and a counterexample."""


def require_finite(value: float, condition: str, counterexample: str) -> float:
    """Return ``value``, or raise ``BoundError`` with the text ``condition`` if the value is infinite."""
    if not math.isfinite(value):
        raise BoundError(f"{condition} (value {value}; see counterexample '{counterexample}')")
    return value


def check_train_length(train_length: int, test_length: int, span: int, min_spans: int) -> None:
    """Raise ``BoundError`` if ``train_length`` is below ``min_spans`` spans or above ``test_length``."""
    if test_length < train_length:
        raise BoundError(f"test length {test_length} is below training length {train_length}; use a longer test length")
    if train_length < min_spans * span:
        raise BoundError(
            f"training length {train_length} is below {min_spans} times the span of {span}; train at "
            f"{min_spans * span} or longer (see counterexample 'unbounded reach')"
        )


def planted_shapes(placement: Placement, lengths: Iterable[int]) -> Int[np.ndarray, "shapes k"]:
    """Return the shapes with positive probability at one of the lengths, in lexicographic order."""
    shapes: set[tuple[int, ...]] = set()
    for length in lengths:
        law = placement.law(length)
        shapes.update(map(tuple, law.shapes[law.probability.any(axis=1)].tolist()))
    return np.array(sorted(shapes))


def shape_probabilities(
    placement: Placement, shapes: Int[np.ndarray, "shapes k"], length: int
) -> Float[np.ndarray, "shapes length"]:
    """Return the probability of each shape at each start; it is 0 for shapes that the placement does not have."""
    law = placement.law(length)
    by_shape = dict(zip(map(tuple, law.shapes.tolist()), law.probability, strict=True))
    return np.array([by_shape.get(tuple(shape), np.zeros(length)) for shape in shapes.tolist()])


def regularity_ratio(placement: Placement, test_length: int, train_length: int) -> float:
    """Return ``max Q_test(o, c) / Q_train(o, c')`` over shapes o and all starts c, c' that fit. Reconstructed.

    This is one side of the regularity assumption of Golowich et al. 2025 (arXiv 2502.16792, section 4). The value is
    infinite if a shape of the test length has probability 0 at some start of the training length.
    """
    shapes = planted_shapes(placement, [test_length])
    _, high = _probability_range(placement, shapes, test_length)
    low, _ = _probability_range(placement, shapes, train_length)
    return float(safe_ratio(high, low).max())


def regularity_constant(placement: Placement, length: int, span: int) -> float:
    """Return the smallest eta with ``1 / eta <= Q_length(o, c) / Q_l(o, c') <= eta`` for ``span <= l <= length``.

    The inequality covers all shapes o of both lengths and all starts c, c' that fit. It is the regularity of Golowich
    et al. 2025 (arXiv 2502.16792), section 4; the independence of c and c' is reconstructed. The value is infinite if
    only one of two probabilities is 0. Raises ``SettingError`` for a length below the span.
    """
    if length < span:
        raise SettingError(f"length {length} has no room for the span {span}; use a length of at least {span}")
    lengths = range(span, length + 1)
    shapes = planted_shapes(placement, lengths)
    low, high = _probability_range(placement, shapes, length)
    largest = 1.0
    for other in lengths:
        other_low, other_high = _probability_range(placement, shapes, other)
        largest = max(largest, safe_ratio(high, other_low).max(), safe_ratio(other_high, low).max())
    return float(largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartUniformity:
    """Constants of nearly uniform starts: ``low q(o) / (l - o_k) <= Q_l(o, c) <= high q(o) / (l - o_k)``."""

    shapes: Int[np.ndarray, "shapes k"]
    shape_law: Float[np.ndarray, " shapes"]
    low: float
    high: float

    @property
    def rho0(self) -> float:
        """The ratio ``high / low``: 1 for uniform starts, infinite if a set that fits has probability 0."""
        return self.high / self.low if self.low > 0 else float("inf")


def fit_uniform_starts(placement: Placement, lengths: Iterable[int]) -> StartUniformity:
    """Find the shape distribution q with the smallest ratio of the constants over all lengths. Reconstructed."""
    lengths = list(lengths)
    shapes = planted_shapes(placement, lengths)
    low, high = np.full(len(shapes), np.inf), np.zeros(len(shapes))
    for length in lengths:
        lowest, highest = _probability_range(placement, shapes, length)
        num_starts = np.maximum(length - shapes[:, -1], 0)
        low, high = np.minimum(low, lowest * num_starts), np.maximum(high, highest * num_starts)
    ratio = float(safe_ratio(high, low).max())
    total = float(high.sum())
    return StartUniformity(shapes=shapes, shape_law=high / total, low=total / ratio, high=total)


def _probability_range(
    placement: Placement, shapes: Int[np.ndarray, "shapes k"], length: int
) -> tuple[Float[np.ndarray, " shapes"], Float[np.ndarray, " shapes"]]:
    """Return the smallest and largest probability of each shape over the starts that fit, or 0 if no start fits."""
    probability = shape_probabilities(placement, shapes, length)
    fits = np.arange(length) < length - shapes[:, -1:]
    lowest = np.where(fits, probability, np.inf).min(axis=1)
    return np.where(fits.any(axis=1), lowest, 0.0), probability.max(axis=1)


def safe_ratio(above: Float[np.ndarray, " size"], below: Float[np.ndarray, " size"]) -> Float[np.ndarray, " size"]:
    """Return ``above / below``: infinity if only ``below`` is 0, and 0 if both are 0."""
    return np.divide(above, below, out=np.where(above > 0, np.inf, 0.0), where=below > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointWeight:
    """Bounds on the weight of sets that cross a joint, relative to the weight before the deletion of tokens.

    The last axis of two is the side of the joint: left or right of the planted run. ``swap_ratio`` is the largest ratio
    of two scores that differ only in tokens beyond the joint. ``log_crossing`` is the log of the largest weight that
    can cross the joint, and ``log_planted`` is the log score of the planted set. Derived here.
    """

    swap_ratio: Float[np.ndarray, "tuples 2"]
    log_crossing: Float[np.ndarray, "tuples 2"]
    log_planted: Float[np.ndarray, "shapes tuples"]

    def kappa_from_swaps(self, joints: Joints) -> Float[np.ndarray, " tuples"]:
        """Return kappa from ``swap_ratio``: each crossing set has a partner among the sets of the full sequence."""
        return np.max(np.where(joints, self.swap_ratio, 1.0), axis=1, initial=1.0)

    def kappa_from_planted_score(self, joints: Joints) -> Float[np.ndarray, "shapes tuples"]:
        """Return kappa from the planted score: 1 plus the crossing weight relative to that score."""
        with np.errstate(over="ignore", invalid="ignore"):
            relative = np.exp(self.log_crossing[None] - self.log_planted[:, :, None])  # shapes tuples 2
        # If no set crosses, the weight is 0, even relative to a planted score of 0.
        relative = np.where(self.log_crossing == -np.inf, 0.0, relative)
        return np.asarray(1 + np.where(joints, relative, 0.0).sum(axis=2))

    def kappa(self, joints: Joints) -> Float[np.ndarray, "shapes tuples"]:
        """Return the smaller of both kappas by planted shape and tuple; it is 1 without joints or for single tokens."""
        return np.minimum(self.kappa_from_swaps(joints)[None], self.kappa_from_planted_score(joints))

    def kappa_by_joints(self) -> dict[Joints, Float[np.ndarray, "shapes tuples"]]:
        """Return kappa for every combination of joints: on no side, on one side, and on both sides."""
        return {joints: self.kappa(joints) for joints in ((False, False), (True, False), (False, True), (True, True))}


def joint_weight(law: Planted, predictor: TabularAttention, shapes: Int[np.ndarray, "shapes k"]) -> JointWeight:
    """Compute the bounds of every planted tuple; all tokens beyond a joint are background tokens. Derived here."""
    sides = [
        [_compute_side_weight(law, predictor, planted, planted_on_right) for planted_on_right in (True, False)]
        for planted in law.tuples
    ]
    by_shape = dict(zip(map(tuple, predictor.shapes.tolist()), predictor.log_scores, strict=True))
    no_score = np.full(predictor.log_scores.shape[1], -np.inf)
    codes = law.tuple_codes(np.array(law.tuples))
    return JointWeight(
        swap_ratio=np.array(sides)[:, :, 0],
        log_crossing=np.array(sides)[:, :, 1],
        log_planted=np.array([by_shape.get(tuple(shape), no_score)[codes] for shape in shapes.tolist()]),
    )


def _compute_side_weight(
    law: Planted, predictor: TabularAttention, planted: tuple[int, ...], planted_on_right: bool
) -> tuple[float, float]:
    """Return the swap ratio and the log crossing weight of a joint on one side of the planted run."""
    background = np.flatnonzero(np.array(law.background) > 0)
    near_tokens = np.union1d(background, planted)
    swap_ratio, log_crossing = 1.0, -np.inf
    for shape, scores in zip(predictor.shapes, predictor.log_scores, strict=True):
        table = scores.reshape((predictor.num_tokens,) * predictor.k)
        for cut in range(1, predictor.k):
            first_tokens, last_tokens = (background, near_tokens) if planted_on_right else (near_tokens, background)
            tokens = [first_tokens] * cut + [last_tokens] * (predictor.k - cut)
            log_scores = table[np.ix_(*tokens)].reshape(len(first_tokens) ** cut, -1)
            swap_ratio = max(swap_ratio, _swap_ratio(log_scores if planted_on_right else log_scores.T))
            # The number of sets of this shape whose joint is at this cut.
            num_sets = shape[cut] - shape[cut - 1]
            log_crossing = np.logaddexp(log_crossing, np.log(num_sets) + log_scores.max())
    return swap_ratio, float(log_crossing)


def _swap_ratio(log_scores: Float[np.ndarray, "beyond near"]) -> float:
    """Return the largest ratio of two scores with the same near tokens, or 1 if both scores are 0."""
    largest, smallest = log_scores.max(axis=0), log_scores.min(axis=0)
    with np.errstate(over="ignore"):
        return float(
            np.exp(
                largest - np.where(largest > -np.inf, smallest, 0.0), where=largest > -np.inf, out=np.ones_like(largest)
            ).max()
        )
