"""The share of a far context that k of its tokens recover, from rows of losses, with intervals over documents."""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.errors import SettingError
from lengthwise.influence.kinds import Distances
from lengthwise.intervals import student
from lengthwise.randomness import stream

GROUP = ("mode", "knows", "from", "measure")
HEADLINE = ("strict", "target", "own")
LEVELS = (0.5, 0.8, 0.9)
BLOCK = 1 << 22  # numbers in one block of resamples

NO_CLEAR = "no clear target has this selection; measure more targets or lower the gap"
NO_GAP = "the far context lowers no loss in sum: there is nothing to recover"
NO_SAMPLE = "of the targets without a clear gap none is measured; measure a random share of them"
# Resampled intervals of fewer documents hold their value far less often than they say.
FEWEST = 5
FEW_DOCUMENTS = f"fewer than {FEWEST} documents: too few to resample; measure more documents"

Counts = Int[np.ndarray, "resamples documents"]
Statistic = Callable[[Counts], Float[np.ndarray, "resamples values"]]
Found = dict[str, Any]  # an object of summary.json
Sums = Float[np.ndarray, "documents values"]
Targets = Bool[np.ndarray, " targets"]


class _Selection:
    """One group's targets, their losses at each k, and the distances of what was chosen for clear ones."""

    def __init__(self) -> None:
        self.target, self.losses, self.distances = array("l"), array("d"), Distances()

    def measured(self) -> tuple[Int[np.ndarray, " measured"], Float[np.ndarray, "measured k"]]:
        """Which targets the group has, and their losses at each k."""
        return np.array(self.target), np.array(self.losses).reshape(len(self.target), -1)


class _Columns:
    """What summaries need of each row, as plain numbers: 100,000 rows take some tens of megabytes."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], ks: Sequence[int]) -> None:
        self.models: set[str] = set()
        self.documents: dict[str, int] = {}
        self.kinds: dict[str, array[int]] = {}
        self.groups: dict[tuple[str, ...], _Selection] = {}
        numbers, document = array("d"), array("l")
        for target, row in enumerate(rows):
            self.models.add(row["model"])
            document.append(self.documents.setdefault(row["document"], len(self.documents)))
            numbers.extend((row["loss_short"], row["loss_long"], row["clear"], row["weight"]))
            for kind in row["kinds"]:
                self.kinds.setdefault(kind, array("l")).append(target)
            for selection in row["selections"]:
                self._add(target, selection, len(ks), clear=row["clear"])
        if not document:
            raise SettingError("no rows to summarize; measure at least one target")
        self.document = np.array(document)
        self.short, self.long, clear, self.weight = np.array(numbers).reshape(-1, 4).T
        self.clear, self.gap = clear > 0, self.short - self.long
        self._check()

    def _add(self, target: int, selection: Mapping[str, Any], num_ks: int, *, clear: bool) -> None:
        if len(selection["losses"]) != num_ks:
            raise SettingError(
                f"row {target + 1} has {len(selection['losses'])} losses but k takes {num_ks} values; "
                "give the k of the run that wrote the rows"
            )
        group = self.groups.setdefault(tuple(selection[name] for name in GROUP), _Selection())
        group.target.append(target)
        group.losses.extend(selection["losses"])
        for token in selection["chosen"] if clear else ():
            group.distances.add(token["distance"], token["gain"])

    def _check(self) -> None:
        if len(self.models) > 1:
            raise SettingError(f"rows of several models ({', '.join(sorted(self.models))}); summarize each alone")
        bad = ~np.isfinite(self.gap)
        for group in self.groups.values():
            target, losses = group.measured()
            bad[target[~np.isfinite(losses).all(axis=1)]] = True
        if bad.any():
            raise SettingError(f"row {int(bad.argmax()) + 1} has a loss that is not finite; measure it in float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bootstrap:
    """Resamples documents with replacement; equally many documents are drawn alike, so groups can be compared."""

    seed: int
    resamples: int

    def __call__(self, statistic: Statistic, documents: int, undefined: str, width: int = 0) -> list[Found]:
        """Estimates from a statistic of ``width`` numbers; ``undefined`` says why it is NaN, where it is."""
        values = np.concatenate([statistic(counts) for counts in self.counts(documents, width)])
        return [_estimate(column, documents, undefined) for column in values.T]

    def counts(self, documents: int, width: int) -> Iterator[Counts]:
        """How often each document is drawn: first once each, then in blocks of resamples that fit in memory."""
        yield np.ones((1, documents), dtype=np.int64)
        rng = stream(self.seed, "influence documents", documents)
        at_once = max(1, BLOCK // max(documents, width, 1))
        for first in range(0, self.resamples if documents >= FEWEST else 0, at_once):
            rows = min(at_once, self.resamples - first)
            drawn = rng.integers(0, documents, size=(rows, documents)) + documents * np.arange(rows)[:, None]
            yield np.bincount(drawn.ravel(), minlength=rows * documents).reshape(rows, documents)


def _estimate(values: Float[np.ndarray, " resamples"], documents: int, undefined: str) -> Found:
    """The first value with the 95% interval of the rest; tails as Student's t has for few (Hesterberg 2015)."""
    value, resampled = float(values[0]), values[1:]
    found: Found = {"value": value, "low": None, "high": None, "reason": None}
    if math.isnan(value):
        return found | {"value": None, "reason": undefined}
    if documents < FEWEST:
        return found | {"reason": FEW_DOCUMENTS}
    if lost := int(np.isnan(resampled).sum()):
        return found | {"reason": f"in {lost:,} of {len(resampled):,} resamples {undefined}"}
    tail = NormalDist().cdf(-student(documents - 1) * math.sqrt(documents / (documents - 1)))
    low, high = np.quantile(resampled, tail, method="lower"), np.quantile(resampled, 1 - tail, method="higher")
    return found | {"low": float(low), "high": float(high)}


