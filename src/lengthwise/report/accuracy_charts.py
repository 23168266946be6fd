"""Charts of result rows: exact match or perplexity against length, as lines and as a heat map."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lengthwise.evaluation.result_rows import (
    Rows,
    label_of,
    pool_seeds,
    uses_loss,
    value_range,
)
from lengthwise.report.chart import MAX_LINES, Chart, Table, axis, chart_text, error_bars, hover, line_trace

Lines = Mapping[str, Mapping[int, Rows]]
# Height of a row of the heat map, and the limits of its height, in pixels.
ROW_HEIGHT, MIN_HEIGHT, MAX_HEIGHT = 28, 200, 900


def panels(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Yield the title and the rows of each task and variant; each panel has its own charts."""
    by_panel: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = (str(row["task"]), row.get("variant"))
        by_panel.setdefault(key, []).append({**row, "row": label_of(row)})
    for (task, variant), panel_rows in by_panel.items():
        yield task.replace("_", " ") + (f", {variant}" if variant else ""), panel_rows


def group_lines(rows: Rows) -> dict[str, dict[int, list[Mapping[str, Any]]]]:
    """Group rows by label and length in one pass, in the order of labels and with increasing lengths."""
    lines: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in sorted(rows, key=lambda row: int(row["length"])):
        lines.setdefault(str(row["row"]), {}).setdefault(int(row["length"]), []).append(row)
    order = dict.fromkeys(str(row["row"]) for row in rows)
    return {label: lines[label] for label in order}


def select_labels(lines: Lines) -> list[str]:
    """Return the labels of the lines to draw: the first label, and those with the best values over all lengths."""

    def quality(label: str) -> float:
        values = [pool_seeds(rows)[0] for rows in lines[label].values()]
        is_loss = uses_loss(next(iter(lines[label].values())))
        return -sum(map(math.log, values)) / len(values) if is_loss else sum(values)

    first, *others = lines
    best = {first, *sorted(others, key=quality, reverse=True)[: MAX_LINES - 1]}
    return [label for label in lines if label in best]


def accuracy_chart(title: str, rows: Rows) -> Chart:
    """Return exact match or perplexity against length, one line per label: mean over seeds, bars for the range."""
    lines = group_lines(rows)
    labels = select_labels(lines)
    value_name = "perplexity" if uses_loss(rows) else "exact match"
    traces = []
    for index, label in enumerate(labels):
        traces += list(_traces(index, label, lines[label], value_name))
    longest, (shortest_trained, longest_trained) = max(int(row["length"]) for row in rows), rows[0]["train_lengths"]
    notes = [
        f"Lines: mean over seeds. Bars: range from the lowest to the highest seed, or the 95% interval of a single "
        f"seed. The shaded area contains the training lengths {shortest_trained:,} to {longest_trained:,}."
    ]
    if len(labels) < len(lines):
        notes.append(f"The chart shows {len(labels)} of {len(lines):,} lines; the table and the heat map show all.")
    layout = {
        "xaxis": axis("length (log scale)", log=True, tickvals=sorted({int(row["length"]) for row in rows})),
        "yaxis": axis(value_name, log=uses_loss(rows), **({} if uses_loss(rows) else {"range": [-0.04, 1.06]})),
        "shapes": [_training_area(shortest_trained, longest_trained)],
    }
    return Chart(
        title=f"{title}: {value_name} against length",
        description=f"Line chart of {value_name} against length up to {longest:,}, {len(labels)} lines.",
        traces=traces,
        layout=layout,
        table=_value_table(title, lines, value_name),
        lines=labels,
        switches=("log x", "seeds") if any(len(runs) > 1 for runs in _groups(lines)) else ("log x",),
        notes=notes,
    )


def _training_area(first: int, last: int) -> dict[str, Any]:
    return {"type": "rect", "xref": "x", "yref": "paper", "x0": first, "x1": last, "y0": 0, "y1": 1, "layer": "below"}


def _groups(lines: Lines) -> Iterator[Rows]:
    for by_length in lines.values():
        yield from by_length.values()


