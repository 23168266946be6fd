"""Confidence intervals of accuracies, and of means over clusters such as documents.

SciPy has the Wilson interval and Student's t too, but importing it takes 0.8 s in every process that evaluates, it
needs 140 MB on the disk, and its Wilson interval accepts no fractional number of successes (``interval_over_models``).
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float, Int


def wilson_interval(successes: int | float, trials: int, z_score: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of the fraction of successes (Wilson 1927); the default z-score gives 95%."""
    success_fraction = successes / trials
    z_squared = z_score * z_score
    center = (success_fraction + z_squared / (2 * trials)) / (1 + z_squared / trials)
    variance = success_fraction * (1 - success_fraction) / trials + z_squared / (4 * trials * trials)
    margin = z_score / (1 + z_squared / trials) * math.sqrt(variance)
    return max(0.0, center - margin), min(1.0, center + margin)


def interval_over_models(successes: Sequence[int], trials: Sequence[int]) -> tuple[float, float]:
    """Return the 95% confidence interval of the mean accuracy of several models; pass one entry per model.

    The results of several models on the same examples are not independent. The interval therefore covers both
    Student's t interval over the models and the Wilson interval of the mean accuracy with the examples of one model.
    """
    num_models, success_fraction = len(trials), sum(successes) / sum(trials)
    low, high = wilson_interval(success_fraction * max(trials), max(trials))
    if num_models > 1:
        standard_deviation = float(np.std(np.divide(successes, trials), ddof=1))
        margin = t_critical_value(num_models - 1) * standard_deviation / math.sqrt(num_models)
        low, high = max(0.0, min(low, success_fraction - margin)), min(1.0, max(high, success_fraction + margin))
    return low, high


def clustered_interval(
    sums: Float[np.ndarray, " clusters"], counts: Int[np.ndarray, " clusters"]
) -> tuple[float | None, float | None]:
    """Return the 95% interval of ``sum(sums) / sum(counts)``, or ``(None, None)`` for fewer than two clusters.

    The interval uses the linearized variance (Cochran 1977, section 6.3) and Student's t with one degree of freedom per
    cluster, minus 1.
    """
    num_clusters = len(sums)
    if num_clusters < 2:
        return None, None
    mean_per_count = sums.sum() / counts.sum()
    variance = ((sums - mean_per_count * counts) ** 2).sum() * num_clusters / (num_clusters - 1)
    margin = t_critical_value(num_clusters - 1) * math.sqrt(variance) / counts.sum()
    return float(mean_per_count - margin), float(mean_per_count + margin)


@cache
def t_critical_value(degrees_of_freedom: int, confidence_level: float = 0.95) -> float:
    """Return the two-sided critical value of Student's t for a confidence level, to four digits."""
    # After the substitution t ~ tan(angle), the density is a power of the cosine.
    angles = (np.arange(100_000) + 0.5) * (math.pi / 200_000)
    cumulative_density = np.cumsum(np.cos(angles) ** (degrees_of_freedom - 1))
    index = np.searchsorted(cumulative_density, confidence_level * cumulative_density[-1])
    return math.sqrt(degrees_of_freedom) * math.tan(angles[index])
