"""Summary of the rows of a study: the gain from far tokens by source, and the share that k tokens recover."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lengthwise.influence.report.answer_sentence import LEVELS, answer
from lengthwise.influence.report.bootstrap import (
    JSON,
    Bootstrap,
    median,
    ratio_of_sums,
    sums_by_document,
    undefined_estimates,
)
from lengthwise.influence.report.population_estimates import Population
from lengthwise.influence.report.row_columns import (
    GROUP,
    SOURCES,
    PerK,
    PerTarget,
    RowColumns,
    SelectionColumns,
    TargetMask,
)

NO_TARGETS = "no target has far tokens of this source"
NO_CLEAR = "no target with a clear gap has this selection"
NO_GAP = "far context does not lower the total loss, so there is nothing to recover"


def summarize(rows: Iterable[Mapping[str, Any]], ks: Sequence[int], *, seed: int = 0, resamples: int = 1000) -> JSON:
    """Return the contents of ``summary.json`` from the rows of one model; losses in nats, distances in tokens.

    An estimate has the keys ``value``, ``low`` and ``high`` (95% interval over resampled documents), and ``reason`` of
    a missing number. A smallest k or a bound above all measured k is None and has no reason. Results under
    ``selected`` cover targets that were selected by the losses that they compare, so they are not evidence.
    """
    columns, bootstrap = RowColumns(rows, ks), Bootstrap(seed=seed, resamples=resamples)
    population = Population(columns=columns, mask=columns.all_targets, bootstrap=bootstrap)
    summary = {
        "model": next(iter(columns.models)),
        "ks": list(ks),
        "targets": len(columns.document),
        "documents": len(columns.documents),
        "measured": int((columns.weight > 0).sum()),
        "resamples": resamples,
        "loss_short": float(columns.short.mean()),
        "divergence_short": population.mean(columns.divergence, NO_TARGETS),
        "far": [_source(population, source) for source in SOURCES],
        "groups": [_group(population, name, ks) for name in columns.groups],
        "paired": list(_pairs(population, ks)),
        "kinds": [_kind(population.restrict(columns.kind_mask(kind)), kind) for kind in sorted(columns.kinds)],
    }
    return summary | {"answer": answer(summary)}


def _source(population: Population, name: str) -> JSON:
    """Summarize all far tokens of a source, over the targets that have such tokens."""
    columns, source = population.columns, population.columns.sources[name]
    restricted = population.restrict(source.exists)
    return {
        "from": name,
        **restricted.counts,
        "gain": restricted.mean(columns.short - source.loss, NO_TARGETS),
        "gains": restricted.share(source.gains, NO_TARGETS),
        "loses": restricted.share(source.loses, NO_TARGETS),
        # Mean of the paired differences in gain.
        "own_minus": None if name == "own" else restricted.mean(_own_minus(columns, name), NO_TARGETS),
    }


def _own_minus(columns: RowColumns, source: str) -> PerTarget:
    return columns.sources[source].loss - columns.sources["own"].loss


def _group(population: Population, name: tuple[str, ...], ks: Sequence[int]) -> JSON:
    columns, sample = population.columns, population.columns.groups[name]
    source = columns.sources[name[GROUP.index("from")]]
    restricted, gap = population.restrict(source.exists), columns.short - columns.sources["own"].loss
    gain = columns.short[sample.target, None] - sample.losses
    divergences = restricted.divergences([sample])
    return {
        **dict(zip(GROUP, name, strict=True)),
        "all_targets": {
            **restricted.counts,
            "measured": len(sample.target),
            "prediction": _undefined(divergences, ks)
            if isinstance(divergences, str)
            else divergences.recovered(ks, LEVELS),
            "loss": restricted.regressed(sample, gain, gap, gap, NO_GAP),
            "gain": restricted.regressed(sample, gain, gap, np.ones(len(gap)), NO_GAP),
        },
        "selected": {
            by: _recovered_loss(population, sample, columns.sources[by].gains, columns.short - columns.sources[by].loss)
            for by in ("own", "other")
        },
        "distances": columns.distances[name].summary(),
    }


def _undefined(reason: str, ks: Sequence[int]) -> JSON:
    return {
        "shares": undefined_estimates(len(ks), reason),
        "smallest_k": [
            {"share": level, "beyond": False, "reason": reason, "k": None, "low": None, "high": None}
            for level in LEVELS
        ],
    }


def _recovered_loss(population: Population, sample: SelectionColumns, mask: TargetMask, gap: PerTarget) -> JSON:
    """Summarize the share of a gap that k far tokens recover, over the targets for which that gap is clear."""
    columns, sample = population.columns, sample.restrict(mask)
    target, gap = sample.target, gap[sample.target]
    gain = columns.short[target, None] - sample.losses
    sums = sums_by_document(columns.document[target], np.concatenate([gain, gap[:, None]], axis=1))
    undefined = NO_GAP if len(target) else NO_CLEAR
    # The share of a single target needs a positive gap; the sums include all targets.
    defined = gap > 0
    names, document = np.unique(columns.document[target][defined], return_inverse=True)
    medians = [median(document, each) for each in (gain[defined] / gap[defined, None]).T]
    return {
        "targets": len(target),
        "documents": len(sums),
        "loss": population.bootstrap(ratio_of_sums(sums), len(sums), undefined),
        "median": [population.bootstrap(each, len(names), undefined, len(document))[0] for each in medians],
        "without_gap": int((~defined).sum()),
    }


def _pairs(population: Population, ks: Sequence[int]) -> Iterator[JSON]:
    """Compare each selection of own far tokens with the same selection among another source's, target by target."""
    columns = population.columns
    for (mode, objective, source, measure), control in columns.groups.items():
        own = columns.groups.get((mode, objective, "own", measure))
        if source == "own" or own is None:
            continue
        exists = columns.sources[source].exists
        restricted, own = population.restrict(exists), own.restrict(exists)
        if not np.array_equal(own.target, control.target):
            continue
        difference, covariate = control.losses - own.losses, _own_minus(columns, source)
        divergences = restricted.divergences([own, control])
        yield {
            **{"mode": mode, "knows": objective, "measure": measure, "against": source},
            **restricted.counts,
            "measured": len(own.target),
            "difference": restricted.regressed(own, difference, covariate, np.ones(len(covariate)), NO_TARGETS),
            "prediction": _undefined(divergences, ks)
            if isinstance(divergences, str)
            else divergences.beyond(ks, LEVELS),
            "selected": {
                by: _mean_difference(population, own, difference, columns.sources[by].gains) for by in ("own", "other")
            },
        }


def _mean_difference(population: Population, sample: SelectionColumns, difference: PerK, mask: TargetMask) -> JSON:
    """Summarize the mean difference over the measured targets in ``mask``."""
    inside = mask[sample.target]
    target = sample.target[inside]
    values = np.concatenate([difference[inside], np.ones((len(target), 1))], axis=1)
    sums = sums_by_document(population.columns.document[target], values)
    return {
        "targets": len(target),
        "documents": len(sums),
        "difference": population.bootstrap(ratio_of_sums(sums), len(sums), NO_CLEAR),
    }


def _kind(population: Population, kind: str) -> JSON:
    """Summarize the gain from far tokens for one kind of target."""
    columns = population.columns
    return {
        "kind": kind,
        **population.counts,
        "gains": population.share(columns.sources["own"].gains, NO_TARGETS),
        "gains_other": population.share(columns.sources["other"].gains, NO_TARGETS),
        "own_minus_other": population.mean(_own_minus(columns, "other"), NO_TARGETS),
    }
