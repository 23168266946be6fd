"""Tables that a study prints after its last measurement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]

SOURCE_LABELS = {"own": "own text", "other": "another text", "elsewhere": "elsewhere in the document"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTable:
    """Table with a title, a header row and body rows of strings."""

    title: str
    header: list[str]
    body: list[list[str]]


def summary_tables(summary: Summary) -> list[SummaryTable]:
    """Return the tables of a study that have at least one row."""
    tables = [_source_table(summary), _prediction_table(summary), _difference_table(summary), _loss_table(summary)]
    return [table for table in tables if table.body]


def _source_table(summary: Summary) -> SummaryTable:
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
    far_columns, gap_columns = ["far tokens", "targets", "texts", "gain, nats"], [f"gain > {gap}", f"gain < -{gap}"]
    return SummaryTable(
        title=f"{summary['model']}: all far tokens compared with near tokens only, over all targets; loss with near "
        f"tokens {summary['loss_short']:.3f} nats{_interval_note(summary['far'])}",
        header=[*far_columns, *gap_columns, "own minus this gain"],
        body=body,
    )


def _prediction_table(summary: Summary) -> SummaryTable:
    body = []
    for group in summary["groups"]:
        prediction = group["all_targets"]["prediction"]
        smallest_ks = " / ".join(_format_k(level_result) for level_result in prediction["smallest_k"])
        body.append([*_row_labels(group, group["from"]), *map(format_estimate, prediction["shares"]), smallest_ks])
    return SummaryTable(
        title="share of the prediction that k far tokens recover, 1 - KL(k) / KL(short), over all targets",
        header=[*_label_header("far tokens"), *_k_headers(summary), "k for 50 / 80 / 90%"],
        body=body,
    )


def _difference_table(summary: Summary) -> SummaryTable:
    body = []
    for pair in summary["paired"]:
        labels = _row_labels(pair, pair["against"])
        body.append([*labels, "all", *map(format_estimate, pair["difference"])])
        for gap_source, selected in pair["selected"].items():
            targets = f"clear gain from {SOURCE_LABELS[gap_source]}"
            body.append([*labels, targets, *map(format_estimate, selected["difference"])])
    return SummaryTable(
        title="loss with control tokens minus loss with own tokens at the same k, in nats per target; targets with a "
        "clear gain from one text favor this text",
        header=[*_label_header("control"), "targets", *_k_headers(summary)],
        body=body,
    )


def _loss_table(summary: Summary) -> SummaryTable:
    body = []
    for group in summary["groups"]:
        labels = _row_labels(group, group["from"])
        body.append([*labels, "all", *map(format_estimate, group["all_targets"]["loss"])])
        if group["from"] in group["selected"]:
            selected, source = group["selected"][group["from"]], SOURCE_LABELS[group["from"]]
            body.append([*labels, f"clear gain from {source}", *map(format_estimate, selected["loss"])])
    return SummaryTable(
        title="share of the gain that k far tokens recover; it can exceed 1 with the target objective",
        header=[*_label_header("far tokens"), "targets", *_k_headers(summary)],
        body=body,
    )


def _label_header(source: str) -> list[str]:
    return ["mode", "objective", source, "measure"]


def _k_headers(summary: Summary) -> list[str]:
    return [f"k={k}" for k in summary["ks"]]


def _row_labels(group: Mapping[str, Any], source: str) -> list[str]:
    return [group["mode"], group["knows"], SOURCE_LABELS[source], group["measure"]]


def _interval_note(sources: Sequence[Mapping[str, Any]]) -> str:
    has_intervals = any(source["gain"]["low"] is not None for source in sources)
    return "; 95% intervals over texts in brackets" if has_intervals else ""


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
