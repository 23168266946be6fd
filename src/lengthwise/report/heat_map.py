"""Heat map of result rows: exact match or perplexity of all configurations, by length."""

from collections.abc import Mapping, Sequence
from typing import Any

from lengthwise.evaluation.result_rows import Rows, pool_seeds, select_unfit, uses_loss
from lengthwise.evaluation.tables_and_figures import UNFIT_NOTE
from lengthwise.report.accuracy_charts import count_text, describe_rows, group_lines, name_line, name_value
from lengthwise.report.chart import Chart, Table, axis, chart_text, cut_labels, hover, number_text

# Height of a row, and the limits of the height of the map, in pixels.
ROW_HEIGHT, MIN_HEIGHT, MAX_HEIGHT = 28, 200, 900
# Maximum number of cells, because each has a hover text, and of columns.
MAX_MAP_CELLS, MAX_MAP_COLUMNS = 10_000, 200


def heat_map(title: str, rows: Rows) -> Chart:
    """Return exact match or perplexity of the labels, one row per label and one column per length.

    The labels that did not fit their training lengths are at the bottom.
    """
    all_lines, all_lengths = group_lines(rows), sorted({int(row["length"]) for row in rows})
    lengths = all_lengths[:MAX_MAP_COLUMNS]
    labels = list(all_lines)[: MAX_MAP_CELLS // len(lengths)]
    value_name, unfit = name_value(rows), select_unfit(rows)
    shown_names = [f"{label} (no fit)" if label in unfit else label for label in labels]
    values = [[_value(all_lines[label].get(length)) for length in lengths] for label in labels]
    limits: dict[str, float] = {} if uses_loss(rows) else {"zmin": 0.0, "zmax": 1.0}
    trace = {
        "type": "heatmap",
        "z": [[None if value is None else round(value, 4) for value in row] for row in values],
        "x": [f"{length:,}" for length in lengths],
        "y": list(range(len(labels))),
        "text": [_texts(label, all_lines[label], lengths, value_name) for label in labels],
        "hovertemplate": "%{text}<extra></extra>",
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": value_name}, "thickness": 12},
        "xgap": 1,
        "ygap": 1 if _has_row_labels(labels) else 0,
        "meta": None,
        **limits,
    }
    names = dict(zip(cut_labels(shown_names), shown_names, strict=True)) if _has_row_labels(labels) else {}
    return Chart(
        title=f"{title}: {value_name} of all configurations",
        description=f"Heat map of {value_name}: {len(labels):,} configurations and {len(lengths):,} lengths.",
        traces=[trace],
        layout={
            "xaxis": axis("length") | {"type": "category"},
            "yaxis": axis("") | {"autorange": "reversed"} | _row_labels(list(names)),
            "height": min(MAX_HEIGHT, max(MIN_HEIGHT, ROW_HEIGHT * len(labels) + 120)),
        },
        table=Table(
            title=f"{title}: {value_name} by length (number of seeds)",
            header=["configuration", *(f"{each:,}" for each in lengths)],
            body=[
                [name_line(label, unfit), *(_cell(all_lines[label].get(length)) for length in lengths)]
                for label in labels
            ],
        ),
        notes=[
            *_omissions(len(labels), len(all_lines), len(lengths), len(all_lengths)),
            *([f"(no fit): {UNFIT_NOTE}."] if unfit else []),
        ],
        tick_names={name: label for name, label in names.items() if name != label},
    )


def _value(rows: Rows | None) -> float | None:
    return None if rows is None else pool_seeds(rows)[0]


def _cell(rows: Rows | None) -> str:
    return "-" if rows is None else f"{number_text(pool_seeds(rows)[0])} ({count_text(rows)})"


def _texts(label: str, by_length: Mapping[int, Rows], lengths: Sequence[int], value_name: str) -> list[str]:
    return [
        hover(label, *(describe_rows(by_length[length], value_name) if length in by_length else ["no result"]))
        for length in lengths
    ]


def _has_row_labels(labels: Sequence[str]) -> bool:
    """Return True if the rows are high enough for labels; otherwise, only hovering shows them."""
    return len(labels) <= MAX_HEIGHT // ROW_HEIGHT


def _row_labels(names: Sequence[str]) -> dict[str, Any]:
    if not names:
        return {"showticklabels": False}
    return {"tickvals": list(range(len(names))), "ticktext": [chart_text(name) for name in names], "automargin": True}


def _omissions(num_labels: int, num_all_labels: int, num_lengths: int, num_all_lengths: int) -> list[str]:
    """Return a note if the map and its table leave out configurations or lengths."""
    omitted = []
    if num_labels < num_all_labels:
        omitted.append(f"the first {num_labels:,} of {num_all_labels:,} configurations")
    if num_lengths < num_all_lengths:
        omitted.append(f"the shortest {num_lengths:,} of {num_all_lengths:,} lengths")
    return [f"The heat map and its table show {' and '.join(omitted)}."] if omitted else []
