"""Growth curves of the risk at longer lengths, with intervals, horizons and exact limits."""

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
from lengthwise.theory.risk.laplace_risk import placement_risks

# The largest number of iterations of the weighted fit.
MAX_ITERATIONS = 20
# The shape distribution at this length approximates the distribution at very large lengths.
FAR_LENGTH = 1 << 14

Risks = Sequence[float] | Float[np.ndarray, " lengths"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OddsLaw:
    """Growth curve ``R(N) = (a + b N) / (1 + c N)``, which starts linear and has the limit ``b / c``.

    ``parameters`` are a, b, c with their ``covariance``. ``degrees_of_freedom`` is the number of lengths minus the
    number of fitted parameters. With the limit 1, the odds ``R / (1 - R)`` are linear in the length. The curve is exact
    if all background weights are equal. It is not a bound, because some laws have another curve. Derived here.
    """

    parameters: Float[np.ndarray, "3"]
    covariance: Float[np.ndarray, "3 3"]
    degrees_of_freedom: int

    @property
    def limit(self) -> float:
        """The limit of the risk, which is infinite for a rising straight line and ``a`` for a constant curve."""
        a, b, c = self.parameters.tolist()
        if c > 0:
            return b / c
        return math.inf if b > 0 else a

    def risk_at(self, length: int | float) -> float:
        """Return the risk at a length."""
        a, b, c = self.parameters.tolist()
        return (a + b * length) / (1 + c * length)

    def interval(self, length: int | float) -> tuple[float | None, float | None]:
        """Return the 95% interval from the residuals of the fit (Student's t).

        It is (None, None) without degrees of freedom. It covers noise in the risks, not deviations from an odds law.
        """
        if self.degrees_of_freedom < 1:
            return None, None
        gradient = np.array([1.0, length, -length * self.risk_at(length)]) / (1 + self.parameters[2] * length)
        margin = t_critical_value(self.degrees_of_freedom) * math.sqrt(
            max(0.0, float(gradient @ self.covariance @ gradient))
        )
        return max(0.0, self.risk_at(length) - margin), self.risk_at(length) + margin

    def horizon(self, risk: float) -> float:
        """Return the length above which the risk exceeds ``risk``: infinite if it never does, 0 if it always does."""
        a, b, c = self.parameters.tolist()
        if a >= risk:
            return 0.0
        return (risk - a) / (b - c * risk) if b > c * risk else math.inf


def fit_odds(lengths: Sequence[int], risks: Risks, limit: float | None) -> OddsLaw:
    """Fit the odds law by least squares; if ``limit`` is None, fit the limit too.

    Pass the limit if it is known (``limit_risk`` of an attention, or 1 for leakage): short lengths determine it poorly.
    The curve is never convex. With a fitted limit, convex risks give a straight line, and falling risks a constant.
    Derived here.
    """
    sizes, values = _check_curve(lengths, risks, min_lengths=2 if limit is not None else 3)
    if limit is not None and limit <= 0:
        raise SettingError(f"invalid limit {limit}; use a limit above 0, or None to fit it")
    if limit is None:
        curve = _least_squares(sizes, values, np.eye(3))
        if (curve.parameters[1:] >= 0).all():
            return curve
        limit = math.inf
    curve = _least_squares(sizes, values, np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1 / limit]]))
    if curve.parameters[1] < 0:
        return replace(curve, parameters=np.array([values.mean(), 0.0, 0.0]))
    return curve


def secant(lengths: Sequence[int], risks: Risks, length: int) -> float:
    """Extrapolate the straight line through the first and the last measured length.

    It is an upper bound if the risk is concave in the length, such as leakage with k = 1. This is not proved for k > 1.
    Derived here.
    """
    sizes, values = _check_curve(lengths, risks, min_lengths=2)
    if length < sizes[-1]:
        raise SettingError(f"length {length} is below the longest measured length {int(sizes[-1])}; use a longer one")
    slope = (values[-1] - values[0]) / (sizes[-1] - sizes[0])
    return float(values[-1] + (length - sizes[-1]) * slope)


