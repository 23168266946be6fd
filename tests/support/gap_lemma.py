"""The two inequalities of the gap lemma, which compares a long random gap with shorter gaps."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class GapChain:
    """Chain of independent blocks in a gap, with nonnegative costs of blocks, neighbors and both ends.

    A block has value v with probability ``probability[v]``. Negative costs or an invalid distribution raise a
    ``SettingError``. The chain is not part of the paper.
    """

    probability: Float[np.ndarray, " values"]
    inside: Float[np.ndarray, " values"]
    between: Float[np.ndarray, "values values"]
    left: Float[np.ndarray, " values"]
    right: Float[np.ndarray, " values"]

    def __post_init__(self) -> None:
        if abs(self.probability.sum() - 1) > 1e-9 or (self.probability < 0).any():
            raise SettingError(f"invalid block probabilities {self.probability}; they must be nonnegative and sum to 1")
        for name in ("inside", "between", "left", "right"):
            if not (getattr(self, name) >= 0).all():
                raise SettingError(f"negative or NaN cost in '{name}'; use costs of 0 or more")

    def log_means(self, max_blocks: int) -> Float[np.ndarray, " max_blocks"]:
        """Return ``log E exp(-cost)`` for 1 to ``max_blocks`` blocks; minus infinity if all costs are infinite."""
        if max_blocks < 1:
            raise SettingError(f"invalid max_blocks {max_blocks}; use 1 or more")
        with np.errstate(divide="ignore"):
            start = np.log(self.probability) - self.inside
        prefix = start - self.left
        means = [_log_sum(prefix - self.right)]
        for _ in range(1, max_blocks):
            prefix = start + _log_sum(prefix[:, None] - self.between)
            means.append(_log_sum(prefix - self.right))
        return np.array(means)


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSides:
    """Sides of the inequalities ``shortened >= lower`` and ``mean <= upper``; ``mean`` is the q of the long gap."""

    mean: float
    shortened: float
    lower: float
    upper: float


def gap_sides(chain: GapChain, n0: int, blocks: int, theta: float = 0.5) -> GapSides:
    """Compute both inequalities for a gap of ``blocks >= 2 n0 + 2`` blocks and ``0 < theta < 1``.

    ``shortened`` is the average of ``q_(i+j+1)`` over i, j from 1 to ``n0``. It is at least ``q (1 - log(1/q) / n0)``,
    and q is at most ``shortened / (1 - theta) + exp(-theta n0)``.
    """
    if n0 < 1 or blocks < 2 * n0 + 2 or not 0 < theta < 1:
        raise SettingError(
            f"invalid blocks {blocks}, n0 {n0} or theta {theta}; use n0 >= 1, at least 2 n0 + 2 blocks, and theta "
            "between 0 and 1"
        )
    log_means = chain.log_means(blocks)
    steps = np.arange(1, n0 + 1)
    shortened = float(np.exp(log_means[steps[:, None] + steps]).mean())
    log_mean = float(log_means[blocks - 1])
    mean = float(np.exp(log_mean))
    # x log(1/x) tends to 0.
    lower = mean * (1 + log_mean / n0) if mean > 0 else 0.0
    upper = shortened / (1 - theta) + float(np.exp(-theta * n0))
    return GapSides(mean=mean, shortened=shortened, lower=lower, upper=upper)


def _log_sum(logs: Float[np.ndarray, "values *others"]) -> np.ndarray:
    """Return the log of the sum of exponentials over the first axis; minus infinity if all exponentials are 0."""
    largest = logs.max(axis=0)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs - shift).sum(axis=0)) + shift)
