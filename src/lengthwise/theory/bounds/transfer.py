"""The largest risk that a long sequence can have, given the risk in training and both laws of the planted set."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The worst case: ``value``, the risk of each atom that attains it, and the price of a unit of training risk."""

    value: float
    risk: Float[np.ndarray, " atoms"]
    price: float


def transfer(
    trained_risk: float,
    pushed: Float[np.ndarray, " atoms"],
    trained: Float[np.ndarray, " atoms"],
    largest: float = 1.0,
) -> Transfer:
    """``max sum pushed r`` over ``0 <= r <= largest`` with ``sum trained r <= trained_risk``. Derived here.

    A fractional knapsack, as in the lemma of Neyman and Pearson: risk is spent where ``pushed / trained`` is largest.
    Finite also where that ratio is infinite, and at most its maximum times ``trained_risk``. ``pushed`` may have any
    mass; the price is 0 where the budget is not used up.
    """
    _check(trained_risk, pushed, trained, largest)
    ratio = np.divide(pushed, trained, out=np.where(pushed > 0, np.inf, 0.0), where=trained > 0)
    order = np.argsort(-ratio, kind="stable")
    cost = trained[order] * largest
    spent_before = np.cumsum(cost) - cost
    share = np.clip(np.divide(trained_risk - spent_before, cost, out=np.ones_like(cost), where=cost > 0), 0.0, 1.0)
    risk = np.zeros_like(pushed)
    risk[order] = share * largest
    partly = np.flatnonzero((share < 1) & (cost > 0))
    price = float(ratio[order[partly[0]]]) if len(partly) else 0.0
    return Transfer(value=float(pushed @ risk), risk=risk, price=price)


def dual_transfer(
    trained_risk: float,
    pushed: Float[np.ndarray, " atoms"],
    trained: Float[np.ndarray, " atoms"],
    largest: float = 1.0,
) -> float:
    """The same value as ``min_t t trained_risk + largest sum (pushed - t trained)_+`` over ``t >= 0``. Derived here.

    Convex and piecewise linear in t, so the minimum is at 0 or at one of the ratios; any t gives an upper bound.
    """
    _check(trained_risk, pushed, trained, largest)
    known = trained > 0
    prices = np.unique(np.append(pushed[known] / trained[known], 0.0))
    excess = np.maximum(pushed - prices[:, None] * trained, 0.0).sum(axis=1)
    return float((prices * trained_risk + largest * excess).min())


def _check(trained_risk: float, pushed: np.ndarray, trained: np.ndarray, largest: float) -> None:
    if not (trained_risk >= 0 and largest > 0):
        raise SettingError(f"a risk of {trained_risk} with losses up to {largest} is none; give 0 or more")
    if not (np.isfinite(pushed).all() and (pushed >= 0).all() and (trained >= 0).all()):
        raise SettingError(
            "a mass of the planted set is negative or infinite; give probabilities, or their finite sums"
        )
