"""Inputs of all bounds and their conditions: regularity of the placement, and the factor kappa."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import LengthwiseError, SettingError
from lengthwise.tasks.planted.placement import LocalPlacement, Placement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention
from lengthwise.theory.risk.exact_risk import (
    AttentionLeakageLoss,
    ConditionalRisk,
    Loss,
    NormLoss,
    Predictor,
    TotalVariationLoss,
    enumerated_risk,
)

# Two flags: True if the planted run has a cut on its left, and True if it has a cut on its right.
Cuts = tuple[bool, bool]


class BoundError(LengthwiseError):
    """Error for a failed condition of a bound; the message gives the condition, its value, and a counterexample."""


def require_finite(value: float, condition: str, counterexample: str) -> float:
    """Return ``value``, or raise ``BoundError`` with the message ``condition`` if it is infinite or NaN."""
    if not math.isfinite(value):
        raise BoundError(f"{condition} (value {value}; see counterexample '{counterexample}')")
    return value


def planted_offset_patterns(placement: Placement, lengths: Iterable[int]) -> Int[np.ndarray, "shapes k"]:
    """Return the shapes with positive probability at one or more of the lengths, in lexicographic order."""
    shapes: set[tuple[int, ...]] = set()
    for length in lengths:
        law = placement.offset_distribution(length)
        shapes.update(map(tuple, law.shapes[law.probability.any(axis=1)].tolist()))
    return np.array(sorted(shapes))


def shape_probabilities(
    placement: Placement, shapes: Int[np.ndarray, "shapes k"], length: int
) -> Float[np.ndarray, "shapes length"]:
    """Return the probability of a planted set of each shape at each start, 0 for shapes that the length lacks."""
    law = placement.offset_distribution(length)
    probability_by_shape = dict(zip(map(tuple, law.shapes.tolist()), law.probability, strict=True))
    return np.array([probability_by_shape.get(tuple(shape), np.zeros(length)) for shape in shapes.tolist()])


def regularity_ratio(placement: Placement, test_length: int, train_length: int) -> float:
    """Return ``max Q_test(o, c) / Q_train(o, c')`` over all shapes o and all starts c and c' that fit.

    ``Q(o, c)`` is the probability of a planted set of shape o at start c. This is one side of the regularity assumption
    of Golowich et al. 2025 (arXiv 2502.16792, section 4), as reconstructed here. The value is infinite if a shape of
    the test length has probability 0 at some start of the training length.
    """
    shapes = planted_offset_patterns(placement, [test_length])
    _, max_test_probability = _probability_range(placement, shapes, test_length)
    min_train_probability, _ = _probability_range(placement, shapes, train_length)
    return float(safe_ratio(max_test_probability, min_train_probability).max())


def regularity_constant(placement: Placement, length: int, span: int) -> float:
    """Return the smallest eta with ``1 / eta <= Q_length(o, c) / Q_l(o, c') <= eta`` for ``span <= l <= length``.

    ``Q_l(o, c)`` is the probability of a planted set of shape o at start c in l tokens. The inequality covers all
    shapes o of both lengths and all starts c and c' that fit. It is the regularity assumption of Golowich et al. 2025
    (arXiv 2502.16792), section 4; the independence of c and c' is reconstructed. The value is infinite if only one of
    two probabilities is 0. Raises ``SettingError`` for a length below the span.
    """
    if length < span:
        raise SettingError(f"length {length} has no room for the span {span}; use a length of at least {span} tokens")
    lengths = range(span, length + 1)
    shapes = planted_offset_patterns(placement, lengths)
    min_probability, max_probability = _probability_range(placement, shapes, length)
    eta = 1.0
    for other_length in lengths:
        other_min, other_max = _probability_range(placement, shapes, other_length)
        eta = max(eta, safe_ratio(max_probability, other_min).max(), safe_ratio(other_max, min_probability).max())
    return float(eta)


def start_offset_uniformity(placement: Placement, lengths: Iterable[int]) -> float:
    """Return rho0: the smallest ratio of two factors that bound ``Q_l(o, c) (l - o_k) / q(o)`` at all ``lengths`` l.

    ``Q_l(o, c)`` is the probability of a planted set of shape o at start c in l tokens, ``l - o_k`` is the number of
    starts, and q is any distribution over the shapes. It is 1 for uniform starts, and infinite if a fitting set has
    probability 0. Reconstructed.
    """
    lengths = list(lengths)
    shapes = planted_offset_patterns(placement, lengths)
    lower, upper = np.full(len(shapes), np.inf), np.zeros(len(shapes))
    for length in lengths:
        min_probability, max_probability = _probability_range(placement, shapes, length)
        num_starts = np.maximum(length - shapes[:, -1], 0)
        lower = np.minimum(lower, min_probability * num_starts)
        upper = np.maximum(upper, max_probability * num_starts)
    return float(safe_ratio(upper, lower).max())


def _probability_range(
    placement: Placement, shapes: Int[np.ndarray, "shapes k"], length: int
) -> tuple[Float[np.ndarray, " shapes"], Float[np.ndarray, " shapes"]]:
    """Return the smallest and the largest probability of each shape over the starts that fit, or 0 if none fits."""
    probability = shape_probabilities(placement, shapes, length)
    start_fits = np.arange(length) < length - shapes[:, -1:]
    min_probability = np.where(start_fits, probability, np.inf).min(axis=1)
    return np.where(start_fits.any(axis=1), min_probability, 0.0), probability.max(axis=1)


def safe_ratio(
    numerator: Float[np.ndarray, " size"], denominator: Float[np.ndarray, " size"]
) -> Float[np.ndarray, " size"]:
    """Return ``numerator / denominator``: infinity if only the denominator is 0, and 0 if both are 0."""
    return np.divide(numerator, denominator, out=np.where(numerator > 0, np.inf, 0.0), where=denominator > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCutScores:
    """Bounds on the scores of sets that cross a cut, which is a place where tokens between two runs were deleted.

    The last axis of ``swap_ratio`` and ``log_crossing`` has two entries: a cut on the left of the run with the
    planted set, and a cut on its right. ``swap_ratio`` is the largest ratio of the scores of two sets that differ
    only in tokens beyond the cut. ``log_crossing`` is the log of the largest total score of the sets that cross the
    cut. ``log_planted_score`` is the log score of the planted set. Derived here.
    """

    swap_ratio: Float[np.ndarray, "tuples 2"]
    log_crossing: Float[np.ndarray, "tuples 2"]
    log_planted_score: Float[np.ndarray, "shapes tuples"]

    def kappa_from_swaps(self, cuts: Cuts) -> Float[np.ndarray, " tuples"]:
        """Return kappa from ``swap_ratio``: each set that crosses a cut has a partner set in the full sequence."""
        return np.max(np.where(cuts, self.swap_ratio, 1.0), axis=1, initial=1.0)

    def kappa_from_planted_score(self, cuts: Cuts) -> Float[np.ndarray, "shapes tuples"]:
        """Return kappa from the planted score: 1 plus the total score across the cuts relative to that score."""
        with np.errstate(over="ignore", invalid="ignore"):
            relative_weight = np.exp(self.log_crossing[None] - self.log_planted_score[:, :, None])  # shapes tuples 2
        # If no set crosses, the weight is 0, even relative to a planted score of 0.
        relative_weight = np.where(self.log_crossing == -np.inf, 0.0, relative_weight)
        return np.asarray(1 + np.where(cuts, relative_weight, 0.0).sum(axis=2))

    def kappa(self, cuts: Cuts) -> Float[np.ndarray, "shapes tuples"]:
        """Return the minimum of ``kappa_from_swaps`` and ``kappa_from_planted_score``; it is 1 without cuts."""
        return np.minimum(self.kappa_from_swaps(cuts)[None], self.kappa_from_planted_score(cuts))

    def kappa_by_cuts(self) -> dict[Cuts, Float[np.ndarray, "shapes tuples"]]:
        """Return kappa for every combination of cuts: on no side of the planted run, on one side, and on both."""
        return {cuts: self.kappa(cuts) for cuts in ((False, False), (True, False), (False, True), (True, True))}


def cross_cut_scores(
    law: PlantedCorrelations, predictor: TabularAttention, shapes: Int[np.ndarray, "shapes k"]
) -> CrossCutScores:
    """Compute ``CrossCutScores`` for all planted tuples; tokens beyond a cut are background tokens. Derived here."""
    side_weights = np.array(
        [
            [_compute_side_weight(law, predictor, planted, on_right) for on_right in (True, False)]
            for planted in law.tuples
        ]
    )
    by_shape = dict(zip(map(tuple, predictor.shapes.tolist()), predictor.log_scores, strict=True))
    zero, codes = np.full(predictor.log_scores.shape[1], -np.inf), law.tuple_codes(np.array(law.tuples))
    planted_score = np.array([by_shape.get(tuple(shape), zero)[codes] for shape in shapes.tolist()])
    swap_ratio, log_crossing = side_weights[:, :, 0], side_weights[:, :, 1]
    return CrossCutScores(swap_ratio=swap_ratio, log_crossing=log_crossing, log_planted_score=planted_score)


def _compute_side_weight(
    law: PlantedCorrelations, predictor: TabularAttention, planted_tuple: tuple[int, ...], planted_on_right: bool
) -> tuple[float, float]:
    """Return ``swap_ratio`` and ``log_crossing`` of one planted tuple, for a cut on one side of the planted run."""
    background = np.flatnonzero(law.independent_background > 0)
    near_tokens = np.union1d(background, planted_tuple)
    swap_ratio, log_crossing = 1.0, -np.inf
    for shape, scores in zip(predictor.shapes, predictor.log_scores, strict=True):
        score_table = scores.reshape((predictor.num_tokens,) * predictor.k)
        for num_before_cut in range(1, predictor.k):
            first_tokens, last_tokens = (background, near_tokens) if planted_on_right else (near_tokens, background)
            tokens = [first_tokens] * num_before_cut + [last_tokens] * (predictor.k - num_before_cut)
            log_scores = score_table[np.ix_(*tokens)].reshape(len(first_tokens) ** num_before_cut, -1)
            swap_ratio = max(swap_ratio, _compute_swap_ratio(log_scores if planted_on_right else log_scores.T))
            # The number of sets of this shape with ``num_before_cut`` tokens before the cut.
            num_crossing_sets = shape[num_before_cut] - shape[num_before_cut - 1]
            log_crossing = np.logaddexp(log_crossing, np.log(num_crossing_sets) + log_scores.max())
    return swap_ratio, float(log_crossing)


def _compute_swap_ratio(log_scores: Float[np.ndarray, "beyond near"]) -> float:
    """Return the largest ratio of two scores that differ only in tokens beyond the cut, or 1 if both are 0."""
    largest, smallest = log_scores.max(axis=0), log_scores.min(axis=0)
    is_positive = largest > -np.inf
    with np.errstate(over="ignore"):
        log_ratios = largest - np.where(is_positive, smallest, 0.0)
        return float(np.exp(log_ratios, where=is_positive, out=np.ones_like(largest)).max())


ConditionalRiskFunction = Callable[[PlantedCorrelations, Predictor, int, Loss], ConditionalRisk]
MeanRiskFunction = Callable[[PlantedCorrelations, Predictor, int, Loss], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundInputs:
    """Inputs of the bounds: a law, a predictor, a training length, a test length, and quantities derived from them.

    Derived quantities are computed on first use. ``conditional_risk`` returns the exact risk given each planted set.
    ``mean_risk``, if set, computes the mean of these risks at lower cost. The risk at ``test_length`` is never used.
    """

    law: PlantedCorrelations
    predictor: Predictor
    train_length: int
    test_length: int
    loss: Loss = field(default_factory=TotalVariationLoss)
    conditional_risk: ConditionalRiskFunction = enumerated_risk
    mean_risk: MeanRiskFunction | None = None

    def __post_init__(self) -> None:
        # The proofs and the scores of sets that cross a cut need independent background tokens.
        self.law.check_independent()
        # Drop tuples that are never planted: they have no risk, and their scores must not affect kappa.
        object.__setattr__(self, "law", self.law.drop_impossible_tuples)

    @property
    def position_free_predictor(self) -> TabularAttention | PositionFreeAttention:
        """The predictor; raises ``BoundError`` if it may read positions, ``SettingError`` if its sizes do not fit."""
        if not isinstance(self.predictor, (TabularAttention, PositionFreeAttention)):
            raise BoundError(
                f"{type(self.predictor).__name__} may depend on absolute positions; use a TabularAttention (see "
                "counterexample 'absolute positions')"
            )
        predictor_sizes = self.predictor.num_tokens, self.predictor.k
        if predictor_sizes != (self.law.num_tokens, self.law.k):
            raise SettingError(
                f"the predictor reads {predictor_sizes[1]} of {predictor_sizes[0]} token IDs per set, but the law "
                f"plants {self.law.k} of {self.law.num_tokens}; use the same set size and vocabulary size for both"
            )
        return self.predictor

    @property
    def attention(self) -> TabularAttention:
        """The predictor; raises ``BoundError`` unless its class is relative and local.

        A relative class ignores absolute positions; a local class reads only sets of a limited span.
        """
        if isinstance(self.position_free_predictor, PositionFreeAttention):
            raise BoundError(
                "a PositionFreeAttention is not local, because it reads sets of any span; use a TabularAttention, "
                "or the bound 'no locality' (see counterexample 'unbounded reach')"
            )
        return self.position_free_predictor

    @cached_property
    def span(self) -> int:
        """The largest span in tokens of planted or scored sets; raises ``BoundError`` if it is unlimited."""
        self.check_sparsity()
        if self.law.placement.max_span is None:
            raise BoundError(
                f"planted sets of placement '{self.law.placement.name}' are not local; use a placement with a span "
                "(see counterexample 'growing gap')"
            )
        has_score = (self.attention.log_scores > -np.inf).any(axis=1)
        max_distance = self.attention.shapes[has_score, -1].max(initial=0)
        return max(self.law.placement.max_span, int(max_distance) + 1)

    def check_sparsity(self) -> None:
        """Raise ``BoundError`` if the number of planted tokens depends on the length."""
        for length in (self.train_length, self.test_length):
            k = self.law.placement.offset_distribution(length).shapes.shape[1]
            if k != self.law.k:
                raise BoundError(
                    f"sequences of length {length} contain {k} planted tokens instead of {self.law.k}; use a placement "
                    "with the same number of planted tokens at all lengths (see counterexample 'growing k')"
                )

    def check_linear_loss(self) -> None:
        """Raise ``BoundError`` if the loss is not linear, so errors may cancel, or if outputs are not probabilities."""
        if not isinstance(self.loss, (TotalVariationLoss, AttentionLeakageLoss)):
            raise BoundError(
                f"loss '{self.loss.name}' is not linear, so errors may cancel at the training length; use loss "
                "'tv' or 'leakage', or a bound of theorem 4.3 for loss 'norm' (see counterexample 'canceling errors')"
            )
        if isinstance(self.loss, TotalVariationLoss):
            self.check_probabilities()

    def check_supported_loss(self) -> None:
        """Raise ``BoundError`` for a loss that is neither linear nor the norm loss (``NormLoss``)."""
        if not isinstance(self.loss, NormLoss):
            self.check_linear_loss()

    def check_probabilities(self) -> None:
        """Raise ``BoundError`` if a predictor value or its default is outside [0, 1], so a loss may be negative."""
        predictor = self.position_free_predictor
        for value_name, outputs in (("value", predictor.values), ("default", predictor.default)):
            if not ((outputs >= 0) & (outputs <= 1)).all():
                raise BoundError(
                    f"a {value_name} of the predictor lies outside 0 to 1, so losses may cancel; use values from 0 to "
                    "1 (see counterexample 'canceling errors')"
                )

    def check_train_length(self, min_spans: int, span: int | None = None) -> int:
        """Return the span, or raise ``BoundError`` if the training length is below ``min_spans`` spans."""
        span = self.span if span is None else span
        if self.test_length < self.train_length:
            raise BoundError(
                f"test length {self.test_length} is below training length {self.train_length}; use a longer test length"
            )
        if self.train_length < min_spans * span:
            raise BoundError(
                f"training length {self.train_length} is below {min_spans} times the span of {span} tokens; train at "
                f"length {min_spans * span} or above (see counterexample 'unbounded reach')"
            )
        return span

    @property
    def train_lengths(self) -> range:
        """The training lengths: from half of ``train_length`` (rounded up) to ``train_length``."""
        return range((self.train_length + 1) // 2, self.train_length + 1)

    @cached_property
    def offset_patterns(self) -> Int[np.ndarray, "shapes k"]:
        """The shapes of the planted sets at the test length."""
        return planted_offset_patterns(self.law.placement, [self.test_length])

    @cached_property
    def tuple_probabilities(self) -> Float[np.ndarray, " tuples"]:
        """The probabilities of the planted tuples."""
        return np.array(self.law.probabilities)

    def set_probabilities(self, length: int) -> Float[np.ndarray, "shapes length tuples"]:
        """Return the probability of each planted tuple by shape and start, in a sequence of ``length`` tokens."""
        return (
            shape_probabilities(self.law.placement, self.offset_patterns, length)[:, :, None] * self.tuple_probabilities
        )

    @cached_property
    def cross_cut_scores(self) -> CrossCutScores:
        """Bounds on the scores of sets that cross a cut, for the planted shapes at the test length."""
        return cross_cut_scores(self.law, self.attention, self.offset_patterns)

    @cached_property
    def risk_at(self) -> Callable[[int], float]:
        """Cached function that returns the risk at a length."""
        # Rounding may give a risk just below 0, and bounds multiply it by large numbers.
        mean_risk = self.mean_risk or (lambda *case: self.conditional_risk(*case).mean)
        return cache(lambda length: max(mean_risk(self.law, self.predictor, length, self.loss), 0.0))

    @cached_property
    def mean_training_risk(self) -> float:
        """The mean risk over ``train_lengths``, which is the training objective of Golowich et al. 2025."""
        return float(np.mean([self.risk_at(length) for length in self.train_lengths]))

    @cached_property
    def largest_training_risk(self) -> float:
        """The largest risk at one of the ``train_lengths``."""
        return max(self.risk_at(length) for length in self.train_lengths)

    @cached_property
    def conditional_risk_table(self) -> Callable[..., Float[np.ndarray, "shapes length tuples"]]:
        """Cached function from a length and a loss to the risk given each planted set, by shape, start and tuple."""
        return cache(self._compute_risk_table)

    def _compute_risk_table(self, length: int, loss: Loss) -> Float[np.ndarray, "shapes length tuples"]:
        shapes = tuple(map(tuple, self.offset_patterns.tolist()))
        uniform = LocalPlacement(shapes=shapes, weights=(1 / len(shapes),) * len(shapes))
        risks_by_set = np.zeros((len(shapes), length, len(self.tuple_probabilities)))
        set_fits = shape_probabilities(uniform, self.offset_patterns, length) > 0
        for index, (planted, labels) in enumerate(zip(self.law.tuples, self.law.labels, strict=True)):
            law = replace(self.law, tuples=(planted,), probabilities=(1.0,), labels=(labels,), placement=uniform)
            risks = self.conditional_risk(law, self.predictor, length, loss)
            # Sets are sorted by shape, then by start.
            risks_by_set[set_fits, index] = np.maximum(risks.risk, 0.0)
        return risks_by_set