def summarize(rows: Iterable[Mapping[str, Any]], ks: Sequence[int], *, seed: int = 0, resamples: int = 1000) -> Found:
    """All of ``summary.json`` that rows of one model tell; losses in nats, distances in tokens.

    An estimate is ``value``, its 95% interval ``low`` to ``high`` from resampled documents, and ``reason``: why any of
    them is None. A smallest k is None when it is ``beyond`` the largest, its bounds are when beside no reason.
    """
    table, bootstrap = _Columns(rows, ks), _Bootstrap(seed=seed, resamples=resamples)
    all_of_them = np.ones(len(table.document), dtype=bool)
    return {
        "model": next(iter(table.models)),
        "ks": list(ks),
        "targets": len(table.document),
        "documents": len(table.documents),
        "clear": int(table.clear.sum()),
        "clear_documents": len(np.unique(table.document[table.clear])),
        "measured": int((table.weight > 0).sum()),
        "needs_no_far": _share(table, all_of_them, ~table.clear, bootstrap),
        "losses": {"short": float(table.short.mean()), "long": float(table.long.mean())},
        "resamples": resamples,
        "groups": [
            {
                **dict(zip(GROUP, key, strict=True)),
                **_over_clear(table, group, ks, all_of_them, bootstrap),
                "all_targets": _over_all(table, group, bootstrap),
                "distances": group.distances.summary(),
            }
            for key, group in table.groups.items()
        ],
        "kinds": [_kind(table, kind, ks, bootstrap) for kind in sorted(table.kinds)],
    }


def _kind(table: _Columns, kind: str, ks: Sequence[int], bootstrap: _Bootstrap) -> Found:
    within = np.zeros(len(table.document), dtype=bool)
    within[np.array(table.kinds[kind])] = True
    headline = next((group for key, group in table.groups.items() if key[:3] == HEADLINE), None)
    return {
        "kind": kind,
        "targets": int(within.sum()),
        "clear_share": _share(table, within, table.clear, bootstrap),
        "headline": None if headline is None else _over_clear(table, headline, ks, within, bootstrap),
    }


def _share(table: _Columns, within: Targets, counted: Targets, bootstrap: _Bootstrap) -> Found:
    """The share of the targets ``within`` that are ``counted``."""
    sums = _by_document(table.document[within], np.stack([counted[within], np.ones(within.sum())], axis=1))
    (found,) = bootstrap(_ratio_of_sums(sums), len(sums), NO_CLEAR)
    # Documents that all agree do not show how far others would.
    return found | {"low": None, "high": None, "reason": "all targets are alike"} if found["value"] in (0, 1) else found


def _over_clear(table: _Columns, group: _Selection, ks: Sequence[int], within: Targets, bootstrap: _Bootstrap) -> Found:
    """Recovered shares of the clear targets ``within``: of their sums, and the median over targets."""
    target, losses = group.measured()
    kept = (table.clear & within)[target]
    target, losses = target[kept], losses[kept]
    gap, gained = table.gap[target], table.short[target, None] - losses
    sums = _by_document(table.document[target], np.concatenate([gained, gap[:, None]], axis=1))
    undefined = NO_GAP if len(target) else NO_CLEAR
    # A target that far context does not help has no share of its own; the sums still hold it.
    defined = gap > 0
    names, document = np.unique(table.document[target][defined], return_inverse=True)
    medians = [_median(document, each) for each in (gained[defined] / gap[defined, None]).T]
    means = {"short": table.short[target], "long": table.long[target], "k": losses}
    return {
        "targets": len(target),
        "documents": len(sums),
        "losses": {name: each.mean(axis=0).tolist() for name, each in means.items()} if len(target) else None,
        "ratio_of_sums": bootstrap(_ratio_of_sums(sums), len(sums), undefined),
        "smallest_k": _smallest(sums, ks, bootstrap, undefined),
        "median": [bootstrap(median, len(names), undefined, len(document))[0] for median in medians],
        "without_gap": int((~defined).sum()),
    }


