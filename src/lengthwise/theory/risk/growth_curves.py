"""Growth curves of the risk as a function of length, with intervals and exact limits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.confidence_intervals import t_critical_value
from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import OffsetDistribution
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, Loss, TotalVariationLoss
from lengthwise.theory.risk.laplace_transform import placement_risks

# The largest number of iterations of the weighted fit.
MAX_ITERATIONS = 20
# The shape distribution at this length approximates the distribution at very large lengths.
ASYMPTOTIC_LENGTH = 1 << 14

ByLength = Float[np.ndarray, " lengths"]
RiskSequence = Sequence[float] | ByLength


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskGrowthCurve:
    """Risk as a function of length N, ``R(N) = (a + b N) / (1 + c N)``, with the limit ``b / c``.

    ``parameters`` are a, b, c with their ``covariance``. ``degrees_of_freedom`` is the number of lengths minus the
    number of fitted parameters. If the limit is 1, the odds ``R / (1 - R)`` are linear in the length. The curve is
    exact if all background sets have equal weights. It is not a bound, because the risk of some laws has another form.
    Derived here.
    """

    parameters: Float[np.ndarray, "3"]
    covariance: Float[np.ndarray, "3 3"]
    degrees_of_freedom: int

    def risk_at(self, length: int | float) -> float:
        """Return the risk that the curve predicts at ``length``."""
        a, b, c = self.parameters.tolist()
        return (a + b * length) / (1 + c * length)

    def confidence_interval(self, length: int | float) -> tuple[float | None, float | None]:
        """Return the 95% interval of the risk at ``length``, from the residuals of the fit (Student's t).

        It is (None, None) without degrees of freedom. It covers noise in the measured risks, not deviations from an
        odds law.
        """
        if self.degrees_of_freedom < 1:
            return None, None
        gradient = np.array([1.0, length, -length * self.risk_at(length)]) / (1 + self.parameters[2] * length)
        variance = max(0.0, float(gradient @ self.covariance @ gradient))
        margin = t_critical_value(self.degrees_of_freedom) * math.sqrt(variance)
        return max(0.0, self.risk_at(length) - margin), self.risk_at(length) + margin


def fit_growth_curve(lengths: Sequence[int], risks: RiskSequence, limit: float) -> RiskGrowthCurve:
    """Fit an odds law with a known limit to the risks at the lengths by least squares. Derived here.

    The limit is ``asymptotic_risk`` of an attention, or 1 for leakage. Short lengths do not determine it. The curve is
    never convex; falling risks give a constant.
    """
    x, y = _check_curve(lengths, risks)
    if limit <= 0:
        raise SettingError(f"invalid limit {limit}; use a limit above 0")
    # The parameters (a, b, c) are combinations of the columns, so that b / c is the limit.
    basis = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1 / limit]])
    # The residuals of ``R (1 + c N) = a + b N`` are linear in the parameters; each iteration divides by ``1 + c N``.
    design = np.stack([np.ones_like(x), x, -x * y], axis=1) @ basis
    parameters = np.zeros(3)
    for _ in range(MAX_ITERATIONS):
        denominators = 1 + max(0.0, float(parameters[2])) * x
        previous = parameters
        parameters = basis @ np.linalg.lstsq(design / denominators[:, None], y / denominators)[0]
        if np.allclose(previous, parameters, rtol=1e-12, atol=0):
            break
    scale = 1 + max(0.0, float(parameters[2])) * x
    fitted = (parameters[0] + parameters[1] * x) / scale
    jacobian = np.stack([np.ones_like(x), x, -x * fitted], axis=1) @ basis / scale[:, None]
    num_free = len(x) - basis.shape[1]
    variance = float(((y - fitted) ** 2).sum()) / num_free if num_free else 0.0
    covariance = variance * basis @ np.linalg.pinv(jacobian.T @ jacobian) @ basis.T
    if parameters[1] < 0:
        parameters = np.array([y.mean(), 0.0, 0.0])
    return RiskGrowthCurve(parameters=parameters, covariance=covariance, degrees_of_freedom=num_free)


def extrapolate_by_secant(lengths: Sequence[int], risks: RiskSequence, length: int) -> float:
    """Return the risk at ``length`` on the straight line through the first and the last measured risk.

    It is an upper bound if the risk is concave in the length, such as leakage with k = 1. This is not proved for k > 1.
    Derived here.
    """
    x, y = _check_curve(lengths, risks)
    if length < x[-1]:
        raise SettingError(f"length {length} is below the longest measured length {int(x[-1])}; use a longer length")
    slope = (y[-1] - y[0]) / (x[-1] - x[0])
    return float(y[-1] + (length - x[-1]) * slope)


def asymptotic_risk(law: PlantedCorrelations, attention: TabularAttention, loss: Loss | None = None) -> float:
    """Return the exact limit of the risk for long sequences; the default loss is ``TotalVariationLoss``. Derived here.

    If sets of background tokens have a score above 0, they outweigh the planted set: the output tends to their mean
    value, and the leakage to 1. Otherwise only sets that overlap the planted set have a score, and the limit is the
    risk of a planted set far from both ends of the sequence; this case needs a linear loss.
    """
    loss = TotalVariationLoss() if loss is None else loss
    code_tuples = np.indices((attention.num_tokens,) * attention.k).reshape(attention.k, -1)
    with np.errstate(divide="ignore"):
        log_set_weights = attention.log_scores + np.log(law.independent_background)[code_tuples].sum(axis=0)
    if np.isneginf(log_set_weights).all():
        return float(placement_risks(law, attention, [_interior_placement(law, attention)], loss)[0])
    if isinstance(loss, AttentionLeakageLoss):
        return 1.0
    set_weights = np.exp(log_set_weights - log_set_weights.max())
    mean_value = _ConstantPredictor(np.einsum("sc,sco->o", set_weights / set_weights.sum(), attention.values))
    tuples = np.array(law.tuples)
    token_indexes = np.broadcast_to(np.arange(law.k), tuples.shape)
    return float(np.array(law.probabilities) @ loss.evaluate(mean_value, tuples, token_indexes, np.array(law.labels)))


@dataclass(frozen=True, slots=True)
class _ConstantPredictor:
    output: Float[np.ndarray, " outputs"]

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        return np.tile(self.output, (len(tokens), 1))


def _interior_placement(law: PlantedCorrelations, attention: TabularAttention) -> OffsetDistribution:
    """Return a placement with one start per shape, far enough from both ends that all overlapping sets fit."""
    long_law = law.placement.offset_distribution(ASYMPTOTIC_LENGTH)
    start_margin = attention.span - 1
    probability = np.zeros((len(long_law.shapes), int(long_law.shapes[:, -1].max()) + 1 + 2 * start_margin))
    probability[:, start_margin] = long_law.probability.sum(axis=1)
    return OffsetDistribution(shapes=long_law.shapes, probability=probability)


def _check_curve(lengths: Sequence[int], risks: RiskSequence) -> tuple[ByLength, ByLength]:
    """Return lengths and risks as arrays; raises ``SettingError`` for too few or unsorted lengths or infinite risks."""
    x, y = np.array(lengths, dtype=float), np.array(risks, dtype=float)
    if len(x) != len(y):
        raise SettingError(f"{len(y)} risks do not match {len(x)} lengths; pass one risk per length")
    if len(x) < 2:
        raise SettingError(f"{len(x)} lengths do not determine the curve; measure at least 2 lengths")
    if (np.diff(x) <= 0).any():
        raise SettingError(f"lengths {list(lengths)} do not increase; sort the lengths and list each length once")
    if not np.isfinite(y).all():
        length = lengths[int(np.isfinite(y).argmin())]
        raise SettingError(f"the risk is NaN or infinite at length {length}; remove this risk and its length")
    return x, y
