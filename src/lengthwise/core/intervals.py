"""Confidence intervals of accuracies, and of means over clusters such as documents."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float, Int


def wilson_interval(successes: int | float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Return the Wilson score interval of a share (Wilson 1927); the default level is 95%."""
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def interval_over_models(successes: Sequence[int], trials: Sequence[int]) -> tuple[float, float]:
    """Return the 95% interval of the mean share of several models on the same examples; pass one entry per model.

    The results of several models on the same examples are not independent. The interval therefore covers both the
    Wilson interval of the mean share for the examples of one model and Student's t interval over the models.
    """
    number, share = len(trials), sum(successes) / sum(trials)
    low, high = wilson_interval(share * max(trials), max(trials))
    if number > 1:
        half = t_critical_value(number - 1) * float(np.std(np.divide(successes, trials), ddof=1)) / math.sqrt(number)
        low, high = max(0.0, min(low, share - half)), min(1.0, max(high, share + half))
    return low, high


def clustered_interval(
    sums: Float[np.ndarray, " clusters"], counts: Int[np.ndarray, " clusters"]
) -> tuple[float | None, float | None]:
    """Return the 95% interval of ``sum(sums) / sum(counts)`` over sampled clusters; None for fewer than two.

    The interval uses the linearized variance (Cochran 1977, section 6.3) and Student's t for the number of clusters.
    """
    clusters = len(sums)
    if clusters < 2:
        return None, None
    mean = sums.sum() / counts.sum()
    spread = ((sums - mean * counts) ** 2).sum() * clusters / (clusters - 1)
    half = t_critical_value(clusters - 1) * math.sqrt(spread) / counts.sum()
    return float(mean - half), float(mean + half)


@cache
def t_critical_value(freedom: int, level: float = 0.95) -> float:
    """Return the two-sided critical value of Student's t for a confidence level, to four digits."""
    # After the substitution t ~ tan(angle), the density is a power of the cosine.
    angle = (np.arange(100_000) + 0.5) * (math.pi / 200_000)
    mass = np.cumsum(np.cos(angle) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(angle[np.searchsorted(mass, level * mass[-1])])
