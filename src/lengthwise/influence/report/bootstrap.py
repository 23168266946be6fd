"""Estimates with intervals from resampled documents: tokens of one document are not independent."""

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
# Resampled intervals of fewer documents hold their value far less often than they say.
FEWEST = 5
FEW_DOCUMENTS = f"fewer than {FEWEST} documents: too few to resample; measure more documents"

Counts = Int[np.ndarray, "resamples documents"]
Statistic = Callable[[Counts], Float[np.ndarray, "resamples values"]]
# An object of summary.json. An estimate has value, low, high and the reason why any of them is None.
Found = dict[str, Any]
Sums = Float[np.ndarray, "documents values"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Resamples documents with replacement; equally many documents are drawn alike, so groups can be compared."""

    seed: int
    resamples: int

    def __call__(self, statistic: Statistic, documents: int, undefined: str, width: int = 0) -> list[Found]:
        """Estimates from a statistic of ``width`` numbers; ``undefined`` is the reason where it is NaN."""
        values = np.concatenate([statistic(counts) for counts in self.counts(documents, width)])
        return [estimate(column, documents, undefined) for column in values.T]

    def counts(self, documents: int, width: int) -> Iterator[Counts]:
        """How often each document is drawn: first once each, then in blocks of resamples that fit in memory."""
        yield np.ones((1, documents), dtype=np.int64)
        rng = stream(self.seed, "influence documents", documents)
        at_once = max(1, BLOCK // max(documents, width, 1))
        for first in range(0, self.resamples if documents >= FEWEST else 0, at_once):
            rows = min(at_once, self.resamples - first)
            drawn = rng.integers(0, documents, size=(rows, documents)) + documents * np.arange(rows)[:, None]
            yield np.bincount(drawn.ravel(), minlength=rows * documents).reshape(rows, documents)


def estimate(values: Float[np.ndarray, " resamples"], documents: int, undefined: str) -> Found:
    """The first value with the 95% interval of the rest; tails as Student's t has for few (Hesterberg 2015)."""
    value, resampled = float(values[0]), values[1:]
    found: Found = {"value": value, "low": None, "high": None, "reason": None}
    if math.isnan(value):
        return found | {"value": None, "reason": undefined}
    if documents < FEWEST:
        return found | {"reason": FEW_DOCUMENTS}
    if lost := int(np.isnan(resampled).sum()):
        return found | {"reason": f"in {lost:,} of {len(resampled):,} resamples {undefined}"}
    tail = NormalDist().cdf(-t_critical_value(documents - 1) * math.sqrt(documents / (documents - 1)))
    low, high = np.quantile(resampled, tail, method="lower"), np.quantile(resampled, 1 - tail, method="higher")
    return found | {"low": float(low), "high": float(high)}


def missing(number: int, reason: str) -> list[Found]:
    """As many estimates that do not exist, for this reason."""
    return [{"value": None, "low": None, "high": None, "reason": reason} for _ in range(number)]


def by_document(document: Int[np.ndarray, " targets"], values: Float[np.ndarray, "targets values"]) -> Sums:
    """Sums per document, of those that have any target."""
    names, place = np.unique(document, return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, place, values)
    return sums


def ratio(
    above: Float[np.ndarray, "resamples values"], below: Float[np.ndarray, "resamples _"]
) -> Float[np.ndarray, "resamples values"]:
    """The quotient; NaN, never a number, where the denominator is not positive."""
    below = np.broadcast_to(below, above.shape)
    return np.divide(above, below, out=np.full_like(above, math.nan), where=below > 0)


def ratio_of_sums(sums: Sums) -> Statistic:
    """Sums over documents, divided by that of the last column."""
    return lambda counts: ratio((totals := counts @ sums)[:, :-1], totals[:, -1:])


def median(document: Int[np.ndarray, " targets"], values: Float[np.ndarray, " targets"]) -> Statistic:
    """The median over targets, each counted as often as its document is drawn."""
    order = values.argsort(kind="stable")
    ordered, drawn = values[order], document[order]

    def statistic(counts: Counts) -> Float[np.ndarray, "resamples 1"]:
        if not len(ordered):
            return np.full((len(counts), 1), math.nan)
        upto = counts[:, drawn].cumsum(axis=1)
        # The middle one of an odd number, the mean of the middle two of an even one.
        middle = [np.searchsorted(row, ((row[-1] + 1) // 2, row[-1] // 2 + 1)) for row in upto]
        return ordered[np.array(middle)].mean(axis=1, keepdims=True)

    return statistic


def smallest_k(
    shares: Statistic, ks: Sequence[int], levels: Sequence[float], documents: int, undefined: str, bootstrap: Bootstrap
) -> list[Found]:
    """The smallest k at which shares, one for each of rising ``ks``, reach each level."""

    def statistic(counts: Counts) -> Float[np.ndarray, "resamples levels"]:
        found = shares(counts)
        reached = found[:, :, None] >= np.array(levels)  # resamples k levels
        first = np.where(reached.any(axis=1), reached.argmax(axis=1), len(ks))
        return np.where(np.isnan(found).any(axis=1, keepdims=True), math.nan, first)

    # Beyond the largest k there is no number to give.
    named = dict(enumerate([*ks, None]))
    return [
        {"share": level, "beyond": found["value"] == len(ks), "reason": found["reason"]}
        | {name: named.get(found[bound]) for name, bound in (("k", "value"), ("low", "low"), ("high", "high"))}
        for level, found in zip(levels, bootstrap(statistic, documents, undefined), strict=True)
    ]
