"""Summary of a study: the gain from far tokens by source, the share that k tokens recover, tables and the answer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lengthwise.influence.report.bootstrap import (
    NO_LIMITS,
    DocumentBootstrap,
    JSONObject,
    TargetPopulation,
    median_over_targets,
    ratio_of_sums,
    sums_by_document,
)
from lengthwise.influence.report.row_columns import GROUP_KEYS, SOURCES, SelectionColumns, StudyColumns, ValuesByK
from lengthwise.influence.units import TOKEN, name_units

Estimate = Mapping[str, Any]
Summary = Mapping[str, Any]

SHARE_LEVELS = (0.5, 0.8, 0.9)
# k units are enough if they recover this share, which is one of SHARE_LEVELS.
SUFFICIENT_SHARE = 0.9
# Smaller differences (nats per target) may be rounding errors, even if their intervals do not contain 0.
MIN_DIFFERENCE = 1e-4
# A smaller effect of far tokens (nats per target) is irrelevant: it changes the perplexity by less than 1%.
RELEVANT_DIFFERENCE = 0.01
# If one tenth of all documents use far tokens, a sample of this size has no such document in fewer than 5% of cases.
MIN_DOCUMENTS_FOR_ABSENCE = 30
Table = tuple[str, list[str], list[list[str]]]
SOURCE_LABELS = {"own": "own text", "other": "another text", "elsewhere": "elsewhere in the document"}
NO_TARGETS = "no target has far tokens of this source"
NO_CLEAR_TARGETS = "no target with a clear gain has this selection"
NO_GAP = "far context does not lower the total loss, so there is nothing to recover"


def summarize(
    rows: Iterable[Mapping[str, Any]],
    ks: Sequence[int],
    *,
    unit: str = TOKEN,
    context: str = "",
    seed: int = 0,
    num_resamples: int = 1000,
) -> JSONObject:
    """Return the contents of ``summary.json`` from the rows of one model. Losses are in nats, distances in tokens.

    ``ks`` are numbers of units; ``context`` describes the sizes of the context in the answer.

    An estimate has the keys ``value``, ``low`` and ``high`` (95% interval over resampled documents), and ``reason``
    (the reason for a missing number). A smallest k above all measured k is None without a reason. Results under
    ``selected`` are not evidence, because their targets are selected by the same losses that they compare.
    """
    columns, bootstrap = StudyColumns(rows, ks), DocumentBootstrap(seed=seed, num_resamples=num_resamples)
    all_targets = np.ones(len(columns.target_documents), dtype=bool)
    population = TargetPopulation(columns=columns, mask=all_targets, bootstrap=bootstrap)
    summary = {
        "model": next(iter(columns.models)),
        "ks": list(ks),
        "unit": unit,
        "context": context,
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


def _summarize_source(population: TargetPopulation, name: str) -> JSONObject:
    """Summarize the effect of all far tokens of a source, over the targets that have such far tokens."""
    columns, source = population.columns, population.columns.sources[name]
    subpopulation = population.select_targets(source.exists)
    return {
        "from": name,
        **subpopulation.counts,
        "gain": subpopulation.estimate_mean(columns.loss_short - source.loss, NO_TARGETS),
        "gains": subpopulation.estimate_share(source.has_lower_loss, NO_TARGETS),
        "loses": subpopulation.estimate_share(source.has_higher_loss, NO_TARGETS),
        # Mean of the paired differences in gain.
        "own_minus": None if name == "own" else subpopulation.estimate_mean(columns.excess_loss(name), NO_TARGETS),
    }


def _summarize_group(population: TargetPopulation, name: tuple[str, ...], ks: Sequence[int]) -> JSONObject:
    columns, sample = population.columns, population.columns.groups[name]
    source = columns.sources[name[GROUP_KEYS.index("from")]]
    subpopulation, gap = population.select_targets(source.exists), columns.loss_short - columns.sources["own"].loss
    gain = columns.loss_short[sample.target, None] - sample.losses
    return {
        **dict(zip(GROUP_KEYS, name, strict=True)),
        "all_targets": {
            **subpopulation.counts,
            "measured": len(sample.target),
            "tokens": sample.tokens.mean(axis=0).tolist(),
            "prediction": subpopulation.estimate_shares([sample], ks, SHARE_LEVELS),
            "loss": subpopulation.estimate_by_regression(sample, gain, gap, gap, NO_GAP),
            "gain": subpopulation.estimate_by_regression(sample, gain, gap, np.ones(len(gap)), NO_GAP),
        },
        "selected": {name: _summarize_recovered_loss(population, sample, name) for name in ("own", "other")},
        "distances": columns.distances[name].summary(),
    }


def _summarize_recovered_loss(population: TargetPopulation, sample: SelectionColumns, gap_source: str) -> JSONObject:
    """Summarize the share of the gain from a source that k far tokens recover, over targets with a clear gain."""
    columns, source = population.columns, population.columns.sources[gap_source]
    sample = sample.select_targets(source.has_lower_loss)
    target, gap = sample.target, (columns.loss_short - source.loss)[sample.target]
    gain, weight = columns.loss_short[target, None] - sample.losses, columns.weight[target]
    weighted = weight[:, None] * np.concatenate([gain, gap[:, None]], axis=1)
    sums = sums_by_document(columns.target_documents[target], weighted)
    nan_reason = NO_GAP if len(target) else NO_CLEAR_TARGETS
    # The share of a single target requires a positive gap. The sums include all targets.
    has_gap = gap > 0
    documents, indices = np.unique(columns.target_documents[target][has_gap], return_inverse=True)
    shares_by_k = (gain[has_gap] / gap[has_gap, None]).T
    medians = [median_over_targets(indices, shares, weight[has_gap]) for shares in shares_by_k]
    return {
        "targets": len(target),
        "documents": len(sums),
        "loss": population.bootstrap(ratio_of_sums(sums), len(sums), nan_reason, limits=NO_LIMITS),
        "median": [
            population.bootstrap(statistic, len(documents), nan_reason, len(indices))[0] for statistic in medians
        ],
        "without_gap": int((~has_gap).sum()),
    }


def _compare_pairs(population: TargetPopulation, ks: Sequence[int]) -> Iterator[JSONObject]:
    """Compare selections of own far tokens with selections from other sources for the same targets."""
    columns = population.columns
    for (mode, objective, source, measure), control_sample in columns.groups.items():
        own_sample = columns.groups.get((mode, objective, "own", measure))
        if source == "own" or own_sample is None:
            continue
        exists = columns.sources[source].exists
        subpopulation, own_sample = population.select_targets(exists), own_sample.select_targets(exists)
        if not np.array_equal(own_sample.target, control_sample.target):
            continue
        difference, covariate = control_sample.losses - own_sample.losses, columns.excess_loss(source)
        ones = np.ones(len(covariate))
        yield {
            **{"mode": mode, "knows": objective, "measure": measure, "against": source},
            **subpopulation.counts,
            "measured": len(own_sample.target),
            "difference": subpopulation.estimate_by_regression(own_sample, difference, covariate, ones, NO_TARGETS),
            "prediction": subpopulation.estimate_shares([own_sample, control_sample], ks, SHARE_LEVELS),
            "selected": {
                name: _summarize_difference(population, own_sample, difference, name) for name in ("own", "other")
            },
        }


def _summarize_difference(
    population: TargetPopulation, sample: SelectionColumns, difference: ValuesByK, gap_source: str
) -> JSONObject:
    """Summarize the mean difference over targets with a clear gain from a source."""
    has_gain = population.columns.sources[gap_source].has_lower_loss[sample.target]
    target = sample.target[has_gain]
    weight = population.columns.weight[target][:, None]
    difference_columns = weight * np.concatenate([difference[has_gain], np.ones((len(target), 1))], axis=1)
    sums = sums_by_document(population.columns.target_documents[target], difference_columns)
    estimates = population.bootstrap(ratio_of_sums(sums), len(sums), NO_CLEAR_TARGETS, limits=NO_LIMITS)
    return {"targets": len(target), "documents": len(sums), "difference": estimates}


def _summarize_kind(population: TargetPopulation, target_kind: str) -> JSONObject:
    columns = population.columns
    population = population.select_targets(columns.mask_of_target_kind(target_kind))
    return {
        "kind": target_kind,
        **population.counts,
        "gains": population.estimate_share(columns.sources["own"].has_lower_loss, NO_TARGETS),
        "gains_other": population.estimate_share(columns.sources["other"].has_lower_loss, NO_TARGETS),
        "own_minus_other": population.estimate_mean(columns.excess_loss("other"), NO_TARGETS),
    }


def compose_answer(summary: Summary) -> dict[str, Any]:
    """Return the answer to the question of how many far tokens the model uses.

    ``uses_far_tokens`` is True if the interval of the difference in loss between another text and the original text is
    above 0. It is False if the interval, over enough documents, excludes a relevant difference. It is None if the study
    cannot tell. ``at_most`` units of far tokens are enough for most of the effect (None: unknown). There is no lower
    bound, because a search can miss better units. ``sentence`` is the answer as text.
    """
    model = summary["model"]
    sources = {source["from"]: source for source in summary["far"]}
    gain, other = sources["own"]["gain"], sources["other"]["own_minus"]
    evidence = f"The difference in loss between another text and the original text is {format_nats(other)}."
    if not _is_positive(other):
        missing = _missing_evidence(other, sources["other"]["documents"])
        if missing is None:
            sentence = (
                f"{model} does not use far tokens: an effect of {RELEVANT_DIFFERENCE} nats per target is excluded."
            )
        else:
            sentence = f"Cannot tell whether {model} uses far tokens: {missing}."
        uses = False if missing is None else None
        return {"uses_far_tokens": uses, "at_most": None, "sentence": f"{sentence} {evidence}"}
    at_most, number_phrase = _number_of_tokens(summary)
    elsewhere = sources["elsewhere"]["own_minus"] if "elsewhere" in sources else None
    if elsewhere is not None and elsewhere["value"] is not None and not _is_positive(elsewhere):
        evidence += f" The difference from elsewhere in the same document is not clear: {format_nats(elsewhere)}."
    if gain["high"] is not None and gain["high"] < -MIN_DIFFERENCE:
        evidence += f" However, far tokens increase the loss: the gain is {format_nats(gain)}."
    sentence = f"{model} uses {number_phrase}. {evidence}"
    return {"uses_far_tokens": True, "at_most": at_most, "sentence": sentence}


def _is_positive(estimate: Estimate) -> bool:
    return estimate["low"] is not None and estimate["low"] > MIN_DIFFERENCE


def _missing_evidence(difference: Estimate, num_documents: int) -> str | None:
    """Return the reason why a difference that is not positive does not show absence, or None if it does."""
    if difference["high"] is None:
        return "the difference has no interval"
    if difference["high"] >= RELEVANT_DIFFERENCE:
        return f"no effect and an effect of {RELEVANT_DIFFERENCE} nats per target are possible; measure more documents"
    if num_documents < MIN_DOCUMENTS_FOR_ABSENCE:
        return f"{num_documents} documents do not show absence; measure at least {MIN_DOCUMENTS_FOR_ABSENCE}"
    return None


def _number_of_tokens(summary: Summary) -> tuple[int | None, str]:
    """Return a number of units of far tokens that is enough (None: unknown), and a phrase for the answer."""
    prediction, correction_phrase = _recovered_prediction(summary)
    if prediction is None:
        return None, "far tokens, but their number was not measured"
    unit, group = summary["unit"], own_selections(summary)[0]
    (sufficient,) = (level for level in prediction["smallest_k"] if level["share"] == SUFFICIENT_SHARE)
    ks = summary["ks"]
    if sufficient["k"] is None and not sufficient["beyond"]:
        return None, f"far tokens, but their number is unknown: {sufficient['reason']}"
    k_index = len(ks) - 1 if sufficient["beyond"] else ks.index(sufficient["k"])
    noun, verb = name_units(unit, ks[k_index]), "recovers" if ks[k_index] == 1 else "recover"
    num_tokens = "" if unit == TOKEN else f" ({group['all_targets']['tokens'][k_index]:,.0f} far tokens)"
    share_text = f"{prediction['shares'][k_index]['value']:.0%}"
    selected = f"{ks[k_index]:,} selected {noun}{num_tokens} {verb}"
    details = ", ".join(filter(None, (f"mode {group['mode']}", summary["context"])))
    recovery = f"{selected} {share_text} of the effect of far context on its predictions{correction_phrase} ({details})"
    if sufficient["beyond"]:
        missing = f"no {ks[-1]:,} far {noun} that recover {SUFFICIENT_SHARE:.0%}"
        return None, f"far tokens, and the search found {missing}: {recovery}"
    are = "is" if ks[k_index] == 1 else "are"
    enough = f"{ks[k_index]:,} far {noun} {are} enough for {SUFFICIENT_SHARE:.0%}"
    return ks[k_index], f"far tokens, and {enough}: {recovery}"


def _recovered_prediction(summary: Summary) -> tuple[Estimate | None, str]:
    """Return the shares of the prediction that k tokens recover, and a phrase about the correction of the shares."""
    pairs = sorted((pair for pair in summary["paired"] if pair["against"] == "other"), key=_sort_key)
    own_groups = own_selections(summary)
    if pairs:
        return pairs[0]["prediction"], ", after subtracting the effect of far tokens from another text"
    if not own_groups:
        return None, ""
    prediction = own_groups[0]["all_targets"]["prediction"]
    return prediction, ", not corrected for the effect of far tokens from another text"


def own_selections(summary: Summary) -> list[Estimate]:
    """Return the groups with own far tokens, except random tokens; strict mode and the prediction objective first."""
    own_groups = (group for group in summary["groups"] if group["from"] == "own" and group["knows"] != "nothing")
    return sorted(own_groups, key=_sort_key)


def _sort_key(group: Estimate) -> tuple[bool, bool]:
    return group["mode"] != "strict", group["knows"] != "prediction"


def format_nats(estimate: Estimate) -> str:
    """Format an estimate in nats per target, with its interval or the reason for a missing number."""
    if estimate["value"] is None:
        return f"unknown ({estimate['reason']})"
    value = f"{estimate['value']:.3f} nats per target"
    if estimate["low"] is None:
        return f"{value} ({estimate['reason']})"
    return f"{value} (95% interval {estimate['low']:.3f} to {estimate['high']:.3f})"


def summary_tables(summary: Summary) -> list[Table]:
    """Return the title, header and body of the tables of a study that have at least one row."""
    predictions, differences, losses = [], [], []
    for group in summary["groups"]:
        labels, results = _row_labels(group, group["from"]), group["all_targets"]
        smallest_ks = " / ".join(map(_format_k, results["prediction"]["smallest_k"]))
        predictions.append([*labels, *map(format_estimate, results["prediction"]["shares"]), smallest_ks])
        losses.append([*labels, "all", *map(format_estimate, results["loss"])])
        if group["from"] in group["selected"]:
            selected, targets = group["selected"][group["from"]], f"clear gain from {SOURCE_LABELS[group['from']]}"
            losses.append([*labels, targets, *map(format_estimate, selected["loss"])])
    for pair in summary["paired"]:
        labels = _row_labels(pair, pair["against"])
        differences.append([*labels, "all", *map(format_estimate, pair["difference"])])
        for gap_source, selected in pair["selected"].items():
            targets = f"clear gain from {SOURCE_LABELS[gap_source]}"
            differences.append([*labels, targets, *map(format_estimate, selected["difference"])])
    k_names, units = [f"k={k}" for k in summary["ks"]], f"far {name_units(summary['unit'], 2)}"
    tables = [
        _source_table(summary),
        (
            f"share of the prediction that k {units} recover, 1 - KL(k) / KL(short), over all targets",
            ["mode", "objective", "far tokens", "measure", *k_names, "k for 50 / 80 / 90%"],
            predictions,
        ),
        (
            "loss with control tokens minus loss with own tokens at the same k, in nats per target; targets with a "
            "clear gain from one text favor this text",
            ["mode", "objective", "control", "measure", "targets", *k_names],
            differences,
        ),
        (
            f"share of the gain that k {units} recover; it can exceed 1 with the target objective",
            ["mode", "objective", "far tokens", "measure", "targets", *k_names],
            losses,
        ),
    ]
    return [table for table in tables if table[2]]


def _source_table(summary: Summary) -> Table:
    gap = summary["settings"]["rule"]["gap"]
    body = [
        [
            SOURCE_LABELS[source["from"]],
            *(f"{source[name]:,}" for name in ("targets", "documents")),
            *(format_estimate(source[name]) for name in ("gain", "gains", "loses")),
            "" if source["own_minus"] is None else format_estimate(source["own_minus"]),
        ]
        for source in summary["far"]
        if source["targets"]
    ]
    has_intervals = any(source["gain"]["low"] is not None for source in summary["far"])
    return (
        f"{summary['model']}: all far tokens compared with near tokens only, over all targets; loss with near "
        f"tokens {summary['loss_short']:.3f} nats"
        + ("; 95% intervals over texts in brackets" if has_intervals else ""),
        ["far tokens", "targets", "texts", "gain, nats", f"gain > {gap}", f"gain < -{gap}", "own minus this gain"],
        body,
    )


def _row_labels(group: Mapping[str, Any], source: str) -> list[str]:
    return [group["mode"], group["knows"], SOURCE_LABELS[source], group["measure"]]


def format_estimate(estimate: Mapping[str, Any]) -> str:
    """Format an estimate with its interval, or as a dash if it has no value."""
    if estimate["value"] is None:
        return "-"
    interval_text = "" if estimate["low"] is None else f" [{estimate['low']:.3f}, {estimate['high']:.3f}]"
    return f"{estimate['value']:.3f}{interval_text}"


def _format_k(level_result: Mapping[str, Any]) -> str:
    if level_result["beyond"]:
        return "more"
    return "-" if level_result["k"] is None else str(level_result["k"])
