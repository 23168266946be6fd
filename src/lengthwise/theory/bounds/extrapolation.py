"""Extrapolation from a training length to a test length: inputs of all bounds, and predictions from fitted curves."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import Local, Placement
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention
from lengthwise.theory.bounds.conditions import (
    BoundError,
    JointWeight,
    check_train_length,
    fit_uniform_starts,
    joint_weight,
    planted_shapes,
    shape_probabilities,
)
from lengthwise.theory.risk.exact_risk import (
    ConditionalRisk,
    Distance,
    Leakage,
    Loss,
    Predictor,
    TotalVariation,
    enumerated_risk,
)
from lengthwise.theory.risk.growth_curves import ASYMPTOTIC_LENGTH, fit_odds, limit_risk, secant
from lengthwise.theory.risk.laplace_risk import laplace_risks

MIN_LIMIT_RISK = 1e-12
# Tolerance for the constant rho0, which is 1 for uniform starts.
RHO0_TOLERANCE = 1e-9

ConditionalRiskFunction = Callable[[Planted, Predictor, int, Loss], ConditionalRisk]
MeanRiskFunction = Callable[[Planted, Predictor, int, Loss], float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Extrapolation:
    """Inputs of the bounds: a law, a predictor, a training length, a test length, and quantities derived from them.

    Derived quantities are computed on first use. ``conditional_risk`` returns the exact risk given each planted set.
    ``mean_risk``, if set, computes the mean of these risks at lower cost. The risk at ``test_length`` is never used.
    """

    law: Planted
    predictor: Predictor
    train_length: int
    test_length: int
    loss: Loss = field(default_factory=TotalVariation)
    conditional_risk: ConditionalRiskFunction = enumerated_risk
    mean_risk: MeanRiskFunction | None = None

    def __post_init__(self) -> None:
        # The proofs and the scores of sets that cross a joint need independent background tokens.
        self.law.check_independent()
        # Drop tuples that are never planted: they have no risk, and their scores must not affect kappa.
        object.__setattr__(self, "law", self.law.with_possible_tuples)

    @property
    def relative_predictor(self) -> TabularAttention | PositionFreeAttention:
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
        if isinstance(self.relative_predictor, PositionFreeAttention):
            raise BoundError(
                "a PositionFreeAttention is not local, because it reads sets of any span; use a TabularAttention, "
                "or the bound 'no locality' (see counterexample 'unbounded reach')"
            )
        return self.relative_predictor

    @cached_property
    def span(self) -> int:
        """The largest span in tokens of planted or scored sets; raises ``BoundError`` if it is unlimited."""
        self.check_sparsity()
        if self.law.placement.span is None:
            raise BoundError(
                f"planted sets of placement '{self.law.placement.name}' are not local; use a placement with a span "
                "(see counterexample 'growing gap')"
            )
        has_score = (self.attention.log_scores > -np.inf).any(axis=1)
        max_distance = self.attention.shapes[has_score, -1].max(initial=0)
        return max(self.law.placement.span, int(max_distance) + 1)

    def check_sparsity(self) -> None:
        """Raise ``BoundError`` if the number of planted tokens depends on the length."""
        for length in (self.train_length, self.test_length):
            k = self.law.placement.law(length).shapes.shape[1]
            if k != self.law.k:
                raise BoundError(
                    f"sequences of length {length} contain {k} planted tokens instead of {self.law.k}; use a placement "
                    "with the same number of planted tokens at all lengths (see counterexample 'growing k')"
                )

    def check_linear(self) -> None:
        """Raise ``BoundError`` if the loss is not linear, so errors may cancel, or if outputs are not probabilities."""
        if not isinstance(self.loss, (TotalVariation, Leakage)):
            raise BoundError(
                f"loss '{self.loss.name}' is not linear, so errors may cancel at the training length; use loss "
                "'tv' or 'leakage', or a bound of theorem 4.3 for loss 'norm' (see counterexample 'canceling errors')"
            )
        if isinstance(self.loss, TotalVariation):
            self.check_probabilities()

    def check_loss(self) -> None:
        """Raise ``BoundError`` for a loss that is neither linear nor the norm loss (``Distance``)."""
        if not isinstance(self.loss, Distance):
            self.check_linear()

    def check_probabilities(self) -> None:
        """Raise ``BoundError`` if a predictor value or its default is outside [0, 1], so a loss may be negative."""
        predictor = self.relative_predictor
        for value_name, outputs in (("value", predictor.values), ("default", predictor.default)):
            if not ((outputs >= 0) & (outputs <= 1)).all():
                raise BoundError(
                    f"a {value_name} of the predictor lies outside 0 to 1, so losses may cancel; use values from 0 to "
                    "1 (see counterexample 'canceling errors')"
                )

    def check_train_length(self, min_spans: int) -> int:
        """Return the span, or raise ``BoundError`` if the training length is below ``min_spans`` spans."""
        check_train_length(self.train_length, self.test_length, self.span, min_spans)
        return self.span

    @property
    def train_lengths(self) -> range:
        """The training lengths: from half of ``train_length`` (rounded up) to ``train_length``."""
        return range((self.train_length + 1) // 2, self.train_length + 1)

    @cached_property
    def shapes(self) -> Int[np.ndarray, "shapes k"]:
        """The shapes of the planted sets at the test length."""
        return planted_shapes(self.law.placement, [self.test_length])

    @cached_property
    def tuple_probabilities(self) -> Float[np.ndarray, " tuples"]:
        """The probabilities of the planted tuples."""
        return np.array(self.law.probabilities)

    def probability(self, length: int) -> Float[np.ndarray, "shapes length tuples"]:
        """Return the probability of each planted tuple by shape and start, in a sequence of ``length`` tokens."""
        return shape_probabilities(self.law.placement, self.shapes, length)[:, :, None] * self.tuple_probabilities

    @cached_property
    def joint_weight(self) -> JointWeight:
        """Bounds on the scores of sets that cross a joint, for the planted shapes at the test length."""
        return joint_weight(self.law, self.attention, self.shapes)

    @cached_property
    def risk(self) -> Callable[[int], float]:
        """Cached function that returns the risk at a length."""
        # Rounding may give a risk just below 0, and bounds multiply it by large numbers.
        return cache(lambda length: max(self._risk(length), 0.0))

    def _risk(self, length: int) -> float:
        if self.mean_risk is not None:
            return self.mean_risk(self.law, self.predictor, length, self.loss)
        return self.conditional_risk(self.law, self.predictor, length, self.loss).mean

    @cached_property
    def average_risk(self) -> float:
        """The mean risk over ``train_lengths``, which is the training objective of Golowich et al. 2025."""
        return float(np.mean([self.risk(length) for length in self.train_lengths]))

    @cached_property
    def largest_risk(self) -> float:
        """The largest risk at one of the ``train_lengths``."""
        return max(self.risk(length) for length in self.train_lengths)

    @cached_property
    def risk_table(self) -> Callable[..., Float[np.ndarray, "shapes length tuples"]]:
        """Cached function from a length and a loss to the risk given each planted set, by shape, start and tuple."""
        return cache(self._risk_table)

    def _risk_table(self, length: int, loss: Loss) -> Float[np.ndarray, "shapes length tuples"]:
        shapes = tuple(map(tuple, self.shapes.tolist()))
        uniform = Local(shapes=shapes, weights=(1 / len(shapes),) * len(shapes))
        risks_by_set = np.zeros((len(shapes), length, len(self.tuple_probabilities)))
        set_fits = shape_probabilities(uniform, self.shapes, length) > 0
        for index, (planted, labels) in enumerate(zip(self.law.tuples, self.law.labels, strict=True)):
            law = replace(self.law, tuples=(planted,), probabilities=(1.0,), labels=(labels,), placement=uniform)
            risks = self.conditional_risk(law, self.predictor, length, loss)
            # Sets are sorted by shape, then by start.
            risks_by_set[set_fits, index] = np.maximum(risks.risk, 0.0)
        return risks_by_set


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Risk at one length as predicted by an odds law (``odds``) and by a secant; ``refused`` explains its absence.

    ``low`` and ``high`` are the ends of the 95% interval of ``odds`` from the residuals of the fit. The interval is too
    narrow if no odds law fits the risk.
    """

    length: int
    odds: float | None = None
    low: float | None = None
    high: float | None = None
    secant: float | None = None
    refused: str | None = None


