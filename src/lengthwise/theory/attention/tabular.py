"""Sparse functional attention as tables: the input of bounds and exact risks."""

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import check_number_of_placements

Tokens = Int[np.ndarray, "batch length"]
Outputs = Float[np.ndarray, "batch outputs"]
# The token indexes of all sets, with the log score and the value of each set in each sequence.
ScoredSets = tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, "batch sets"], Float[np.ndarray, "batch sets outputs"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TabularAttention:
    """Relative, local attention ``f(x) = sum_S g(S, x_S) h(S, x_S) / sum_S g(S, x_S)`` over sets ``S = c + shape``.

    Relative: the start ``c`` has no effect. Local: no shape is wider than ``span``. ``log_scores`` contains log g,
    with minus infinity for g = 0. Tokens are the digits of the code of a tuple; the first token is the leading digit.
    ``default`` is the output if all scores are 0. Golowich et al. 2025 (arXiv 2502.16792), section 3.
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
                f"{len(self.shapes)} shapes of {codes} tuples each; pass one score and one value per shape and tuple"
            )
        _check_log_scores(self.log_scores)

    @property
    def k(self) -> int:
        """Number of tokens in a set."""
        return self.shapes.shape[1]

    @property
    def span(self) -> int:
        """Span of the widest shape in tokens, including both ends."""
        return int(self.shapes[:, -1].max()) + 1

    def list_token_sets(self, length: int) -> tuple[Int[np.ndarray, "sets k"], Int[np.ndarray, " sets"]]:
        """Return all sets that fit in ``length`` tokens, as token indexes from 0, and the shape index of each set."""
        is_start = np.arange(length) < (length - self.shapes[:, -1])[:, None]
        shape_index, start_index = is_start.nonzero()
        return start_index[:, None] + self.shapes[shape_index], shape_index

    def score_token_sets(self, tokens: Tokens) -> ScoredSets:
        """Return all sets that fit in the sequences, and the log score and the value of each set."""
        sets, shape_index = self.list_token_sets(tokens.shape[1])
        codes = tokens[:, sets] @ self.num_tokens ** np.arange(self.k - 1, -1, -1)
        return sets, self.log_scores[shape_index, codes], self.values[shape_index, codes]

    def predict(self, tokens: Tokens) -> Outputs:
        """Return the weighted mean of the values, or the default if no set has weight."""
        return weighted_mean(*self.score_token_sets(tokens)[1:], self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionFreeAttention:
    """Attention ``f(x) = sum_S g(x_S) h(x_S) / sum_S g(x_S)`` over all sets of k tokens at any distance, in order.

    The tables are indexed by tuple code, as in ``TabularAttention``. Golowich et al. 2025 (arXiv 2502.16792), section
    3; attention without positions is derived here.
    """

    num_tokens: int
    k: int
    log_scores: Float[np.ndarray, " codes"]
    values: Float[np.ndarray, "codes outputs"]
    default: Float[np.ndarray, " outputs"]

    def __post_init__(self) -> None:
        if self.k < 1 or len(self.log_scores) != self.num_tokens**self.k:
            raise SettingError(
                f"got {len(self.log_scores)} scores for tuples of length {self.k} over {self.num_tokens} tokens; pass "
                f"{self.num_tokens ** max(self.k, 1)} scores, and use k >= 1"
            )
        _check_log_scores(self.log_scores)

    def score_token_sets(self, tokens: Tokens) -> ScoredSets:
        """Return all sets with their log scores and values; raise ``SettingError`` for too many sets to list."""
        length = tokens.shape[1]
        check_number_of_placements(comb(length, self.k), f"length {length}")
        sets = np.array(list(combinations(range(length), self.k)), dtype=np.int64).reshape(-1, self.k)
        codes = tokens[:, sets] @ self.num_tokens ** np.arange(self.k - 1, -1, -1)
        return sets, self.log_scores[codes], self.values[codes]

    def predict(self, tokens: Tokens) -> Outputs:
        """Return the weighted mean of the values, or the default if no set has weight."""
        return weighted_mean(*self.score_token_sets(tokens)[1:], self.default)


def normalize_scores(
    log_scores: Float[np.ndarray, "batch sets"],
) -> tuple[Float[np.ndarray, "batch sets"], Float[np.ndarray, " batch"]]:
    """Return the scores divided by their sum (0 if all are 0), and that sum relative to the largest score."""
    if log_scores.shape[1] == 0:
        return log_scores, np.zeros(len(log_scores))
    largest = log_scores.max(axis=1, keepdims=True)
    scores = np.exp(log_scores - np.where(np.isfinite(largest), largest, 0.0))
    score_sum = scores.sum(axis=1)
    return scores / np.where(score_sum > 0, score_sum, 1.0)[:, None], score_sum


def weighted_mean(
    log_scores: Float[np.ndarray, "batch sets"],
    values: Float[np.ndarray, "batch sets outputs"],
    default: Float[np.ndarray, " outputs"],
) -> Float[np.ndarray, "batch outputs"]:
    """Return the mean of the values weighted by scores, or the default if all scores of a sequence are 0."""
    weights, score_sum = normalize_scores(log_scores)
    return np.where(score_sum[:, None] > 0, np.einsum("bs,bso->bo", weights, values), default)


def _check_log_scores(log_scores: np.ndarray) -> None:
    if np.isnan(log_scores).any() or (log_scores == np.inf).any():
        raise SettingError("a log score is NaN or infinity; use finite values, or minus infinity for a score of 0")
