"""Summary of a study: the gain from far tokens by source, and the share that k tokens recover."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lengthwise.influence.report.answer_sentence import SHARE_LEVELS, compose_answer
from lengthwise.influence.report.bootstrap import Bootstrap, JSONObject, median, ratio_of_sums, sums_by_document
from lengthwise.influence.report.population_estimates import Population, undefined_shares
from lengthwise.influence.report.row_columns import GROUP_KEYS, SOURCES, RowColumns, SelectionColumns, ValuesByK

NO_TARGETS = "no target has far tokens of this source"
NO_CLEAR_TARGETS = "no target with a clear gain has this selection"
NO_GAP = "far context does not lower the total loss, so there is nothing to recover"


def summarize(
    rows: Iterable[Mapping[str, Any]], ks: Sequence[int], *, seed: int = 0, num_resamples: int = 1000
) -> JSONObject:
    """Return the contents of ``summary.json`` from the rows of one model. Losses are in nats, distances in tokens.

    An estimate has the keys ``value``, ``low`` and ``high`` (95% interval over resampled documents), and ``reason``
    (the reason for a missing number). A smallest k above all measured k is None without a reason. Results under
    ``selected`` are not evidence, because their targets are selected by the same losses that they compare.
    """
    columns, bootstrap = RowColumns(rows, ks), Bootstrap(seed=seed, num_resamples=num_resamples)
    population = Population(columns=columns, mask=columns.all_targets, bootstrap=bootstrap)
    summary = {
        "model": next(iter(columns.models)),
        "ks": list(ks),
        "targets": len(columns.target_documents),
        "documents": len(columns.document_indices),
        "measured": int((columns.weight > 0).sum()),
        "resamples": num_resamples,
        "loss_short": float(columns.loss_short.mean()),
        "divergence_short": population.estimate_mean(columns.divergence_short, NO_TARGETS),
        "far": [_summarize_source(population, source) for source in SOURCES],
        "groups": [_summarize_group(population, name, ks) for name in columns.groups],
        "paired": list(_compare_pairs(population, ks)),
        "kinds": [_summarize_kind(population, kind) for kind in sorted(columns.kinds)],
    }
    return summary | {"answer": compose_answer(summary)}


def _summarize_source(population: Population, name: str) -> JSONObject:
    """Summarize the effect of all far tokens of a source, over the targets that have such far tokens."""
    columns, source = population.columns, population.columns.sources[name]
    subpopulation = population.restrict(source.exists)
    return {
        "from": name,
        **subpopulation.counts,
        "gain": subpopulation.estimate_mean(columns.loss_short - source.loss, NO_TARGETS),
        "gains": subpopulation.estimate_share(source.has_lower_loss, NO_TARGETS),
        "loses": subpopulation.estimate_share(source.has_higher_loss, NO_TARGETS),
        # Mean of the paired differences in gain.
        "own_minus": None if name == "own" else subpopulation.estimate_mean(columns.excess_loss(name), NO_TARGETS),
    }


def _summarize_group(population: Population, name: tuple[str, ...], ks: Sequence[int]) -> JSONObject:
    columns, sample = population.columns, population.columns.groups[name]
    source = columns.sources[name[GROUP_KEYS.index("from")]]
    subpopulation, gap = population.restrict(source.exists), columns.loss_short - columns.sources["own"].loss
    gain = columns.loss_short[sample.target, None] - sample.losses
    divergences = subpopulation.divergences([sample])
    return {
        **dict(zip(GROUP_KEYS, name, strict=True)),
        "all_targets": {
            **subpopulation.counts,
            "measured": len(sample.target),
            "prediction": undefined_shares(divergences, ks, SHARE_LEVELS)
            if isinstance(divergences, str)
            else divergences.recovered_shares(ks, SHARE_LEVELS),
            "loss": subpopulation.estimate_by_regression(sample, gain, gap, gap, NO_GAP),
            "gain": subpopulation.estimate_by_regression(sample, gain, gap, np.ones(len(gap)), NO_GAP),
        },
        "selected": {name: _summarize_recovered_loss(population, sample, name) for name in ("own", "other")},
        "distances": columns.distances[name].summary(),
    }


def _summarize_recovered_loss(population: Population, sample: SelectionColumns, gap_source: str) -> JSONObject:
    """Summarize the share of the gain from a source that k far tokens recover, over targets with a clear gain."""
    columns, source = population.columns, population.columns.sources[gap_source]
    sample = sample.restrict(source.has_lower_loss)
    target, gap = sample.target, (columns.loss_short - source.loss)[sample.target]
    gain = columns.loss_short[target, None] - sample.losses
    sums = sums_by_document(columns.target_documents[target], np.concatenate([gain, gap[:, None]], axis=1))
    nan_reason = NO_GAP if len(target) else NO_CLEAR_TARGETS
    # The share of a single target requires a positive gap. The sums include all targets.
    has_gap = gap > 0
    documents, indices = np.unique(columns.target_documents[target][has_gap], return_inverse=True)
    medians = [median(indices, shares) for shares in (gain[has_gap] / gap[has_gap, None]).T]
    return {
        "targets": len(target),
        "documents": len(sums),
        "loss": population.bootstrap(ratio_of_sums(sums), len(sums), nan_reason),
        "median": [
            population.bootstrap(statistic, len(documents), nan_reason, len(indices))[0] for statistic in medians
        ],
        "without_gap": int((~has_gap).sum()),
    }


def _compare_pairs(population: Population, ks: Sequence[int]) -> Iterator[JSONObject]:
    """Compare selections of own far tokens with selections from other sources for the same targets."""
    columns = population.columns
    for (mode, objective, source, measure), control_sample in columns.groups.items():
        own_sample = columns.groups.get((mode, objective, "own", measure))
        if source == "own" or own_sample is None:
            continue
        exists = columns.sources[source].exists
        subpopulation, own_sample = population.restrict(exists), own_sample.restrict(exists)
        if not np.array_equal(own_sample.target, control_sample.target):
            continue
        difference, covariate = control_sample.losses - own_sample.losses, columns.excess_loss(source)
        divergences, ones = subpopulation.divergences([own_sample, control_sample]), np.ones(len(covariate))
        yield {
            **{"mode": mode, "knows": objective, "measure": measure, "against": source},
            **subpopulation.counts,
            "measured": len(own_sample.target),
            "difference": subpopulation.estimate_by_regression(own_sample, difference, covariate, ones, NO_TARGETS),
            "prediction": undefined_shares(divergences, ks, SHARE_LEVELS)
            if isinstance(divergences, str)
            else divergences.shares_beyond_control(ks, SHARE_LEVELS),
            "selected": {
                name: _summarize_difference(population, own_sample, difference, name) for name in ("own", "other")
            },
        }


def _summarize_difference(
    population: Population, sample: SelectionColumns, difference: ValuesByK, gap_source: str
) -> JSONObject:
    """Summarize the mean difference over targets with a clear gain from a source."""
    has_gain = population.columns.sources[gap_source].has_lower_loss[sample.target]
    target = sample.target[has_gain]
    difference_columns = np.concatenate([difference[has_gain], np.ones((len(target), 1))], axis=1)
    sums = sums_by_document(population.columns.target_documents[target], difference_columns)
    estimates = population.bootstrap(ratio_of_sums(sums), len(sums), NO_CLEAR_TARGETS)
    return {"targets": len(target), "documents": len(sums), "difference": estimates}


def _summarize_kind(population: Population, target_kind: str) -> JSONObject:
    columns, population = population.columns, population.restrict(population.columns.kind_mask(target_kind))
    return {
        "kind": target_kind,
        **population.counts,
        "gains": population.estimate_share(columns.sources["own"].has_lower_loss, NO_TARGETS),
        "gains_other": population.estimate_share(columns.sources["other"].has_lower_loss, NO_TARGETS),
        "own_minus_other": population.estimate_mean(columns.excess_loss("other"), NO_TARGETS),
    }
