"""Risks by the best way that there is: exact where possible, sampled elsewhere."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import ShapeLaw
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Conditional, Distance, Loss, Predictor, enumerated_risk
from lengthwise.theory.risk.laplace import laplace_risk, placed_risks
from lengthwise.theory.risk.sampling import sampled_risk

# Sequences that are drawn where a risk is neither enumerated nor transformed.
DRAWN = 4096


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