def _traces(index: int, label: str, by_length: Mapping[int, Rows], value_name: str) -> Iterator[dict[str, Any]]:
    """Yield the line of a label and, if it has several seeds, the points of the seeds."""
    groups = list(by_length.values())
    values = [pool_seeds(rows)[0] for rows in groups]
    texts = [hover(label, *_describe(rows, value_name)) for rows in groups]
    yield line_trace(index, list(by_length), values, texts) | {
        "error_y": error_bars(values, [value_range(rows) for rows in groups])
    }
    runs = [row for rows in groups if len(rows) > 1 for row in rows]
    if runs:
        seed_values = [pool_seeds([row])[0] for row in runs]
        seed_texts = [hover(label, *_describe([row], value_name)) for row in runs]
        points = line_trace(index, [int(row["length"]) for row in runs], seed_values, seed_texts)
        marker = {"symbol": f"{points['marker']['symbol']}-open", "size": 5}
        yield points | {"mode": "markers", "marker": marker, "name": "seeds"}


def _describe(rows: Rows, value_name: str) -> Iterator[str]:
    """Yield the lines of a hover text: length, value, interval, number of examples, and seeds."""
    value, low, high = pool_seeds(rows)
    yield f"length {rows[0]['length']:,}: {value_name} {value:.3f}"
    if low is not None and high is not None:
        yield f"95% interval {low:.3f} to {high:.3f}"
    yield f"n = {_count(rows)}, {_seeds(rows)}"


def _count(rows: Rows) -> str:
    counts = sorted({int(row["num_examples"]) for row in rows})
    text = "-".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    return text if len(rows) == 1 else f"{text} per seed"


def _seeds(rows: Rows) -> str:
    seeds = [str(row["seed"]) for row in rows]
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(seeds)}"


def _value_table(title: str, lines: Lines, value_name: str) -> Table:
    body = []
    for label, by_length in lines.items():
        for length, rows in by_length.items():
            value, low, high = pool_seeds(rows)
            interval = "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"
            lowest, highest = value_range(rows)
            seed_range = "-" if len(rows) == 1 else f"{lowest:.3f} to {highest:.3f}"
            seeds = ", ".join(str(row["seed"]) for row in rows)
            body.append([label, f"{length:,}", f"{value:.3f}", interval, seed_range, _count(rows), seeds])
    header = ["configuration", "length", value_name, "95% interval", "range over seeds", "n", "seeds"]
    return Table(title=f"{title}: {value_name} by length", header=header, body=body)


def heat_map(title: str, rows: Rows) -> Chart:
    """Return exact match or perplexity of all labels, one row per label and one column per length."""
    lines = group_lines(rows)
    lengths = sorted({int(row["length"]) for row in rows})
    value_name = "perplexity" if uses_loss(rows) else "exact match"
    values = [[_value(by_length.get(length)) for length in lengths] for by_length in lines.values()]
    texts = [
        [
            hover(label, *_describe(by_length[length], value_name))
            if length in by_length
            else hover(label, "no result")
            for length in lengths
        ]
        for label, by_length in lines.items()
    ]
    limits: dict[str, float] = {} if uses_loss(rows) else {"zmin": 0.0, "zmax": 1.0}
    trace = {
        "type": "heatmap",
        "z": [[None if value is None else round(value, 4) for value in row] for row in values],
        "x": [f"{length:,}" for length in lengths],
        "y": list(range(len(lines))),
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": value_name}, "thickness": 12},
        "xgap": 1,
        "ygap": 1 if len(lines) <= MAX_HEIGHT // ROW_HEIGHT else 0,
        "meta": None,
        **limits,
    }
    body = [
        [label, *("-" if value is None else f"{value:.3f}" for value in row)]
        for label, row in zip(lines, values, strict=True)
    ]
    table = Table(
        title=f"{title}: {value_name} by length",
        header=["configuration", *(f"{each:,}" for each in lengths)],
        body=body,
    )
    return Chart(
        title=f"{title}: {value_name} of all configurations",
        description=f"Heat map of {value_name}: {len(lines):,} configurations and {len(lengths)} lengths.",
        traces=[trace],
        layout={
            "xaxis": axis("length") | {"type": "category"},
            "yaxis": axis("") | {"autorange": "reversed"} | _row_labels(list(lines)),
            "height": min(MAX_HEIGHT, max(MIN_HEIGHT, ROW_HEIGHT * len(lines) + 120)),
        },
        table=table,
    )


def _value(rows: Rows | None) -> float | None:
    return None if rows is None else pool_seeds(rows)[0]


def _row_labels(labels: Sequence[str]) -> dict[str, Any]:
    """Return the tick labels of a heat map; if its rows are too low for labels, only hovering shows them."""
    if len(labels) > MAX_HEIGHT // ROW_HEIGHT:
        return {"showticklabels": False}
    names = [label if len(label) <= 28 else f"{label[:27]}…" for label in labels]
    return {"tickvals": list(range(len(labels))), "ticktext": [chart_text(name) for name in names], "automargin": True}
