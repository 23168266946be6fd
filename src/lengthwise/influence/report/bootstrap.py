"""Estimates with bootstrap intervals over documents, because tokens of one document are not independent."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.intervals import t_critical_value
from lengthwise.core.randomness import stream

BLOCK = 1 << 22  # numbers in one block of resamples
# With fewer documents, bootstrap intervals contain the true value far less often than their level.
FEWEST = 5
FEW_DOCUMENTS = f"fewer than {FEWEST} documents, too few for an interval; measure more documents"

Counts = Int[np.ndarray, "resamples documents"]
Statistic = Callable[[Counts], Float[np.ndarray, "resamples values"]]
# Object of summary.json. An estimate has the keys value, low, high and reason (of a missing number).
JSON = dict[str, Any]
Sums = Float[np.ndarray, "documents values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Bootstrap over documents; statistics of the same number of documents share the resamples."""

    seed: int
    resamples: int

    def __call__(self, statistic: Statistic, documents: int, undefined: str, width: int = 0) -> list[JSON]:
        """Return an estimate per value of a statistic; ``undefined`` is the reason for NaN.

        ``width`` is the count of numbers per resample that the statistic keeps in memory.
        """
        values = np.concatenate([statistic(counts) for counts in self.counts(documents, width)])
        return [estimate(column, documents, undefined) for column in values.T]

    def counts(self, documents: int, width: int) -> Iterator[Counts]:
        """Yield document counts: first each document once, then blocks of resamples that fit in memory."""
        yield np.ones((1, documents), dtype=np.int64)
        rng = stream(self.seed, "influence documents", documents)
        block = max(1, BLOCK // max(documents, width, 1))
        for first in range(0, self.resamples if documents >= FEWEST else 0, block):
            number = min(block, self.resamples - first)
            draws = rng.integers(0, documents, size=(number, documents)) + documents * np.arange(number)[:, None]
            yield np.bincount(draws.ravel(), minlength=number * documents).reshape(number, documents)


def estimate(values: Float[np.ndarray, " resamples"], documents: int, undefined: str) -> JSON:
    """Return the first value with the 95% interval of the other values.

    For few documents, the tails follow Student's t (Hesterberg 2015).
    """
    value, resampled = float(values[0]), values[1:]
    result: JSON = {"value": value, "low": None, "high": None, "reason": None}
    if math.isnan(value):
        return result | {"value": None, "reason": undefined}
    if documents < FEWEST:
        return result | {"reason": FEW_DOCUMENTS}
    if num_undefined := int(np.isnan(resampled).sum()):
        return result | {"reason": f"in {num_undefined:,} of {len(resampled):,} resamples, {undefined}"}
    tail = NormalDist().cdf(-t_critical_value(documents - 1) * math.sqrt(documents / (documents - 1)))
    low, high = np.quantile(resampled, tail, method="lower"), np.quantile(resampled, 1 - tail, method="higher")
    return result | {"low": float(low), "high": float(high)}


def undefined_estimates(number: int, reason: str) -> list[JSON]:
    """Return estimates that have a reason in place of a value."""
    return [{"value": None, "low": None, "high": None, "reason": reason} for _ in range(number)]


def sums_by_document(document: Int[np.ndarray, " targets"], values: Float[np.ndarray, "targets values"]) -> Sums:
    """Sum the values over the targets of each document; omit documents without targets."""
    documents, index = np.unique(document, return_inverse=True)
    sums = np.zeros((len(documents), values.shape[1]))
    np.add.at(sums, index, values)
    return sums


def ratio(
    numerator: Float[np.ndarray, "resamples values"], denominator: Float[np.ndarray, "resamples _"]
) -> Float[np.ndarray, "resamples values"]:
    """Divide; return NaN where the denominator is not positive."""
    denominator = np.broadcast_to(denominator, numerator.shape)
    return np.divide(numerator, denominator, out=np.full_like(numerator, math.nan), where=denominator > 0)


def ratio_of_sums(sums: Sums) -> Statistic:
    """Return the statistic of sums over documents divided by the sum of the last column."""
    return lambda counts: ratio((totals := counts @ sums)[:, :-1], totals[:, -1:])


def median(document: Int[np.ndarray, " targets"], values: Float[np.ndarray, " targets"]) -> Statistic:
    """Return the statistic of the median over targets, each counted as often as its document."""
    order = values.argsort(kind="stable")
    sorted_values, sorted_documents = values[order], document[order]

    def statistic(counts: Counts) -> Float[np.ndarray, "resamples 1"]:
        if not len(sorted_values):
            return np.full((len(counts), 1), math.nan)
        cumulative = counts[:, sorted_documents].cumsum(axis=1)
        # The middle value of an odd number, or the mean of the two middle values of an even number.
        middle = [np.searchsorted(row, ((row[-1] + 1) // 2, row[-1] // 2 + 1)) for row in cumulative]
        return sorted_values[np.array(middle)].mean(axis=1, keepdims=True)

    return statistic


def smallest_k(
    shares: Statistic, ks: Sequence[int], levels: Sequence[float], documents: int, undefined: str, bootstrap: Bootstrap
) -> list[JSON]:
    """Return the first of the increasing ``ks`` at which the shares reach each level, or ``beyond`` without a k."""

    def statistic(counts: Counts) -> Float[np.ndarray, "resamples levels"]:
        values = shares(counts)
        reached = values[:, :, None] >= np.array(levels)  # resamples k levels
        first = np.where(reached.any(axis=1), reached.argmax(axis=1), len(ks))
        return np.where(np.isnan(values).any(axis=1, keepdims=True), math.nan, first)

    # An index beyond the largest k has no number.
    k_by_index = dict(enumerate([*ks, None]))
    return [
        {"share": level, "beyond": index["value"] == len(ks), "reason": index["reason"]}
        | {name: k_by_index.get(index[bound]) for name, bound in (("k", "value"), ("low", "low"), ("high", "high"))}
        for level, index in zip(levels, bootstrap(statistic, documents, undefined), strict=True)
    ]
