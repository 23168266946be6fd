"""Estimates with bootstrap intervals that resample documents, because tokens of one document are not independent."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.intervals import t_critical_value
from lengthwise.core.randomness import stream

MAX_BLOCK_VALUES = 1 << 22  # maximum number of values in one block of resamples
# With fewer documents, bootstrap intervals contain the true value far less often than their level.
MIN_DOCUMENTS = 5
TOO_FEW_DOCUMENTS = f"fewer than {MIN_DOCUMENTS} documents, too few for an interval; measure more documents"

Counts = Int[np.ndarray, "resamples documents"]
Values = Float[np.ndarray, "resamples values"]
Statistic = Callable[[Counts], Values]
# Object of summary.json. An estimate has the keys value, low, high, and reason (the reason for a missing number).
JSONObject = dict[str, Any]
Sums = Float[np.ndarray, "documents values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Bootstrap over documents. Statistics over the same number of documents use the same resamples."""

    seed: int
    num_resamples: int

    def __call__(
        self, statistic: Statistic, num_documents: int, nan_reason: str, num_values: int = 0
    ) -> list[JSONObject]:
        """Return one estimate per value of a statistic. A value of NaN becomes None with the reason ``nan_reason``.

        ``num_values`` is the number of values per resample that the statistic keeps in memory.
        """
        values = np.concatenate([statistic(counts) for counts in self.counts(num_documents, num_values)])
        return [estimate(column, num_documents, nan_reason) for column in values.T]

    def counts(self, num_documents: int, num_values: int) -> Iterator[Counts]:
        """Yield the number of copies of each document: first 1 for the original sample, then blocks of resamples."""
        yield np.ones((1, num_documents), dtype=np.int64)
        rng = stream(self.seed, "influence documents", num_documents)
        block_size = max(1, MAX_BLOCK_VALUES // max(num_documents, num_values, 1))
        for num_sampled in range(0, self.num_resamples if num_documents >= MIN_DOCUMENTS else 0, block_size):
            shape = min(block_size, self.num_resamples - num_sampled), num_documents
            samples = rng.integers(0, num_documents, size=shape) + num_documents * np.arange(shape[0])[:, None]
            yield np.bincount(samples.ravel(), minlength=math.prod(shape)).reshape(shape)


def estimate(values: Float[np.ndarray, " resamples"], num_documents: int, nan_reason: str) -> JSONObject:
    """Return the estimate ``values[0]`` with the 95% interval of the resamples ``values[1:]``.

    A correction with Student's t widens the interval for few documents (Hesterberg 2015).
    """
    value, resamples = float(values[0]), values[1:]
    result: JSONObject = {"value": value, "low": None, "high": None, "reason": None}
    if math.isnan(value):
        return result | {"value": None, "reason": nan_reason}
    if num_documents < MIN_DOCUMENTS:
        return result | {"reason": TOO_FEW_DOCUMENTS}
    if num_undefined := int(np.isnan(resamples).sum()):
        return result | {"reason": f"in {num_undefined:,} of {len(resamples):,} resamples, {nan_reason}"}
    z = t_critical_value(num_documents - 1) * math.sqrt(num_documents / (num_documents - 1))
    tail_probability = NormalDist().cdf(-z)
    low = np.quantile(resamples, tail_probability, method="lower")
    high = np.quantile(resamples, 1 - tail_probability, method="higher")
    return result | {"low": float(low), "high": float(high)}


def undefined_estimates(number: int, reason: str) -> list[JSONObject]:
    """Return estimates without a value, for the same reason."""
    return [{"value": None, "low": None, "high": None, "reason": reason} for _ in range(number)]


def sums_by_document(
    document_indices: Int[np.ndarray, " targets"], values: Float[np.ndarray, "targets values"]
) -> Sums:
    """Return the sum of the values for each document that has targets."""
    documents, rows = np.unique(document_indices, return_inverse=True)
    sums = np.zeros((len(documents), values.shape[1]))
    np.add.at(sums, rows, values)
    return sums


def ratio(numerator: Values, denominator: Float[np.ndarray, "resamples _"]) -> Values:
    """Return the quotients, or NaN where the denominator is not positive."""
    denominator = np.broadcast_to(denominator, numerator.shape)
    return np.divide(numerator, denominator, out=np.full_like(numerator, math.nan), where=denominator > 0)


def ratio_of_sums(sums: Sums) -> Statistic:
    """Return a statistic that divides the sum of each column over documents by the sum of the last column."""
    return lambda document_counts: ratio((totals := document_counts @ sums)[:, :-1], totals[:, -1:])


def median(document_indices: Int[np.ndarray, " targets"], values: Float[np.ndarray, " targets"]) -> Statistic:
    """Return a statistic that is the median over the targets of all resampled documents."""
    sorted_indices = values.argsort(kind="stable")
    sorted_values, sorted_documents = values[sorted_indices], document_indices[sorted_indices]

    def statistic(document_counts: Counts) -> Float[np.ndarray, "resamples 1"]:
        if not len(sorted_values):
            return np.full((len(document_counts), 1), math.nan)
        cumulative_counts = document_counts[:, sorted_documents].cumsum(axis=1)
        # The median of an even number of values is the mean of the two middle values.
        middle_indices = [np.searchsorted(row, ((row[-1] + 1) // 2, row[-1] // 2 + 1)) for row in cumulative_counts]
        return sorted_values[np.array(middle_indices)].mean(axis=1, keepdims=True)

    return statistic


def smallest_k(
    shares: Statistic,
    ks: Sequence[int],
    levels: Sequence[float],
    num_documents: int,
    nan_reason: str,
    bootstrap: Bootstrap,
) -> list[JSONObject]:
    """Return, for each level, the smallest of ``ks`` at which the share is at least the level.

    ``beyond`` is True if the share is below the level for all ``ks``.
    """

    def statistic(document_counts: Counts) -> Float[np.ndarray, "resamples levels"]:
        share_values = shares(document_counts)
        is_reached = share_values[:, :, None] >= np.array(levels)  # resamples k levels
        first_indices = np.where(is_reached.any(axis=1), is_reached.argmax(axis=1), len(ks))
        return np.where(np.isnan(share_values).any(axis=1, keepdims=True), math.nan, first_indices)

    # The index after the largest k has no k.
    k_of_index, keys = dict(enumerate([*ks, None])), (("k", "value"), ("low", "low"), ("high", "high"))
    return [
        {"share": level, "beyond": index["value"] == len(ks), "reason": index["reason"]}
        | {key: k_of_index.get(index[estimate_key]) for key, estimate_key in keys}
        for level, index in zip(levels, bootstrap(statistic, num_documents, nan_reason), strict=True)
    ]
