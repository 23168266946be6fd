"""Risk at lengths that were not measured, from lengths that were: laws of growth, their intervals and horizons."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.core.intervals import t_critical_value
from lengthwise.tasks.planted.placement import ShapeLaw
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Leakage, Loss, TotalVariation
from lengthwise.theory.risk.laplace_risk import placed_risks

# Rounds of weighting the fit anew, at most; the length whose law of shapes stands for that of very long sequences.
ROUNDS = 20

FAR = 1 << 14

Risks = Sequence[float] | Float[np.ndarray, " lengths"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OddsLaw:
    """``R(N) = (a + b N) / (1 + c N)``: linear at first, and no more than ``limit = b / c`` in the end.

    ``parameters`` are a, b, c, ``covariance`` is theirs; ``freedom`` counts the lengths beyond what was fitted. With
    the limit 1 the odds ``R / (1 - R)`` are linear in the length. Exact where all background weights are one number;
    no bound, as rare background that outweighs everything makes another curve. Derived here.
    """

    parameters: Float[np.ndarray, "3"]
    covariance: Float[np.ndarray, "3 3"]
    freedom: int

    @property
    def limit(self) -> float:
        """What the risk comes to in the end; infinite for a rising straight line, the risk itself for a flat one."""
        a, b, c = self.parameters.tolist()
        if c > 0:
            return b / c
        return math.inf if b > 0 else a

    def at(self, length: int | float) -> float:
        """The risk at a length."""
        a, b, c = self.parameters.tolist()
        return (a + b * length) / (1 + c * length)

    def interval(self, length: int | float) -> tuple[float | None, float | None]:
        """The 95% interval from the residuals of the fit, Student's t; None where no length is left over.

        It knows the noise of the measured risks, not how far the true curve is from any odds law.
        """
        if self.freedom < 1:
            return None, None
        gradient = np.array([1.0, length, -length * self.at(length)]) / (1 + self.parameters[2] * length)
        half = t_critical_value(self.freedom) * math.sqrt(max(0.0, float(gradient @ self.covariance @ gradient)))
        return max(0.0, self.at(length) - half), self.at(length) + half

    def horizon(self, risk: float) -> float:
        """The length from which on the risk is above this; infinite where it stays below, 0 where it starts above."""
        a, b, c = self.parameters.tolist()
        if a >= risk:
            return 0.0
        return (risk - a) / (b - c * risk) if b > c * risk else math.inf


def fit_odds(lengths: Sequence[int], risks: Risks, limit: float | None) -> OddsLaw:
    """The odds law nearest to measured risks in least squares; ``limit`` is fitted where it is None.

    Give it where it is known, ``limit_risk`` of an attention or 1 for leakage: short lengths hardly tell it. No fitted
    law bends upwards: where risks do, and the limit is free, it is a straight line; where that would fall, it is flat.
    Derived here.
    """
    sizes, values = _curve(lengths, risks, needed=2 if limit is not None else 3)
    if limit is not None and limit <= 0:
        raise SettingError(f"a limit of {limit} leaves no room for a risk; use one above 0, or None to fit it")
    if limit is None:
        fitted = _least_squares(sizes, values, np.eye(3))
        if (fitted.parameters[1:] >= 0).all():
            return fitted
        limit = math.inf
    fitted = _least_squares(sizes, values, np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1 / limit]]))
    if fitted.parameters[1] < 0:
        return replace(fitted, parameters=np.array([values.mean(), 0.0, 0.0]))
    return fitted


def secant(lengths: Sequence[int], risks: Risks, length: int) -> float:
    """The straight line through the first and the last of measured lengths, continued to a longer one.

    An upper bound where the risk is concave in the length: leakage with k = 1, among others. For k > 1 it mostly is
    one, without a proof. Derived here.
    """
    sizes, values = _curve(lengths, risks, needed=2)
    if length < sizes[-1]:
        raise SettingError(f"length {length} is below the measured {int(sizes[-1])}; a secant is continued upwards")
    slope = (values[-1] - values[0]) / (sizes[-1] - sizes[0])
    return float(values[-1] + (length - sizes[-1]) * slope)


def limit_risk(law: Planted, attention: TabularAttention, loss: Loss | None = None) -> float:
    """The exact risk that very long sequences come to; ``TotalVariation`` without a loss. Derived here.

    Where background has any weight, it outweighs the planted set in the end, and the answer is the mean value of
    background, whatever the planted tuple: chance level, and leakage 1. Where it has none, only sets that meet the
    planted one count: then it is their risk far from both ends, under linear losses alone.
    """
    loss = TotalVariation() if loss is None else loss
    every = np.indices((attention.num_tokens,) * attention.k).reshape(attention.k, -1)
    with np.errstate(divide="ignore"):
        log_weight = attention.log_scores + np.log(np.array(law.background))[every].sum(axis=0)
    if np.isneginf(log_weight).all():
        return float(placed_risks(law, attention, [_interior(law, attention)], loss)[0])
    if isinstance(loss, Leakage):
        return 1.0
    weight = np.exp(log_weight - log_weight.max())
    answer = _Constant(np.einsum("sc,sco->o", weight / weight.sum(), attention.values))
    tuples = np.array(law.tuples)
    places = np.broadcast_to(np.arange(law.k), tuples.shape)
    return float(np.array(law.probabilities) @ loss.of(answer, tuples, places, np.array(law.labels)))


@dataclass(frozen=True, slots=True)
class _Constant:
    """The same answer to everything."""

    answer: Float[np.ndarray, " outputs"]

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """The answer, for every row."""
        return np.tile(self.answer, (len(tokens), 1))


def _interior(law: Planted, attention: TabularAttention) -> ShapeLaw:
    """The planted set just so far from both ends that no set of the attention that meets it is cut off."""
    far = law.placement.law(FAR)
    margin = attention.span - 1
    probability = np.zeros((len(far.shapes), int(far.shapes[:, -1].max()) + 1 + 2 * margin))
    probability[:, margin] = far.probability.sum(axis=1)
    return ShapeLaw(shapes=far.shapes, probability=probability)


def _curve(
    lengths: Sequence[int], risks: Risks, needed: int
) -> tuple[Float[np.ndarray, " lengths"], Float[np.ndarray, " lengths"]]:
    """Both as arrays; refuses too few lengths, lengths out of order, and risks that are no numbers."""
    sizes, values = np.array(lengths, dtype=float), np.array(risks, dtype=float)
    if len(sizes) != len(values):
        raise SettingError(f"{len(values)} risks do not belong to {len(sizes)} lengths; give one for each")
    if len(sizes) < needed:
        raise SettingError(f"{len(sizes)} lengths do not fix the curve; measure at least {needed}")
    if (np.diff(sizes) <= 0).any():
        raise SettingError(f"lengths {list(lengths)} do not increase; sort them and give each once")
    if not np.isfinite(values).all():
        raise SettingError("a risk is infinite or no number; leave its length out")
    return sizes, values


def _least_squares(
    sizes: Float[np.ndarray, " lengths"], values: Float[np.ndarray, " lengths"], free: Float[np.ndarray, "3 free"]
) -> OddsLaw:
    """a, b, c within the columns of ``free``: linear in a ``(1 + c N)``-fold of the residual, so weighted again."""
    design = np.stack([np.ones_like(sizes), sizes, -sizes * values], axis=1) @ free
    parameters = np.zeros(3)
    for _ in range(ROUNDS):
        scale = 1 + max(0.0, float(parameters[2])) * sizes
        last, parameters = parameters, free @ np.linalg.lstsq(design / scale[:, None], values / scale)[0]
        if np.allclose(last, parameters, rtol=1e-12, atol=0):
            break
    below = 1 + max(0.0, float(parameters[2])) * sizes
    fitted = (parameters[0] + parameters[1] * sizes) / below
    jacobian = np.stack([np.ones_like(sizes), sizes, -sizes * fitted], axis=1) @ free / below[:, None]
    freedom = len(sizes) - free.shape[1]
    variance = float(((values - fitted) ** 2).sum()) / freedom if freedom else 0.0
    covariance = variance * free @ np.linalg.pinv(jacobian.T @ jacobian) @ free.T
    return OddsLaw(parameters=parameters, covariance=covariance, freedom=freedom)
