"""Risks at longer lengths, predicted from the exact risks at trained lengths: estimates, not bounds."""

from dataclasses import dataclass

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import Placement
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.bounds.regularity import uniformity
from lengthwise.theory.risk.exact_risk import Loss, Predictor
from lengthwise.theory.risk.growth import FAR, fit_odds, limit_risk, secant
from lengthwise.theory.risk.laplace import laplace_risks

NO_RISK = 1e-12
# How far the constant of uniform places may be from 1 by rounding.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The risk at a length as trained lengths alone predict it, or why they do not.

    ``low`` and ``high`` come from the residuals of the fit alone: too narrow where the true curve is no odds law.
    """

    length: int
    odds: float | None = None
    low: float | None = None
    high: float | None = None
    secant: float | None = None
    refused: str | None = None


def predict(law: Planted, predictor: Predictor, trained: int, length: int, loss: Loss) -> Prediction:
    """Continue the exact risks of the trained lengths at which sets are planted as they are at ``length``."""
    if not isinstance(predictor, TabularAttention) or law.placement.span is None:
        return Prediction(length=length, refused="the risks at trained lengths are not exact: sets have no span")
    halves = range((trained + 1) // 2, trained + 1)
    known = [each for each in halves if each >= law.smallest and _alike(law.placement, each, length)]
    if len(known) < 2:
        return Prediction(
            length=length,
            refused=f"{len(known)} of the trained lengths {halves.start} to {trained} have the shapes and places of "
            f"length {length}, and a curve needs 2",
        )
    try:
        risks = laplace_risks(law, predictor, known, loss)
    except SettingError as error:
        return Prediction(length=length, refused=str(error))
    # A head without any risk has no limit above 0, which the law of odds needs.
    odds = fit_odds(known, risks, max(limit_risk(law, predictor), NO_RISK))
    low, high = odds.interval(length)
    return Prediction(length=length, odds=odds.at(length), low=low, high=high, secant=secant(known, risks, length))


def _alike(placement: Placement, trained: int, length: int) -> bool:
    """Whether both lengths, and very long ones, have the same law of shapes at uniform places."""
    return uniformity(placement, [trained, length, FAR]).rho0 <= 1 + ROUNDING
