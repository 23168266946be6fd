"""Risks by drawing sequences: any predictor, any loss, any length, with intervals that hold for every sample size."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError
from lengthwise.core.intervals import student
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.risk.exact_risk import Loss, Predictor

# How many tokens are looked at in one go, and by how much rounding may carry a loss beyond its bounds.
BLOCK = 1 << 18
ROUNDING = 1e-9


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
        half = student(len(self.losses) - 1) * self.standard_error
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
