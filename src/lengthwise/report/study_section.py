"""Charts of an influence study, and its texts with their influential tokens."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lengthwise.core.type_checks import is_finite
from lengthwise.influence.report.page import render_study
from lengthwise.influence.report.summary_tables import SOURCE_LABELS, summary_tables
from lengthwise.report.chart import MAX_LINES, Chart, Table, axis, error_bars, hover, line_trace
from lengthwise.report.folders import StudyRecord

Summary = Mapping[str, Any]


def study_tables(study: StudyRecord) -> list[Table]:
    """Return the tables of the summary of a study."""
    tables = summary_tables(study.summary)
    # A damaged summary can have a label of another type.
    return [
        Table(title=each.title, header=each.header, body=[[*map(str, row)] for row in each.body]) for each in tables
    ]


def study_charts(study: StudyRecord) -> list[Chart]:
    """Return the share of the prediction that k far tokens recover, and the distances of the selected tokens.

    A chart without any number is omitted.
    """
    charts = (_recovery_chart(study.summary), _distance_chart(study.summary))
    return [chart for chart in charts if chart is not None]


def study_page(study: StudyRecord, max_bytes: int) -> tuple[str, int] | None:
    """Return a page of at most about ``max_bytes`` with the texts, and the number of omitted targets, or None.

    Targets are omitted evenly over each text until the page is small enough, then whole texts.
    """
    if study.texts is None:
        return None
    texts = dict(study.texts)
    num_targets = _count_targets(texts)
    while texts["documents"] and len(json.dumps(texts)) > max_bytes:
        texts["documents"] = _halve(texts["documents"])
    return render_study(texts), num_targets - _count_targets(texts)


def _count_targets(texts: Mapping[str, Any]) -> int:
    return sum(len(document["targets"]) for document in texts["documents"])


def _halve(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    if any(len(document["targets"]) > 1 for document in documents):
        return [{**document, "targets": document["targets"][::2]} for document in documents]
    return list(documents[: len(documents) // 2])


def _name(group: Mapping[str, Any]) -> str:
    return f"{group['mode']}, {group['knows']}, {SOURCE_LABELS[group['from']]}, {group['measure']}"


def _recovery_chart(summary: Summary) -> Chart | None:
    ks = summary["ks"]
    traces: list[dict[str, Any]] = []
    lines: list[str] = []
    body: list[list[str]] = []
    num_omitted = 0
    for group in summary["groups"]:
        name, shares = _name(group), group["all_targets"]["prediction"]["shares"]
        points = [(k, share) for k, share in zip(ks, shares, strict=True) if is_finite(share["value"])]
        num_omitted += sum(share["value"] is not None for share in shares) - len(points)
        body += [[name, str(k), f"{share['value']:.3f}", _interval(share)] for k, share in points]
        if points and len(lines) < MAX_LINES:
            values = [share["value"] for _, share in points]
            texts = [hover(name, f"k = {k}: {share['value']:.3f}", _interval(share)) for k, share in points]
            trace = line_trace(len(lines), [k for k, _ in points], values, texts)
            traces.append(trace | {"error_y": error_bars(values, [_range(share) for _, share in points])})
            lines.append(name)
    if not lines:
        return None
    title = "share of the prediction that k far tokens recover"
    notes = ["1 - KL(k) / KL(short) over all targets. Bars: 95% interval over resampled documents."]
    if num_omitted:
        notes.append(f"The chart leaves out {num_omitted:,} shares that are not finite.")
    return Chart(
        title=title,
        description=f"Line chart of the {title}, {len(lines)} lines.",
        traces=traces,
        layout={"xaxis": axis("k (log scale)", log=True, tickvals=list(ks)), "yaxis": axis("recovered share")},
        table=Table(title=title, header=["selection", "k", "recovered share", "95% interval"], body=body),
        lines=lines,
        switches=("log x",),
        notes=notes,
    )


def _range(share: Mapping[str, Any]) -> tuple[float, float]:
    value = share["value"]
    return (value if share["low"] is None else share["low"], value if share["high"] is None else share["high"])


def _interval(share: Mapping[str, Any]) -> str:
    if share["low"] is None or share["high"] is None:
        return "no interval"
    return f"95% interval {share['low']:.3f} to {share['high']:.3f}"


def _distance_chart(summary: Summary) -> Chart | None:
    traces: list[dict[str, Any]] = []
    lines: list[str] = []
    body: list[list[str]] = []
    for group in summary["groups"]:
        bins = group["distances"]["bins"]
        if group["from"] != "own" or not group["distances"]["gain"] or len(lines) == MAX_LINES:
            continue
        name = _name(group)
        ranges = [f"{each['from']:,} to {each['to']:,}" for each in bins]
        shares = [each["gain_share"] for each in bins]
        texts = [
            hover(name, f"distance {distance}: {share:.3f} of the gain")
            for distance, share in zip(ranges, shares, strict=True)
        ]
        traces.append(line_trace(len(lines), [each["from"] for each in bins], shares, texts))
        body += [[name, distance, f"{share:.3f}"] for distance, share in zip(ranges, shares, strict=True)]
        lines.append(name)
    if not lines:
        return None
    title = "distances of selected far tokens"
    return Chart(
        title=title,
        description=f"Line chart of the share of the gain against the distance of selected tokens, {len(lines)} lines.",
        traces=traces,
        layout={"xaxis": axis("distance (log scale)", log=True), "yaxis": axis("share of the gain")},
        table=Table(title=title, header=["selection", "distance", "share of the gain"], body=body),
        lines=lines,
        switches=("log x",),
        notes=["Targets with a clear gain; a point is at the smallest distance of its bin."],
    )
