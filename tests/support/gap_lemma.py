"""A long random gap between two stretches, and shorter ones in its place: both sides of the inequality, computed."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from lengthwise.core.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class GapChain:
    """``n`` independent blocks in a gap, with non-negative costs: of a block, of neighbours, and of the two ends.

    A block has value v with probability ``probability[v]``; ``inside``, ``between``, ``left`` and ``right`` are costs
    that add up. ``SettingError`` for negative costs or what is no law. Derived here.
    """

    probability: Float[np.ndarray, " values"]
    inside: Float[np.ndarray, " values"]
    between: Float[np.ndarray, "values values"]
    left: Float[np.ndarray, " values"]
    right: Float[np.ndarray, " values"]

    def __post_init__(self) -> None:
        if abs(self.probability.sum() - 1) > 1e-9 or (self.probability < 0).any():
            raise SettingError(f"probabilities {self.probability} of the blocks make no law; they have to add up to 1")
        for name in ("inside", "between", "left", "right"):
            if not (getattr(self, name) >= 0).all():
                raise SettingError(f"a cost in '{name}' is below 0 or no number; give costs of 0 or more")

    def log_means(self, most: int) -> Float[np.ndarray, " most"]:
        """The log of ``q_n = E exp(-cost)`` for n from 1 to ``most`` blocks; minus infinity where no gap is free."""
        if most < 1:
            raise SettingError(f"a gap of {most} blocks has no cost; ask for 1 or more")
        with np.errstate(divide="ignore"):
            start = np.log(self.probability) - self.inside
        ahead = start - self.left
        means = [_log_sum(ahead - self.right)]
        for _ in range(1, most):
            ahead = start + _log_sum(ahead[:, None] - self.between)
            means.append(_log_sum(ahead - self.right))
        return np.array(means)


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSides:
    """``shortened >= kept``, and ``mean <= split``: what is proved of ``mean``, the ``q`` of the long gap."""

    mean: float
    shortened: float
    kept: float
    split: float


def gap_sides(chain: GapChain, kept: int, blocks: int, theta: float = 0.5) -> GapSides:
    """Both inequalities for a gap of ``blocks >= 2 kept + 2`` blocks and ``0 < theta < 1``. Derived here.

    ``shortened`` is the average of ``q_(i+j+1)`` over i, j from 1 to ``kept``; it is at least ``q (1 - log(1/q) /
    kept)``; and q is at most ``shortened / (1 - theta) + exp(-theta kept)``.
    """
    if kept < 1 or blocks < 2 * kept + 2 or not 0 < theta < 1:
        raise SettingError(
            f"{blocks} blocks, {kept} kept on each side, theta {theta}: keep at least 1, take twice as many "
            "blocks and 2 more, and a theta between 0 and 1"
        )
    log_means = chain.log_means(blocks)
    each = np.arange(1, kept + 1)
    shortened = float(np.exp(log_means[each[:, None] + each]).mean())
    log_mean = float(log_means[blocks - 1])
    mean = float(np.exp(log_mean))
    # x log(1/x) tends to 0.
    lower = mean * (1 + log_mean / kept) if mean > 0 else 0.0
    return GapSides(
        mean=mean, shortened=shortened, kept=lower, split=shortened / (1 - theta) + float(np.exp(-theta * kept))
    )


def _log_sum(logs: Float[np.ndarray, "values *others"]) -> np.ndarray:
    """The log of the sum of exponentials over the first axis, also where all are 0."""
    top = logs.max(axis=0)
    anchor = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs - anchor).sum(axis=0)) + anchor)
