"""Risks at any length, exact if possible and otherwise sampled, and exact empirical risk minimization."""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError, unknown_name_error
from lengthwise.tasks.planted.placement import OffsetDistribution
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import (
    AttentionLeakageLoss,
    ConditionalRisk,
    Loss,
    Predictor,
    TotalVariationLoss,
    enumerated_risk,
)
from lengthwise.theory.risk.laplace_transform import laplace_risk, laplace_risks, placement_risks

# The number of tokens per block, and the tolerance for losses outside [0, 1].
BLOCK_TOKENS = 1 << 18
LOSS_TOLERANCE = 1e-9
# The number of sequences to sample if no exact method applies.
NUM_SAMPLES = 4096

Objective = Callable[[Float[np.ndarray, "predictors lengths"]], Float[np.ndarray, " predictors"]]
# Objectives of training by name. The risk at one length may be up to L times the mean over lengths.
OBJECTIVES: dict[str, Objective] = {
    "averaged": lambda risks: np.asarray(risks.mean(axis=1)),
    "minimax": lambda risks: np.asarray(risks.max(axis=1)),
}


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
        """Return the empirical Bernstein interval of the risk for losses in [0, 1] (Maurer and Pontil 2009).

        A low variance makes it narrow.
        """
        if not 0 < confidence < 1:
            raise SettingError(f"invalid confidence {confidence}; use a number between 0 and 1, such as 0.95")
        min_loss, max_loss = float(self.losses.min()), float(self.losses.max())
        if not (min_loss >= -LOSS_TOLERANCE and max_loss <= 1 + LOSS_TOLERANCE):
            raise SettingError(f"losses from {min_loss:.3g} to {max_loss:.3g} lie outside [0, 1]; use standard_error")
        margin = bernstein_margin(self.losses, (1 - confidence) / 2)
        return max(0.0, self.mean - margin), min(1.0, self.mean + margin)


def bernstein_margin(losses: Float[np.ndarray, " size"], failure_probability: float) -> float:
    """Return how far the mean of losses in [0, 1] is below the risk at most, except with ``failure_probability``.

    Empirical Bernstein inequality (Maurer and Pontil 2009, theorem 4).
    """
    size, log_factor = len(losses), math.log(2 / failure_probability)
    return math.sqrt(2 * _variance(losses) * log_factor / size) + 7 * log_factor / (3 * (size - 1))


def _variance(losses: Float[np.ndarray, " size"]) -> float:
    if len(losses) < 2:
        raise SettingError(f"{len(losses)} value has no variance; sample at least 2 sequences")
    return float(losses.var(ddof=1))


