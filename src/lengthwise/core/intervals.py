"""Intervals of shares, and of means over clusters, such as the documents that tokens come from."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from jaxtyping import Float, Int


def wilson_interval(successes: int | float, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a share, 95% by default (Wilson 1927); never leaves [0, 1]."""
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    return max(0.0, middle - half), min(1.0, middle + half)


def interval_over_models(successes: Sequence[int], trials: Sequence[int]) -> tuple[float, float]:
    """The 95% interval of a share that several models have of the same examples, a number of each for each model.

    Examples asked of five models are no five times as many. So it reaches, on either side, as far as the wider one of
    two: the Wilson interval of the mean share of one model's examples, and Student's t over the models.
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
    """The 95% interval of ``sum(sums) / sum(counts)``, clusters being what was drawn; None of fewer than two.

    Linearised (Cochran 1977, section 6.3), with Student's t for the number of clusters.
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
    """The bound that Student's t keeps within in 95% of cases, or ``level`` of them, to four digits."""
    # With the tangent of an angle as variable, the density is a power of the cosine.
    angle = (np.arange(100_000) + 0.5) * (math.pi / 200_000)
    mass = np.cumsum(np.cos(angle) ** (freedom - 1))
    return math.sqrt(freedom) * math.tan(angle[np.searchsorted(mass, level * mass[-1])])
