"""Rank correlations (Spearman) as statistics of a bootstrap over documents."""

import numpy as np
from jaxtyping import Float, Int

from lengthwise.influence.report.bootstrap import Counts, Statistic, divide_or_nan

Documents = Int[np.ndarray, " targets"]
Variable = Float[np.ndarray, " targets"]
Weights = Float[np.ndarray, "resamples targets"]
Correlations = Float[np.ndarray, "resamples 1"]


def rank_correlation(documents: Documents, first: Variable, second: Variable) -> Statistic:
    """Return a statistic that is Spearman's rank correlation of two variables over the targets of all documents.

    ``documents`` contains the document index of each target. Equal values have their mean rank. The statistic is NaN
    if all values of a variable are equal. Ranks are computed again for each resample.
    """

    def statistic(document_counts: Counts) -> Correlations:
        weights = document_counts[:, documents].astype(np.float64)
        return _correlation(weighted_ranks(first, weights), weighted_ranks(second, weights), weights)

    return statistic


def partial_rank_correlation(documents: Documents, first: Variable, second: Variable, given: Variable) -> Statistic:
    """Return a statistic that is the rank correlation of two variables after removing the linear effect of a third.

    The effect is linear in the ranks of ``given``. The statistic is NaN if all values of a variable are equal, or if
    the ranks of ``first`` or ``second`` follow from ``given``.
    """

    def statistic(document_counts: Counts) -> Correlations:
        weights = document_counts[:, documents].astype(np.float64)
        first_ranks, second_ranks, given_ranks = (weighted_ranks(values, weights) for values in (first, second, given))
        both = _correlation(first_ranks, second_ranks, weights)
        first_given, second_given = (_correlation(ranks, given_ranks, weights) for ranks in (first_ranks, second_ranks))
        unexplained = (1 - first_given**2) * (1 - second_given**2)
        return divide_or_nan(both - first_given * second_given, np.sqrt(unexplained))

    return statistic


def weighted_ranks(values: Variable, weights: Weights) -> Weights:
    """Return the rank of each value, from 0, in a sample that contains each value ``weights`` times.

    Equal values have their mean rank.
    """
    sorted_indices = values.argsort(kind="stable")
    _, group_starts, group_indices = np.unique(values[sorted_indices], return_index=True, return_inverse=True)
    group_weights = np.add.reduceat(weights[:, sorted_indices], group_starts, axis=1)
    # The ranks of a group are the group_weights integers from the number of smaller values.
    mean_ranks = group_weights.cumsum(axis=1) - (group_weights + 1) / 2
    ranks = np.empty_like(weights)
    ranks[:, sorted_indices] = mean_ranks[:, group_indices]
    return ranks


def _correlation(first: Weights, second: Weights, weights: Weights) -> Correlations:
    """Return the weighted Pearson correlation of each row, or NaN if one of the variables is constant."""
    total = weights.sum(axis=1, keepdims=True)
    first, second = (values - (weights * values).sum(axis=1, keepdims=True) / total for values in (first, second))
    covariance, first_variance, second_variance = (
        (weights * product).sum(axis=1, keepdims=True) for product in (first * second, first**2, second**2)
    )
    return divide_or_nan(covariance, np.sqrt(first_variance * second_variance))
