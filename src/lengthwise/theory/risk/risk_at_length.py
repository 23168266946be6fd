"""Risks at any length: exact where possible, sampled elsewhere, with intervals that hold for every sample size."""

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
from lengthwise.theory.risk.exact_risk import Conditional, Distance, Loss, Predictor, enumerated_risk
from lengthwise.theory.risk.laplace_risk import laplace_risk, placed_risks

# How many tokens are looked at in one go, and by how much rounding may carry a loss beyond its bounds.
BLOCK = 1 << 18

ROUNDING = 1e-9

# Sequences that are drawn where a risk is neither enumerated nor transformed.
DRAWN = 4096


@dataclass(frozen=True, slots=True)
class SampledRisk:
    """The losses of drawn sequences; the label is not drawn, a loss is its expectation over the label."""

    losses: Float[np.ndarray, " size"]

    @property
    def mean(self) -> float:
        """The estimate of the risk."""
        return float(self.losses.mean())

    @property
    def standard_error(self) -> float:
        """That of the mean; of a single sequence, ``SettingError``."""
        return math.sqrt(_variance(self.losses) / len(self.losses))

    def bernstein(self, confidence: float = 0.95) -> tuple[float, float]:
        """The interval that is narrow where losses are alike; for losses in [0, 1]."""
        return empirical_bernstein(self.losses, confidence)

    def hoeffding(self, confidence: float = 0.95) -> tuple[float, float]:
        """The interval that asks nothing of the losses but to lie in [0, 1]."""
        return hoeffding(self.losses, confidence)

    def student(self) -> tuple[float, float]:
        """The 95% interval of many draws, for losses without a bound such as the log loss: no guarantee."""
        half = t_critical_value(len(self.losses) - 1) * self.standard_error
        return self.mean - half, self.mean + half


def sampled_risk(
    law: Planted, predictor: Predictor, length: int, loss: Loss, size: int, rng: np.random.Generator
) -> SampledRisk:
    """Draw so many sequences and take their losses; the cost is that of as many predictions."""
    if size < 1:
        raise SettingError(f"a sample of {size} sequences shows nothing; draw at least 1")
    at_once = max(1, BLOCK // length)
    losses = []
    for first in range(0, size, at_once):
        tokens, sets, _ = law.draw(length, min(at_once, size - first), rng)
        labels = law.label_law[law.codes(np.take_along_axis(tokens, sets, axis=1))]
        losses.append(loss.of(predictor, tokens, sets, labels))
    return SampledRisk(np.concatenate(losses))


def empirical_bernstein(values: Float[np.ndarray, " size"], confidence: float = 0.95) -> tuple[float, float]:
    """An interval of the mean of independent values in [0, 1], valid at every size (Maurer and Pontil 2009)."""
    _check(values, confidence)
    size, log_odds = len(values), math.log(4 / (1 - confidence))
    half = math.sqrt(2 * _variance(values) * log_odds / size) + 7 * log_odds / (3 * (size - 1))
    return _within(float(values.mean()), half)


def hoeffding(values: Float[np.ndarray, " size"], confidence: float = 0.95) -> tuple[float, float]:
    """An interval of the mean of independent values in [0, 1], valid at every size (Hoeffding 1963)."""
    _check(values, confidence)
    return _within(float(values.mean()), math.sqrt(math.log(2 / (1 - confidence)) / (2 * len(values))))


def _variance(values: Float[np.ndarray, " size"]) -> float:
    if len(values) < 2:
        raise SettingError(f"{len(values)} value has no spread; draw at least 2, or use hoeffding")
    return float(values.var(ddof=1))


def _within(mean: float, half: float) -> tuple[float, float]:
    return max(0.0, mean - half), min(1.0, mean + half)


def _check(values: Float[np.ndarray, " size"], confidence: float) -> None:
    if not 0 < confidence < 1:
        raise SettingError(f"confidence {confidence} is no probability below 1; use one such as 0.95")
    low, high = float(values.min()), float(values.max())
    if not (low >= -ROUNDING and high <= 1 + ROUNDING):
        raise SettingError(f"losses from {low:.3g} to {high:.3g} leave [0, 1], which the interval needs; use student()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A risk, its 95% interval (of no width where it is exact), and how it was found."""

    risk: float
    low: float
    high: float
    how: str


def conditional_risk(law: Planted, predictor: Predictor, length: int, loss: Loss) -> Conditional:
    """The exact risk given each planted set, whatever the length where the law has a span."""
    if not isinstance(predictor, TabularAttention) or law.placement.span is None or isinstance(loss, Distance):
        return enumerated_risk(law, predictor, length, loss)
    placed = law.placement.law(length)
    sets, probability = placed.sets()
    pinned = [
        ShapeLaw(shapes=placed.shapes[[shape]], probability=np.eye(1, length, start))
        for shape, start in np.argwhere(placed.probability).tolist()
    ]
    return Conditional(sets=sets, probability=probability, risk=placed_risks(law, predictor, pinned, loss))


def mean_risk(law: Planted, predictor: Predictor, length: int, loss: Loss) -> float:
    """The exact risk, by transform or by enumeration; ``SettingError`` where neither can."""
    if isinstance(predictor, TabularAttention) and law.placement.span is not None and not isinstance(loss, Distance):
        return laplace_risk(law, predictor, length, loss)
    return enumerated_risk(law, predictor, length, loss).mean


def risk_at(law: Planted, predictor: Predictor, length: int, loss: Loss, rng: np.random.Generator) -> Found:
    """The risk at a length, exactly where that is possible, else from ``DRAWN`` sequences."""
    exact: list[Callable[[], float]] = [lambda: enumerated_risk(law, predictor, length, loss).mean]
    if isinstance(predictor, TabularAttention):
        exact.insert(0, lambda: laplace_risk(law, predictor, length, loss))
    for way in exact:
        # Refused: no span, too many states, or too many sequences.
        with suppress(SettingError):
            risk = way()
            return Found(risk=risk, low=risk, high=risk, how="exact")
    sampled = sampled_risk(law, predictor, length, loss, DRAWN, rng)
    low, high = sampled.bernstein()
    return Found(risk=sampled.mean, low=low, high=high, how=f"{DRAWN} samples")
