"""A sparse functional attention over all sets of k tokens that ignores where they stand."""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.distribution import check_listed
from lengthwise.theory.attention.tabular import normalized


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
