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

BLOCK_SIZE = 1 << 22  # maximum number of values in one block of resamples
# With fewer documents, bootstrap intervals contain the true value far less often than their level.
MIN_DOCUMENTS = 5
TOO_FEW_DOCUMENTS = f"fewer than {MIN_DOCUMENTS} documents, too few for an interval; measure more documents"

Counts = Int[np.ndarray, "resamples documents"]
Statistic = Callable[[Counts], Float[np.ndarray, "resamples values"]]
# Object of summary.json. An estimate has the keys value, low, high, and reason (the reason for a missing number).
JSON = dict[str, Any]
Sums = Float[np.ndarray, "documents values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Bootstrap over documents. Statistics over the same number of documents use the same resamples."""

    seed: int
    num_resamples: int

    def __call__(self, statistic: Statistic, documents: int, nan_reason: str, num_values: int = 0) -> list[JSON]:
        """Return one estimate per value of a statistic. A value of NaN becomes None with the reason ``nan_reason``.

        ``num_values`` is the number of values per resample that the statistic keeps in memory.
        """
        values = np.concatenate([statistic(counts) for counts in self.counts(documents, num_values)])
        return [estimate(column, documents, nan_reason) for column in values.T]

    def counts(self, documents: int, num_values: int) -> Iterator[Counts]:
        """Yield the number of copies of each document: first 1 for the original sample, then blocks of resamples."""
        yield np.ones((1, documents), dtype=np.int64)
        rng = stream(self.seed, "influence documents", documents)
        block_size = max(1, BLOCK_SIZE // max(documents, num_values, 1))
        for first in range(0, self.num_resamples if documents >= MIN_DOCUMENTS else 0, block_size):
            size = min(block_size, self.num_resamples - first)
            samples = rng.integers(0, documents, size=(size, documents)) + documents * np.arange(size)[:, None]
            yield np.bincount(samples.ravel(), minlength=size * documents).reshape(size, documents)


def estimate(values: Float[np.ndarray, " resamples"], documents: int, nan_reason: str) -> JSON:
    """Return the estimate ``values[0]`` with the 95% interval of the resamples ``values[1:]``.

    A correction with Student's t widens the interval for few documents (Hesterberg 2015).
    """
    value, resamples = float(values[0]), values[1:]
    result: JSON = {"value": value, "low": None, "high": None, "reason": None}
    if math.isnan(value):
        return result | {"value": None, "reason": nan_reason}
    if documents < MIN_DOCUMENTS:
        return result | {"reason": TOO_FEW_DOCUMENTS}
    if num_undefined := int(np.isnan(resamples).sum()):
        return result | {"reason": f"in {num_undefined:,} of {len(resamples):,} resamples, {nan_reason}"}
    tail = NormalDist().cdf(-t_critical_value(documents - 1) * math.sqrt(documents / (documents - 1)))
    low, high = np.quantile(resamples, tail, method="lower"), np.quantile(resamples, 1 - tail, method="higher")
    return result | {"low": float(low), "high": float(high)}


def undefined_estimates(number: int, reason: str) -> list[JSON]:
    """Return estimates without a value, for the same reason."""
    return [{"value": None, "low": None, "high": None, "reason": reason} for _ in range(number)]


def sums_by_document(document: Int[np.ndarray, " targets"], values: Float[np.ndarray, "targets values"]) -> Sums:
    """Return the sum of the values for each document that has targets."""
    documents, index = np.unique(document, return_inverse=True)
    sums = np.zeros((len(documents), values.shape[1]))
    np.add.at(sums, index, values)
    return sums


def ratio(
    numerator: Float[np.ndarray, "resamples values"], denominator: Float[np.ndarray, "resamples _"]
) -> Float[np.ndarray, "resamples values"]:
    """Return the quotients, or NaN where the denominator is not positive."""
    denominator = np.broadcast_to(denominator, numerator.shape)
    return np.divide(numerator, denominator, out=np.full_like(numerator, math.nan), where=denominator > 0)


def ratio_of_sums(sums: Sums) -> Statistic:
    """Return a statistic that divides the sum of each column over documents by the sum of the last column."""
    return lambda counts: ratio((totals := counts @ sums)[:, :-1], totals[:, -1:])


def median(document: Int[np.ndarray, " targets"], values: Float[np.ndarray, " targets"]) -> Statistic:
    """Return a statistic that is the median over the targets of all resampled documents."""
    order = values.argsort(kind="stable")
    sorted_values, sorted_documents = values[order], document[order]

    def statistic(counts: Counts) -> Float[np.ndarray, "resamples 1"]:
        if not len(sorted_values):
            return np.full((len(counts), 1), math.nan)
        cumulative_counts = counts[:, sorted_documents].cumsum(axis=1)
        # The median of an even number of values is the mean of the two middle values.
        middle_indices = [np.searchsorted(row, ((row[-1] + 1) // 2, row[-1] // 2 + 1)) for row in cumulative_counts]
        return sorted_values[np.array(middle_indices)].mean(axis=1, keepdims=True)

    return statistic


def smallest_k(
    shares: Statistic, ks: Sequence[int], levels: Sequence[float], documents: int, nan_reason: str, bootstrap: Bootstrap
) -> list[JSON]:
    """Return the smallest of ``ks`` at which the shares reach each level; ``beyond`` is True if no k does."""

    def statistic(counts: Counts) -> Float[np.ndarray, "resamples levels"]:
        values = shares(counts)
        is_reached = values[:, :, None] >= np.array(levels)  # resamples k levels
        first = np.where(is_reached.any(axis=1), is_reached.argmax(axis=1), len(ks))
        return np.where(np.isnan(values).any(axis=1, keepdims=True), math.nan, first)

    # The index after the largest k has no k.
    k_by_index = dict(enumerate([*ks, None]))
    return [
        {"share": level, "beyond": index["value"] == len(ks), "reason": index["reason"]}
        | {name: k_by_index.get(index[bound]) for name, bound in (("k", "value"), ("low", "low"), ("high", "high"))}
        for level, index in zip(levels, bootstrap(statistic, documents, nan_reason), strict=True)
    ]
