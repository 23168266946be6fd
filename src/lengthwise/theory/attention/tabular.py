"""Sparse functional attention as tables: the input of bounds and exact risks."""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.distribution import check_listed


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularAttention:
    """``f(x) = sum_S g(S, x_S) h(S, x_S) / sum_S g(S, x_S)`` over all sets ``S = c + shape`` that fit.

    Relative (the start ``c`` does not matter) and local (no shape reaches over more than ``span`` tokens): both by
    construction. ``log_scores`` are log g, minus infinity where g is 0; a tuple of tokens is read as a number, its
    code, the first token leading. ``default`` is the answer where all scores are 0. Golowich et al. 2025
    (arXiv 2502.16792), section 3.
    """

    num_tokens: int
    shapes: Int[np.ndarray, "shapes k"]
    log_scores: Float[np.ndarray, "shapes codes"]
    values: Float[np.ndarray, "shapes codes outputs"]
    default: Float[np.ndarray, " outputs"]

    def __post_init__(self) -> None:
        codes = self.num_tokens**self.k
        if self.log_scores.shape != (len(self.shapes), codes) or self.values.shape[:2] != self.log_scores.shape:
            raise SettingError(
                f"scores of shape {self.log_scores.shape} and values of shape {self.values.shape} do not fit "
                f"{len(self.shapes)} shapes of {codes} tuples each"
            )
        if np.isnan(self.log_scores).any() or (self.log_scores == np.inf).any():
            raise SettingError("a log score is infinite or no number; only minus infinity, a score of 0, is allowed")

    @property
    def k(self) -> int:
        """How many tokens a set has."""
        return self.shapes.shape[1]

    @property
    def span(self) -> int:
        """How many tokens the widest shape reaches over, the first and the last counted."""
        return int(self.shapes[:, -1].max()) + 1

    def sets(self, length: int) -> tuple[Int[np.ndarray, "sets k"], Int[np.ndarray, " sets"]]:
        """All sets that fit, token indexes from 0, and the number of the shape of each."""
        fits = np.arange(length) < (length - self.shapes[:, -1])[:, None]
        shape, start = fits.nonzero()
        return start[:, None] + self.shapes[shape], shape

    def scored(
        self, tokens: Int[np.ndarray, "batch length"]
    ) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, "batch sets"], Float[np.ndarray, "batch sets outputs"]]:
        """All sets that fit, with the log score and the value of each."""
        sets, shape = self.sets(tokens.shape[1])
        codes = tokens[:, sets] @ self.num_tokens ** np.arange(self.k - 1, -1, -1)
        return sets, self.log_scores[shape, codes], self.values[shape, codes]

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """The weighted mean of the values; the default where no set has any weight."""
        _, log_scores, values = self.scored(tokens)
        weights, total = normalized(log_scores)
        return np.where(total[:, None] > 0, np.einsum("bs,bso->bo", weights, values), self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionFreeAttention:
    """``f(x) = sum_S g(x_S) h(x_S) / sum_S g(x_S)`` over all sets of k tokens, however far apart, their order kept.

    ``log_scores``, ``values``, codes and ``default`` as in ``TabularAttention``. Golowich et al. 2025
    (arXiv 2502.16792), section 3; the class without positions is derived here.
    """

    num_tokens: int
    k: int
    log_scores: Float[np.ndarray, " codes"]
    values: Float[np.ndarray, "codes outputs"]
    default: Float[np.ndarray, " outputs"]

    def __post_init__(self) -> None:
        if self.k < 1 or len(self.log_scores) != self.num_tokens**self.k:
            raise SettingError(
                f"{len(self.log_scores)} scores do not fit tuples of {self.k} out of {self.num_tokens} tokens; give "
                f"{self.num_tokens ** max(self.k, 1)} and a k of 1 or more"
            )
        if np.isnan(self.log_scores).any() or (self.log_scores == np.inf).any():
            raise SettingError("a log score is infinite or no number; only minus infinity, a score of 0, is allowed")

    def scored(
        self, tokens: Int[np.ndarray, "batch length"]
    ) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, "batch sets"], Float[np.ndarray, "batch sets outputs"]]:
        """All sets, with the log score and the value of each; ``SettingError`` where there are too many to list."""
        length = tokens.shape[1]
        check_listed(comb(length, self.k), f"length {length}")
        sets = np.array(list(combinations(range(length), self.k)), dtype=np.int64).reshape(-1, self.k)
        codes = tokens[:, sets] @ self.num_tokens ** np.arange(self.k - 1, -1, -1)
        return sets, self.log_scores[codes], self.values[codes]

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """The weighted mean of the values; the default where no set has any weight."""
        _, log_scores, values = self.scored(tokens)
        weights, total = normalized(log_scores)
        return np.where(total[:, None] > 0, np.einsum("bs,bso->bo", weights, values), self.default)


def normalized(log_scores: Float[np.ndarray, "batch sets"]) -> tuple[Float[np.ndarray, "batch sets"], np.ndarray]:
    """Weights that add up to one in each row (all 0 where no score is above 0), and the sum relative to the largest."""
    if log_scores.shape[1] == 0:
        return log_scores, np.zeros(len(log_scores))
    top = log_scores.max(axis=1, keepdims=True)
    scores = np.exp(log_scores - np.where(np.isfinite(top), top, 0.0))
    total = scores.sum(axis=1)
    return scores / np.where(total > 0, total, 1.0)[:, None], total
