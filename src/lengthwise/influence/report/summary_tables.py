"""Tables that a finished study prints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]

SOURCES = {"own": "own text", "other": "another text", "elsewhere": "elsewhere in the document"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTable:
    """Table with a title, a header and a body of strings."""

    title: str
    header: list[str]
    body: list[list[str]]


def summary_tables(summary: Summary) -> list[SummaryTable]:
    """Return the tables of a study that are not empty."""
    tables = [_source_table(summary), _prediction_table(summary), _difference_table(summary), _loss_table(summary)]
    return [table for table in tables if table.body]


def _source_table(summary: Summary) -> SummaryTable:
    gap = summary["settings"]["rule"]["gap"]
    body = [
        [
            SOURCES[far["from"]],
            f"{far['targets']:,}",
            f"{far['documents']:,}",
            *(format_estimate(far[name]) for name in ("gain", "gains", "loses")),
            "" if far["own_minus"] is None else format_estimate(far["own_minus"]),
        ]
        for far in summary["far"]
        if far["targets"]
    ]
    return SummaryTable(
        title=f"{summary['model']}: all far tokens compared with near tokens only, over all targets; loss with near "
        f"tokens {summary['loss_short']:.3f} nats{_interval_note(summary['far'])}",
        header=["far tokens", "targets", "texts", "gain, nats", f"gain > {gap}", f"gain < -{gap}", "own minus these"],
        body=body,
    )


def _prediction_table(summary: Summary) -> SummaryTable:
    body = []
    for group in summary["groups"]:
        prediction = group["all_targets"]["prediction"]
        smallest = " / ".join(_format_k(level) for level in prediction["smallest_k"])
        body.append([*_name(group, group["from"]), *map(format_estimate, prediction["shares"]), smallest])
    return SummaryTable(
        title="share of the whole context's prediction that k far tokens recover, 1 - KL(k) / KL(short), all targets",
        header=[*_header("far tokens"), *_ks(summary), "k for 50 / 80 / 90%"],
        body=body,
    )


def _difference_table(summary: Summary) -> SummaryTable:
    body = []
    for pair in summary["paired"]:
        name = _name(pair, pair["against"])
        body.append([*name, "all", *map(format_estimate, pair["difference"])])
        for by, selected in pair["selected"].items():
            body.append([*name, f"clear with {SOURCES[by]}", *map(format_estimate, selected["difference"])])
    return SummaryTable(
        title="own minus control at the same k, nats per target; targets that are clear with one text favor that text",
        header=[*_header("own minus"), "targets", *_ks(summary)],
        body=body,
    )


def _loss_table(summary: Summary) -> SummaryTable:
    body = []
    for group in summary["groups"]:
        name = _name(group, group["from"])
        body.append([*name, "all", *map(format_estimate, group["all_targets"]["loss"])])
        if group["from"] in group["selected"]:
            selected = group["selected"][group["from"]]
            body.append([*name, f"clear with {SOURCES[group['from']]}", *map(format_estimate, selected["loss"])])
    return SummaryTable(
        title="share of the gap in loss that k far tokens recover; can exceed 1 with the target objective",
        header=[*_header("far tokens"), "targets", *_ks(summary)],
        body=body,
    )


def _header(source: str) -> list[str]:
    return ["mode", "objective", source, "measure"]


def _ks(summary: Summary) -> list[str]:
    return [f"k={k}" for k in summary["ks"]]


def _name(group: Mapping[str, Any], source: str) -> list[str]:
    return [group["mode"], group["knows"], SOURCES[source], group["measure"]]


def _interval_note(sources: Sequence[Mapping[str, Any]]) -> str:
    has_intervals = any(each["gain"]["low"] is not None for each in sources)
    return "; 95% intervals over texts in brackets" if has_intervals else ""


def format_estimate(estimate: Mapping[str, Any]) -> str:
    """Format an estimate with its interval, or a dash without a value."""
    if estimate["value"] is None:
        return "-"
    bounds = "" if estimate["low"] is None else f" [{estimate['low']:.3f}, {estimate['high']:.3f}]"
    return f"{estimate['value']:.3f}{bounds}"


def _format_k(level: Mapping[str, Any]) -> str:
    if level["beyond"]:
        return "more"
    return "-" if level["k"] is None else str(level["k"])