def predict(law: Planted, predictor: Predictor, train_length: int, length: int, loss: Loss) -> Prediction:
    """Predict the risk at ``length`` from the exact risks at the training lengths with the same shapes and starts."""
    if not isinstance(predictor, TabularAttention) or law.placement.span is None:
        return Prediction(length=length, refused="without a span, the risks at training lengths are not exact")
    shortest = (train_length + 1) // 2
    candidates = range(max(shortest, law.min_length), train_length + 1)
    lengths = [each for each in candidates if _has_same_placement(law.placement, each, length)]
    if len(lengths) < 2:
        return Prediction(
            length=length,
            refused=f"only {len(lengths)} of the training lengths {shortest} to {train_length} "
            f"have the same shapes and starts as length {length}; a curve needs 2",
        )
    try:
        risks = laplace_risks(law, predictor, lengths, loss)
    except SettingError as error:
        return Prediction(length=length, refused=str(error))
    # An odds law needs a positive limit, but a head without risk has limit 0.
    curve = fit_odds(lengths, risks, max(limit_risk(law, predictor), MIN_LIMIT_RISK))
    low, high = curve.interval(length)
    secant_risk = secant(lengths, risks, length)
    return Prediction(length=length, odds=curve.risk_at(length), low=low, high=high, secant=secant_risk)


def _has_same_placement(placement: Placement, train_length: int, length: int) -> bool:
    """Return True if starts are uniform and shapes equally distributed at both lengths and at ``ASYMPTOTIC_LENGTH``."""
    return fit_uniform_starts(placement, [train_length, length, ASYMPTOTIC_LENGTH]).rho0 <= 1 + RHO0_TOLERANCE
