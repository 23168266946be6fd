"""What a study's rows say: what own far tokens gain beside others, and how few of them give the same prediction."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lengthwise.influence.report.answer_sentence import LEVELS, answer
from lengthwise.influence.report.bootstrap import Bootstrap, Found, by_document, median, missing, ratio_of_sums
from lengthwise.influence.report.population_estimates import Divergences, Population
from lengthwise.influence.report.row_columns import GROUP, SOURCES, Columns, Measured, PerTarget, Targets

NO_TARGETS = "no target has far tokens of this source"
NO_CLEAR = "no target with a clear gap has this selection"
NO_GAP = "the far context lowers no loss in sum: there is nothing to recover"


def summarize(rows: Iterable[Mapping[str, Any]], ks: Sequence[int], *, seed: int = 0, resamples: int = 1000) -> Found:
    """All of ``summary.json`` that rows of one model tell; losses in nats, distances in tokens.

    An estimate is ``value``, its 95% interval ``low`` to ``high`` from resampled documents, and ``reason``: why any of
    them is None. A smallest k is None when it is ``beyond`` the largest, its bounds are when beside no reason. What is
    under ``selected`` is about targets that were chosen by the very losses that it compares: no result by itself.
    """
    table, bootstrap = Columns(rows, ks), Bootstrap(seed=seed, resamples=resamples)
    every = Population(table=table, within=table.everything, bootstrap=bootstrap)
    found = {
        "model": next(iter(table.models)),
        "ks": list(ks),
        "targets": len(table.document),
        "documents": len(table.documents),
        "measured": int((table.weight > 0).sum()),
        "resamples": resamples,
        "loss_short": float(table.short.mean()),
        "divergence_short": every.mean(table.divergence, NO_TARGETS),
        "far": [_source(every, source) for source in SOURCES],
        "groups": [_group(every, name, ks) for name in table.groups],
        "paired": list(_pairs(every, ks)),
        "kinds": [_kind(every.among(table.of_kind(kind)), kind) for kind in sorted(table.kinds)],
    }
    return found | {"answer": answer(found)}


def _source(every: Population, name: str) -> Found:
    """All far tokens of a source, over the targets that have any."""
    table, source = every.table, every.table.sources[name]
    population = every.among(source.exists)
    return {
        "from": name,
        **population.counts,
        "gain": population.mean(table.short - source.loss, NO_TARGETS),
        "gains": population.share(source.gains, NO_TARGETS),
        "loses": population.share(source.loses, NO_TARGETS),
        # By how much the target's own far tokens gain more, target by target.
        "own_minus": None if name == "own" else population.mean(_own_minus(table, name), NO_TARGETS),
    }


def _own_minus(table: Columns, source: str) -> PerTarget:
    return table.sources[source].loss - table.sources["own"].loss


def _group(every: Population, name: tuple[str, ...], ks: Sequence[int]) -> Found:
    table, sample = every.table, every.table.groups[name]
    source = table.sources[name[GROUP.index("from")]]
    population, gap = every.among(source.exists), table.short - table.sources["own"].loss
    gained = table.short[sample.target, None] - sample.losses
    divergences = population.divergences([sample])
    return {
        **dict(zip(GROUP, name, strict=True)),
        "all_targets": {
            **population.counts,
            "measured": len(sample.target),
            "prediction": _recovered(divergences, ks),
            "loss": population.regressed(sample, gained, gap, gap, NO_GAP),
            "gain": population.regressed(sample, gained, gap, np.ones(len(gap)), NO_GAP),
        },
        "selected": {
            by: _selected(every, sample, table.sources[by].gains, table.short - table.sources[by].loss)
            for by in ("own", "other")
        },
        "distances": table.distances[name].summary(),
    }


def _recovered(divergences: Divergences | str, ks: Sequence[int]) -> Found:
    if isinstance(divergences, str):
        return _unknown(divergences, ks)
    return divergences.recovered(ks, LEVELS)


def _unknown(reason: str, ks: Sequence[int]) -> Found:
    return {
        "shares": missing(len(ks), reason),
        "smallest_k": [
            {"share": level, "beyond": False, "reason": reason, "k": None, "low": None, "high": None}
            for level in LEVELS
        ],
    }


def _selected(every: Population, sample: Measured, selected: Targets, gap: PerTarget) -> Found:
    """The share of a gap that k far tokens recover, over targets that were selected because that gap is clear."""
    table, sample = every.table, sample.among(selected)
    target, gap = sample.target, gap[sample.target]
    gained = table.short[target, None] - sample.losses
    sums = by_document(table.document[target], np.concatenate([gained, gap[:, None]], axis=1))
    undefined = NO_GAP if len(target) else NO_CLEAR
    # A target without a gap has no share of its own; the sums still hold it.
    defined = gap > 0
    names, document = np.unique(table.document[target][defined], return_inverse=True)
    medians = [median(document, each) for each in (gained[defined] / gap[defined, None]).T]
    return {
        "targets": len(target),
        "documents": len(sums),
        "loss": every.bootstrap(ratio_of_sums(sums), len(sums), undefined),
        "median": [every.bootstrap(each, len(names), undefined, len(document))[0] for each in medians],
        "without_gap": int((~defined).sum()),
    }


def _pairs(every: Population, ks: Sequence[int]) -> Iterator[Found]:
    """Each selection of own far tokens beside the same selection of another source's."""
    table = every.table
    for (mode, knows, source, measure), control in table.groups.items():
        own = table.groups.get((mode, knows, "own", measure))
        if source == "own" or own is None:
            continue
        population, own = every.among(table.sources[source].exists), own.among(table.sources[source].exists)
        if not np.array_equal(own.target, control.target):
            continue
        difference, known = control.losses - own.losses, _own_minus(table, source)
        divergences = population.divergences([own, control])
        yield {
            **{"mode": mode, "knows": knows, "measure": measure, "against": source},
            **population.counts,
            "measured": len(own.target),
            "difference": population.regressed(own, difference, known, np.ones(len(known)), NO_TARGETS),
            "prediction": _unknown(divergences, ks) if isinstance(divergences, str) else divergences.beyond(ks, LEVELS),
            "selected": {by: _mean(every, own, difference, table.sources[by].gains) for by in ("own", "other")},
        }


def _mean(every: Population, sample: Measured, difference: Any, selected: Targets) -> Found:
    """The mean difference over targets that were selected for their own, or for the other text's gap."""
    kept = selected[sample.target]
    target = sample.target[kept]
    sums = by_document(
        every.table.document[target], np.concatenate([difference[kept], np.ones((len(target), 1))], axis=1)
    )
    return {
        "targets": len(target),
        "documents": len(sums),
        "difference": every.bootstrap(ratio_of_sums(sums), len(sums), NO_CLEAR),
    }


def _kind(population: Population, kind: str) -> Found:
    """What far tokens gain for one kind of target."""
    table = population.table
    return {
        "kind": kind,
        **population.counts,
        "gains": population.share(table.sources["own"].gains, NO_TARGETS),
        "gains_other": population.share(table.sources["other"].gains, NO_TARGETS),
        "own_minus_other": population.mean(_own_minus(table, "other"), NO_TARGETS),
    }