def limit_risk(law: Planted, attention: TabularAttention, loss: Loss | None = None) -> float:
    """Return the exact limit of the risk for long sequences; the default loss is ``TotalVariation``. Derived here.

    If background sets have weight, they outweigh the planted set: the output tends to their mean value, and the
    leakage to 1. Otherwise only sets that overlap the planted set have weight, and the limit is the risk far from both
    ends; this case needs a linear loss.
    """
    loss = TotalVariation() if loss is None else loss
    code_tuples = np.indices((attention.num_tokens,) * attention.k).reshape(attention.k, -1)
    with np.errstate(divide="ignore"):
        log_weight = attention.log_scores + np.log(np.array(law.background))[code_tuples].sum(axis=0)
    if np.isneginf(log_weight).all():
        return float(placement_risks(law, attention, [_interior_placement(law, attention)], loss)[0])
    if isinstance(loss, Leakage):
        return 1.0
    weight = np.exp(log_weight - log_weight.max())
    mean_value = _ConstantPredictor(np.einsum("sc,sco->o", weight / weight.sum(), attention.values))
    tuples = np.array(law.tuples)
    token_indexes = np.broadcast_to(np.arange(law.k), tuples.shape)
    return float(np.array(law.probabilities) @ loss.evaluate(mean_value, tuples, token_indexes, np.array(law.labels)))


@dataclass(frozen=True, slots=True)
class _ConstantPredictor:
    output: Float[np.ndarray, " outputs"]

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        return np.tile(self.output, (len(tokens), 1))


def _interior_placement(law: Planted, attention: TabularAttention) -> ShapeLaw:
    """Return a distribution of planted sets so far from both ends that all overlapping sets fit."""
    long_law = law.placement.law(FAR_LENGTH)
    margin = attention.span - 1
    probability = np.zeros((len(long_law.shapes), int(long_law.shapes[:, -1].max()) + 1 + 2 * margin))
    probability[:, margin] = long_law.probability.sum(axis=1)
    return ShapeLaw(shapes=long_law.shapes, probability=probability)


def _check_curve(
    lengths: Sequence[int], risks: Risks, min_lengths: int
) -> tuple[Float[np.ndarray, " lengths"], Float[np.ndarray, " lengths"]]:
    """Return lengths and risks as arrays; raises ``SettingError`` for few or unsorted lengths or infinite risks."""
    sizes, values = np.array(lengths, dtype=float), np.array(risks, dtype=float)
    if len(sizes) != len(values):
        raise SettingError(f"{len(values)} risks do not match {len(sizes)} lengths; pass one risk per length")
    if len(sizes) < min_lengths:
        raise SettingError(f"{len(sizes)} lengths do not determine the curve; measure at least {min_lengths}")
    if (np.diff(sizes) <= 0).any():
        raise SettingError(f"lengths {list(lengths)} do not increase; sort them and list each length once")
    if not np.isfinite(values).all():
        raise SettingError("a risk is NaN or infinite; remove this risk and its length")
    return sizes, values


def _least_squares(
    sizes: Float[np.ndarray, " lengths"], values: Float[np.ndarray, " lengths"], basis: Float[np.ndarray, "3 basis"]
) -> OddsLaw:
    """Fit a, b, c in the span of the columns of ``basis`` by reweighting the linear residual times ``1 + c N``."""
    design = np.stack([np.ones_like(sizes), sizes, -sizes * values], axis=1) @ basis
    parameters = np.zeros(3)
    for _ in range(MAX_ITERATIONS):
        scale = 1 + max(0.0, float(parameters[2])) * sizes
        previous, parameters = parameters, basis @ np.linalg.lstsq(design / scale[:, None], values / scale)[0]
        if np.allclose(previous, parameters, rtol=1e-12, atol=0):
            break
    denominator = 1 + max(0.0, float(parameters[2])) * sizes
    curve = (parameters[0] + parameters[1] * sizes) / denominator
    jacobian = np.stack([np.ones_like(sizes), sizes, -sizes * curve], axis=1) @ basis / denominator[:, None]
    degrees_of_freedom = len(sizes) - basis.shape[1]
    variance = float(((values - curve) ** 2).sum()) / degrees_of_freedom if degrees_of_freedom else 0.0
    covariance = variance * basis @ np.linalg.pinv(jacobian.T @ jacobian) @ basis.T
    return OddsLaw(parameters=parameters, covariance=covariance, degrees_of_freedom=degrees_of_freedom)