def sampled_risk(
    law: PlantedCorrelations, predictor: Predictor, length: int, loss: Loss, size: int, rng: np.random.Generator
) -> SampledRisk:
    """Sample ``size`` sequences of ``length`` tokens from the law and evaluate the loss of the predictor on each."""
    if size < 1:
        raise SettingError(f"invalid sample size {size}; use at least 1 sequence")
    block_size = max(1, BLOCK_TOKENS // length)
    losses = []
    for block_start in range(0, size, block_size):
        tokens, sets, _ = law.sample_arrays(length, min(block_size, size - block_start), rng)
        labels = law.label_probabilities[law.tuple_codes(np.take_along_axis(tokens, sets, axis=1))]
        losses.append(loss.evaluate(predictor, tokens, sets, labels))
    return SampledRisk(np.concatenate(losses))


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskEstimate:
    """A risk with its 95% interval (``low`` to ``high``, equal if exact); ``how`` is "exact" or names the sample."""

    risk: float
    low: float
    high: float
    how: str


def _has_laplace_risk(predictor: Predictor, law: PlantedCorrelations, loss: Loss) -> TypeGuard[TabularAttention]:
    is_linear = isinstance(loss, TotalVariationLoss | AttentionLeakageLoss)
    return isinstance(predictor, TabularAttention) and law.placement.max_span is not None and is_linear


def conditional_risk(law: PlantedCorrelations, predictor: Predictor, length: int, loss: Loss) -> ConditionalRisk:
    """Return the exact risk given each planted set: at any length if the law has a span, else by enumeration."""
    if not _has_laplace_risk(predictor, law, loss):
        return enumerated_risk(law, predictor, length, loss)
    placement = law.placement.offset_distribution(length)
    sets, probability = placement.sets()
    set_laws = [
        OffsetDistribution(shapes=placement.shapes[[shape]], probability=np.eye(1, length, start))
        for shape, start in np.argwhere(placement.probability).tolist()
    ]
    risk = placement_risks(law, predictor, set_laws, loss)
    return ConditionalRisk(sets=sets, probability=probability, risk=risk)


def mean_risk(law: PlantedCorrelations, predictor: Predictor, length: int, loss: Loss) -> float:
    """Return the exact risk by Laplace transform or enumeration; raise ``SettingError`` if both are impossible."""
    if _has_laplace_risk(predictor, law, loss):
        return laplace_risk(law, predictor, length, loss)
    return enumerated_risk(law, predictor, length, loss).mean


def exact_risks(
    law: PlantedCorrelations, predictor: Predictor, lengths: Sequence[int], loss: Loss
) -> Float[np.ndarray, " lengths"]:
    """Return the exact risk at each length, by Laplace transform if possible and otherwise by enumeration."""
    if _has_laplace_risk(predictor, law, loss):
        # A head with a wide span has too many states, but its law may have few sequences.
        with suppress(SettingError):
            return laplace_risks(law, predictor, lengths, loss)
    return np.array([enumerated_risk(law, predictor, length, loss).mean for length in lengths])


def estimate_risk(
    law: PlantedCorrelations, predictor: Predictor, length: int, loss: Loss, rng: np.random.Generator
) -> RiskEstimate:
    """Return the exact risk at a length if possible, otherwise an estimate from ``NUM_SAMPLES`` sequences."""
    # A law without a span or with too many states or sequences raises an error here.
    with suppress(SettingError):
        risk = float(exact_risks(law, predictor, [length], loss)[0])
        return RiskEstimate(risk=risk, low=risk, high=risk, how="exact")
    sample = sampled_risk(law, predictor, length, loss, NUM_SAMPLES, rng)
    low, high = sample.bernstein_interval()
    return RiskEstimate(risk=sample.mean, low=low, high=high, how=f"{NUM_SAMPLES} samples")


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskMinimizer:
    """Index of the first predictor with the smallest objective, indexes of all ties, and all objectives.

    ``ties`` includes ``best``; the training objective does not decide between ties.
    """

    best: int
    ties: tuple[int, ...]
    lengths: tuple[int, ...]
    risks: Float[np.ndarray, "predictors lengths"]
    objective: Float[np.ndarray, " predictors"]


def training_lengths(longest: int) -> tuple[int, ...]:
    """Return the lengths from half of ``longest``, rounded up, to ``longest`` (Golowich et al. 2025, equation (3))."""
    if longest < 1:
        raise SettingError(f"invalid longest training length {longest}; use 1 or more")
    return tuple(range((longest + 1) // 2, longest + 1))


def exact_erm(
    law: PlantedCorrelations,
    predictors: Sequence[Predictor],
    lengths: Sequence[int],
    loss: Loss,
    objective: str = "averaged",
    tolerance: float = 1e-12,
) -> RiskMinimizer:
    """Find the predictor of a finite class with the smallest mean or maximum population risk over the lengths.

    Objectives that differ by at most ``tolerance`` are ties. The mean objective is equation (3) of Golowich et al.
    2025 (arXiv 2502.16792).
    """
    if objective not in OBJECTIVES:
        raise unknown_name_error("objective", objective, OBJECTIVES)
    if not predictors or not lengths:
        raise SettingError(f"invalid {len(predictors)} predictors and {len(lengths)} lengths; use at least 1 of each")
    risks = np.stack([exact_risks(law, predictor, lengths, loss) for predictor in predictors])
    values = OBJECTIVES[objective](risks)
    ties = np.flatnonzero(values <= values.min() + tolerance)
    return RiskMinimizer(
        best=int(ties[0]), ties=tuple(ties.tolist()), lengths=tuple(lengths), risks=risks, objective=values
    )
