"""Risks at any length by the best available method: exact if possible, otherwise sampled with an interval."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError
from lengthwise.core.intervals import t_critical_value
from lengthwise.tasks.planted.placement import ShapeLaw
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import ConditionalRisk, Distance, Loss, Predictor, enumerated_risk
from lengthwise.theory.risk.laplace_risk import laplace_risk, placement_risks

# The number of tokens per block, and the tolerance for losses outside [0, 1].
BLOCK_TOKENS = 1 << 18
LOSS_TOLERANCE = 1e-9
# The number of sequences to sample if no exact method applies.
NUM_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class SampledRisk:
    """Losses of sampled sequences; the loss of a sequence is its expected loss over the label."""

    losses: Float[np.ndarray, " size"]

    @property
    def mean(self) -> float:
        """The mean of the losses, which estimates the risk."""
        return float(self.losses.mean())

    @property
    def standard_error(self) -> float:
        """The standard error of the mean; raises ``SettingError`` for a single sequence."""
        return math.sqrt(_variance(self.losses) / len(self.losses))

    def bernstein_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the empirical Bernstein interval of the risk for losses in [0, 1]; low variance makes it narrow."""
        return bernstein_interval(self.losses, confidence)

    def hoeffding_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the Hoeffding interval of the risk for losses in [0, 1]; its width depends only on their number."""
        return hoeffding_interval(self.losses, confidence)

    def student_interval(self) -> tuple[float, float]:
        """Return the approximate 95% interval of the risk, also for unbounded losses such as the log loss."""
        margin = t_critical_value(len(self.losses) - 1) * self.standard_error
        return self.mean - margin, self.mean + margin


def sampled_risk(
    law: Planted, predictor: Predictor, length: int, loss: Loss, size: int, rng: np.random.Generator
) -> SampledRisk:
    """Sample ``size`` sequences of ``length`` tokens from the law and evaluate the loss of the predictor on each."""
    if size < 1:
        raise SettingError(f"invalid sample size {size}; use at least 1 sequence")
    block_size = max(1, BLOCK_TOKENS // length)
    losses = []
    for block_start in range(0, size, block_size):
        tokens, sets, _ = law.sample_arrays(length, min(block_size, size - block_start), rng)
        labels = law.label_law[law.tuple_codes(np.take_along_axis(tokens, sets, axis=1))]
        losses.append(loss.evaluate(predictor, tokens, sets, labels))
    return SampledRisk(np.concatenate(losses))


def bernstein_interval(values: Float[np.ndarray, " size"], confidence: float = 0.95) -> tuple[float, float]:
    """Return the empirical Bernstein interval for the mean of values in [0, 1] (Maurer and Pontil 2009)."""
    _check_losses(values, confidence)
    num_values, log_factor = len(values), math.log(4 / (1 - confidence))
    margin = math.sqrt(2 * _variance(values) * log_factor / num_values) + 7 * log_factor / (3 * (num_values - 1))
    return _clip_interval(float(values.mean()), margin)


def hoeffding_interval(values: Float[np.ndarray, " size"], confidence: float = 0.95) -> tuple[float, float]:
    """Return the Hoeffding interval for the mean of independent values in [0, 1] (Hoeffding 1963)."""
    _check_losses(values, confidence)
    return _clip_interval(float(values.mean()), math.sqrt(math.log(2 / (1 - confidence)) / (2 * len(values))))


def _variance(losses: Float[np.ndarray, " size"]) -> float:
    if len(losses) < 2:
        raise SettingError(
            f"{len(losses)} value has no variance; sample at least 2 sequences, or use hoeffding_interval()"
        )
    return float(losses.var(ddof=1))


def _clip_interval(mean: float, margin: float) -> tuple[float, float]:
    return max(0.0, mean - margin), min(1.0, mean + margin)


def _check_losses(losses: Float[np.ndarray, " size"], confidence: float) -> None:
    if not 0 < confidence < 1:
        raise SettingError(f"invalid confidence {confidence}; use a number between 0 and 1, such as 0.95")
    min_loss, max_loss = float(losses.min()), float(losses.max())
    if not (min_loss >= -LOSS_TOLERANCE and max_loss <= 1 + LOSS_TOLERANCE):
        raise SettingError(
            f"losses from {min_loss:.3g} to {max_loss:.3g} lie outside [0, 1]; use SampledRisk.student_interval()"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskEstimate:
    """A risk with its 95% interval (``low`` to ``high``, equal if exact); ``how`` is "exact" or names the sample."""

    risk: float
    low: float
    high: float
    how: str


def conditional_risk(law: Planted, predictor: Predictor, length: int, loss: Loss) -> ConditionalRisk:
    """Return the exact risk given each planted set: at any length if the law has a span, else by enumeration."""
    if not isinstance(predictor, TabularAttention) or law.placement.span is None or isinstance(loss, Distance):
        return enumerated_risk(law, predictor, length, loss)
    placement = law.placement.law(length)
    sets, probability = placement.sets()
    set_laws = [
        ShapeLaw(shapes=placement.shapes[[shape]], probability=np.eye(1, length, start))
        for shape, start in np.argwhere(placement.probability).tolist()
    ]
    risk = placement_risks(law, predictor, set_laws, loss)
    return ConditionalRisk(sets=sets, probability=probability, risk=risk)


def mean_risk(law: Planted, predictor: Predictor, length: int, loss: Loss) -> float:
    """Return the exact risk by Laplace transform or enumeration; raise ``SettingError`` if both are impossible."""
    if isinstance(predictor, TabularAttention) and law.placement.span is not None and not isinstance(loss, Distance):
        return laplace_risk(law, predictor, length, loss)
    return enumerated_risk(law, predictor, length, loss).mean


def estimate_risk(
    law: Planted, predictor: Predictor, length: int, loss: Loss, rng: np.random.Generator
) -> RiskEstimate:
    """Return the exact risk at a length if possible, otherwise an estimate from ``NUM_SAMPLES`` sequences."""
    methods: list[Callable[[], float]] = [lambda: enumerated_risk(law, predictor, length, loss).mean]
    if isinstance(predictor, TabularAttention):
        methods.insert(0, lambda: laplace_risk(law, predictor, length, loss))
    for method in methods:
        # A law without a span or with too many states or sequences raises an error here.
        with suppress(SettingError):
            risk = method()
            return RiskEstimate(risk=risk, low=risk, high=risk, how="exact")
    sample = sampled_risk(law, predictor, length, loss, NUM_SAMPLES, rng)
    low, high = sample.bernstein_interval()
    return RiskEstimate(risk=sample.mean, low=low, high=high, how=f"{NUM_SAMPLES} samples")
