"""Exact empirical risk minimization over a finite class of predictors, on short lengths."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Leakage, Loss, Predictor, TotalVariation, enumerated_risk
from lengthwise.theory.risk.laplace_risk import laplace_risks

Objective = Callable[[Float[np.ndarray, "predictors lengths"]], Float[np.ndarray, " predictors"]]


def mean_objective(risks: Float[np.ndarray, "predictors lengths"]) -> Float[np.ndarray, " predictors"]:
    """Return the mean over lengths; the risk at one length may be up to L times this mean."""
    return np.asarray(risks.mean(axis=1))


def minimax_objective(risks: Float[np.ndarray, "predictors lengths"]) -> Float[np.ndarray, " predictors"]:
    """Return the largest risk over lengths."""
    return np.asarray(risks.max(axis=1))


OBJECTIVES: dict[str, Objective] = {"averaged": mean_objective, "minimax": minimax_objective}


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimizer:
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


def exact_risks(
    law: Planted, predictor: Predictor, lengths: Sequence[int], loss: Loss
) -> Float[np.ndarray, " lengths"]:
    """Return the exact risk at each length, by Laplace transform if possible and otherwise by enumeration."""
    is_linear = isinstance(loss, TotalVariation | Leakage)
    if isinstance(predictor, TabularAttention) and is_linear and law.placement.span is not None:
        # A head with a wide span has too many states, but its law may have few sequences.
        with suppress(SettingError):
            return laplace_risks(law, predictor, lengths, loss)
    return np.array([enumerated_risk(law, predictor, length, loss).mean for length in lengths])


def exact_erm(
    law: Planted,
    predictors: Sequence[Predictor],
    lengths: Sequence[int],
    loss: Loss,
    objective: str = "averaged",
    tolerance: float = 1e-12,
) -> Minimizer:
    """Find the predictor of a finite class with the smallest mean or maximum population risk over the lengths.

    Objectives that differ by at most ``tolerance`` are ties. The mean objective is equation (3) of Golowich et al.
    2025 (arXiv 2502.16792).
    """
    if objective not in OBJECTIVES:
        raise unknown_name("objective", objective, OBJECTIVES)
    if not predictors or not lengths:
        raise SettingError(f"invalid {len(predictors)} predictors and {len(lengths)} lengths; use at least 1 of each")
    risks = np.stack([exact_risks(law, predictor, lengths, loss) for predictor in predictors])
    values = OBJECTIVES[objective](risks)
    ties = np.flatnonzero(values <= values.min() + tolerance)
    return Minimizer(
        best=int(ties[0]), ties=tuple(ties.tolist()), lengths=tuple(lengths), risks=risks, objective=values
    )
