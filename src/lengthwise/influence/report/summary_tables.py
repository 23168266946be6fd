"""A summary as tables: what far tokens of each source gain, what k of them give, and own beside other ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]

SOURCES = {"own": "own text", "other": "another text", "elsewhere": "elsewhere in the document"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTable:
    """A table with its title."""

    title: str
    header: list[str]
    body: list[list[str]]


def summary_tables(summary: Summary) -> list[SummaryTable]:
    """All tables of a study; the answer stands behind them."""
    found = [_sources(summary), _predictions(summary), _differences(summary), _losses(summary)]
    return [table for table in found if table.body]


def _sources(summary: Summary) -> SummaryTable:
    gap = summary["settings"]["rule"]["gap"]
    body = [
        [
            SOURCES[far["from"]],
            f"{far['targets']:,}",
            f"{far['documents']:,}",
            *(shown(far[name]) for name in ("gain", "gains", "loses")),
            "" if far["own_minus"] is None else shown(far["own_minus"]),
        ]
        for far in summary["far"]
        if far["targets"]
    ]
    return SummaryTable(
        title=f"{summary['model']}: all far tokens beside near tokens alone, over all targets; loss with near tokens "
        f"{summary['loss_short']:.3f} nats{_intervals(summary['far'])}",
        header=["far tokens of", "targets", "texts", "gain, nats", f"gain > {gap}", f"lose > {gap}", "own minus these"],
        body=body,
    )


def _predictions(summary: Summary) -> SummaryTable:
    body = []
    for group in summary["groups"]:
        found = group["all_targets"]["prediction"]
        reached = " / ".join(_smallest(level) for level in found["smallest_k"])
        body.append([*_named(group, group["from"]), *map(shown, found["shares"]), reached])
    return SummaryTable(
        title="share of the whole context's prediction that k far tokens give, 1 - KL(k) / KL(short), over all targets",
        header=[*_header(summary, "far tokens of"), "k for 50 / 80 / 90%"],
        body=body,
    )


def _differences(summary: Summary) -> SummaryTable:
    body = []
    for pair in summary["paired"]:
        named = _named(pair, pair["against"])
        body.append([*named, "all", *map(shown, pair["difference"])])
        for by, selected in pair["selected"].items():
            body.append([*named, f"clear with {SOURCES[by]}", *map(shown, selected["difference"])])
    mode, *others, measure = _header(summary, "own minus")[:4]
    return SummaryTable(
        title="own minus others at the same k, nats a target; targets that are selected for a gap favour its text",
        header=[mode, *others, measure, "targets", *(f"k={k}" for k in summary["ks"])],
        body=body,
    )


def _losses(summary: Summary) -> SummaryTable:
    body = []
    for group in summary["groups"]:
        named = _named(group, group["from"])
        body.append([*named, "all", *map(shown, group["all_targets"]["loss"])])
        if group["from"] in group["selected"]:
            selected = group["selected"][group["from"]]
            body.append([*named, f"clear with {SOURCES[group['from']]}", *map(shown, selected["loss"])])
    return SummaryTable(
        title="share of the gap in loss that k far tokens recover; without an upper bound where the target is known",
        header=[*_header(summary, "far tokens of")[:4], "targets", *(f"k={k}" for k in summary["ks"])],
        body=body,
    )


def _header(summary: Summary, source: str) -> list[str]:
    return ["mode", "knows", source, "measure", *(f"k={k}" for k in summary["ks"])]


def _named(group: Mapping[str, Any], source: str) -> list[str]:
    return [group["mode"], group["knows"], SOURCES[source], group["measure"]]


def _intervals(found: Sequence[Mapping[str, Any]]) -> str:
    return "; in brackets 95% intervals over texts" if any(each["gain"]["low"] is not None for each in found) else ""


def shown(found: Mapping[str, Any]) -> str:
    """An estimate with its interval; a dash where there is none."""
    if found["value"] is None:
        return "-"
    bounds = "" if found["low"] is None else f" [{found['low']:.3f}, {found['high']:.3f}]"
    return f"{found['value']:.3f}{bounds}"


def _smallest(level: Mapping[str, Any]) -> str:
    if level["beyond"]:
        return "more"
    return "-" if level["k"] is None else str(level["k"])