def _over_all(table: _Columns, group: _Selection, bootstrap: _Bootstrap) -> Found:
    """The recovered share of all targets' sums, though of those without a clear gap only a sample is measured.

    The sum of gaps is exact. What the others gain is the generalized regression estimate (Sarndal, Swensson and Wretman
    1992): a line of gain on gap, fitted to the sample by its weights. It errs far less than weighted sums, which also
    vary with how many targets a sample happens to hold and with their gaps.
    """
    target, losses = group.measured()
    gained = np.zeros((len(table.gap), losses.shape[1]))
    gained[target] = table.short[target, None] - losses
    rest, weight = table.weight != 1, np.where(table.weight == 1, 0.0, table.weight)
    scalars = np.stack([table.gap, rest, rest * table.gap, weight, weight * table.gap, weight * table.gap**2], axis=1)
    weighted = weight[:, None] * gained
    columns = [~rest[:, None] * gained, weighted, weighted * table.gap[:, None], scalars]
    sums = _by_document(table.document, np.concatenate(columns, axis=1))
    measured = int((table.weight[target] > 0).sum())
    undefined = NO_SAMPLE if rest.any() and not weight.any() else NO_GAP
    found = bootstrap(lambda counts: _regressed(counts @ sums), len(sums), undefined)
    if missing := int((table.weight > 0).sum()) - measured:
        lack = f"{missing} of the measured targets lack this selection"
        found = [_estimate(np.array([math.nan]), len(sums), lack) for _ in found]
    return {"targets": len(table.gap), "measured": measured, "ratio_of_sums": found}


def _regressed(sums: Float[np.ndarray, "resamples sums"]) -> Float[np.ndarray, "resamples k"]:
    certain, wy, wxy = np.split(sums[:, :-6], 3, axis=1)
    gap, number, x, w, wx, wxx = sums[:, -6:].T[:, :, None]
    # Sampled gaps that are all alike give no slope: their mean gain then stands for all.
    spread = np.broadcast_to(w * wxx - wx**2, wy.shape)
    slope = np.divide(w * wxy - wx * wy, spread, out=np.zeros_like(wy), where=spread > 1e-9 * w * wxx)
    level = _ratio(wy - slope * wx, w)
    return _ratio(certain + np.where(number > 0, number * level + slope * x, 0.0), gap)


def _ratio(
    above: Float[np.ndarray, "resamples values"], below: Float[np.ndarray, "resamples 1"]
) -> Float[np.ndarray, "resamples values"]:
    """The quotient; NaN, never a number, where the denominator is not positive."""
    return np.divide(above, below, out=np.full_like(above, math.nan), where=np.broadcast_to(below > 0, above.shape))


def _ratio_of_sums(sums: Sums) -> Statistic:
    """Sums over documents, divided by that of the last column."""
    return lambda counts: _ratio((totals := counts @ sums)[:, :-1], totals[:, -1:])


def _by_document(document: Int[np.ndarray, " targets"], values: Float[np.ndarray, "targets values"]) -> Sums:
    """Sums per document, of those that have any target."""
    names, place = np.unique(document, return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, place, values)
    return sums


def _median(document: Int[np.ndarray, " targets"], values: Float[np.ndarray, " targets"]) -> Statistic:
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


def _smallest(sums: Sums, ks: Sequence[int], bootstrap: _Bootstrap, undefined: str) -> list[Found]:
    """The smallest k that reaches each level."""

    def statistic(counts: Counts) -> Float[np.ndarray, "resamples levels"]:
        shares = _ratio_of_sums(sums)(counts)[:, np.argsort(ks)]
        reached = shares[:, :, None] >= np.array(LEVELS)  # resamples k levels
        first = np.where(reached.any(axis=1), reached.argmax(axis=1), len(ks))
        return np.where(np.isnan(shares).any(axis=1, keepdims=True), math.nan, first)

    # Beyond the largest k there is no number to give.
    named = dict(enumerate([*sorted(ks), None]))
    return [
        {"share": level, "beyond": found["value"] == len(ks), "reason": found["reason"]}
        | {name: named.get(found[bound]) for name, bound in (("k", "value"), ("low", "low"), ("high", "high"))}
        for level, found in zip(LEVELS, bootstrap(statistic, len(sums), undefined), strict=True)
    ]
