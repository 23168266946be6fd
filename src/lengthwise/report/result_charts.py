"""Charts of result rows: exact match or perplexity against length, heat maps, and training losses."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from lengthwise.core.type_checks import is_finite, is_nonnegative_integer, is_number
from lengthwise.evaluation.result_rows import (
    Rows,
    count_skipped,
    group_rows,
    is_skipped,
    label_without_variant,
    pool_seeds,
    seed_value_range,
    select_unfit_labels,
    uses_loss,
)
from lengthwise.evaluation.tables_and_figures import UNFIT_NOTE, select_labels
from lengthwise.experiments.run_folder import read_rows
from lengthwise.report.chart import (
    MAX_LINES,
    Chart,
    ChartPoint,
    ReportTable,
    axis_layout,
    error_bars,
    escape_chart_text,
    hover_text,
    interval_text,
    line_chart,
    line_trace,
    number_text,
    truncate_labels,
)
from lengthwise.report.folders import Check, RunRecord, check_row_field
from lengthwise.training.trainer import METRICS

Lines = Mapping[str, Mapping[int, Rows]]
# Maximum number of training ranges that a note lists.
MAX_RANGES = 6
# Height of a row of a heat map, and the limits of the height of the map, in pixels.
ROW_HEIGHT, MIN_HEIGHT, MAX_HEIGHT = 28, 200, 900
# Maximum number of cells of a heat map, because each has a hover text, and of columns.
MAX_MAP_CELLS, MAX_MAP_COLUMNS = 10_000, 200
# Maximum number of points of a loss curve, and of points with a symbol.
MAX_POINTS, MAX_SYMBOLS = 120, 8
# Smallest difference between the first and the last step for automatic ticks, which can be fractions.
MIN_STEPS = 20
STEP: Check = (is_nonnegative_integer, "a whole number of at least 0")
LOSS: Check = (is_number, "a number")


def group_into_panels(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Yield the title and the rows of each task, variant and kind of value; each panel has its own charts."""
    by_panel: dict[tuple[str, str | None, bool], list[Mapping[str, Any]]] = {}
    for row in rows:
        key = (str(row["task"]), row.get("variant"), "loss" in row)
        by_panel.setdefault(key, []).append({**row, "row": label_without_variant(row)})
    for (task, variant, _), panel_rows in by_panel.items():
        yield task.replace("_", " ") + (f", {variant}" if variant else ""), panel_rows


def _group_lines(rows: Rows) -> dict[str, dict[int, Rows]]:
    """Group rows by label and length; labels that did not fit their training lengths are last."""
    by_label, unfit = group_rows(rows), select_unfit_labels(rows)
    return {
        label: {length: runs for length, runs in by_label[label].items() if runs}
        for label in sorted(by_label, key=lambda label: label in unfit)
    }


def accuracy_chart(title: str, rows: Rows) -> Chart:
    """Return exact match or perplexity against length, one line per label: mean over seeds, bars for the range."""
    lines = _group_lines(rows)
    value_name, all_unfit = _value_name(rows), select_unfit_labels(rows)
    labels = select_labels(lines, all_unfit, MAX_LINES)
    unfit = [label for label in labels if label in all_unfit]
    traces = []
    for index, label in enumerate(labels):
        traces += list(_traces(index, label, lines[label], value_name, fits=label not in unfit))
    has_seeds = any(len(runs) > 1 for by_length in lines.values() for runs in by_length.values())
    lengths = sorted({int(row["length"]) for row in rows})
    train_ranges = list(dict.fromkeys(tuple(row["train_lengths"]) for row in rows if row["train_lengths"]))
    notes = [
        f"Lines: mean over seeds. Bars: range from the lowest to the highest seed, or the 95% interval of a single "
        f"seed. {_describe_ranges(train_ranges)}"
    ]
    if count_skipped(rows):
        notes.append("A seed that stopped at a shorter length without an exact match counts as 0.")
    if unfit:
        notes.append(f"Dotted gray lines: {UNFIT_NOTE}.")
    if len(labels) < len(lines):
        notes.append(
            f"The chart shows {len(labels)} of {len(lines):,} lines, which differ most; "
            "the heat map and the tables show the others."
        )
    layout = {
        "xaxis": axis_layout("length (log scale)", log=True, tickvals=lengths),
        "yaxis": axis_layout(value_name, log=uses_loss(rows), **({} if uses_loss(rows) else {"range": [-0.04, 1.06]})),
        "shapes": [
            _training_area(*train_range, opacity=1 / len(train_ranges)) for train_range in train_ranges[:MAX_RANGES]
        ],
    }
    return Chart(
        title=f"{title}: {value_name} against length",
        description=f"Line chart of {value_name} against length up to {lengths[-1]:,}, {len(labels)} lines.",
        traces=traces,
        layout=layout,
        table=_value_table(title, lines, value_name, all_unfit),
        lines=labels,
        switches=("log x", "seeds") if has_seeds else ("log x",),
        notes=notes,
        unfit=unfit,
    )


def _value_name(rows: Rows) -> str:
    return "perplexity" if uses_loss(rows) else "exact match"


def _describe_ranges(train_ranges: Sequence[tuple[int, int]]) -> str:
    if not train_ranges:
        return "The training lengths are unknown."
    texts = [f"{shortest:,} to {longest:,}" for shortest, longest in train_ranges[:MAX_RANGES]]
    if len(train_ranges) == 1:
        return f"The shaded area contains the training lengths {texts[0]}."
    texts += [f"{len(train_ranges) - MAX_RANGES:,} more"] if len(train_ranges) > MAX_RANGES else []
    return f"The shaded areas contain the training lengths, which differ between configurations: {'; '.join(texts)}."


def _training_area(first: int, last: int, *, opacity: float) -> dict[str, Any]:
    corners = {"x0": first, "x1": last, "y0": 0, "y1": 1}
    return {"type": "rect", "xref": "x", "yref": "paper", **corners, "layer": "below", "opacity": max(0.4, opacity)}


def _traces(
    index: int, label: str, by_length: Mapping[int, Rows], value_name: str, *, fits: bool
) -> Iterator[dict[str, Any]]:
    """Yield the line of a label and, if it has several seeds, the points of the seeds."""
    groups = list(by_length.values())
    values = [pool_seeds(rows)[0] for rows in groups]
    texts = [hover_text(label, *_describe_rows(rows, value_name)) for rows in groups]
    yield line_trace(index, list(by_length), values, texts, fits=fits) | {
        "error_y": error_bars(values, [seed_value_range(rows) for rows in groups])
    }
    runs = [row for rows in groups if len(rows) > 1 for row in rows]
    if runs:
        seed_values = [pool_seeds([row])[0] for row in runs]
        seed_texts = [hover_text(label, *_describe_rows([row], value_name)) for row in runs]
        points = line_trace(index, [int(row["length"]) for row in runs], seed_values, seed_texts, fits=fits)
        marker = {"symbol": f"{points['marker']['symbol']}-open", "size": 5}
        yield points | {"mode": "markers", "marker": marker, "name": "seeds"}


def _describe_rows(rows: Rows, value_name: str) -> Iterator[str]:
    """Yield the lines of a hover text: length, value, interval, number of examples, and seeds."""
    value, low, high = pool_seeds(rows)
    yield f"length {rows[0]['length']:,}: {value_name} {number_text(value)}"
    if low is not None and high is not None:
        yield f"95% interval {interval_text(low, high)}"
    yield f"n = {_count(rows)}, {_seeds(rows)}"
    if num_skipped := count_skipped(rows):
        yield f"{num_skipped} stopped at a shorter length without an exact match; counts as 0"


def _count(rows: Rows) -> str:
    counts = sorted({int(row["num_examples"]) for row in rows if not is_skipped(row)} or {0})
    text = "-".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
    return text if len(rows) == 1 else f"{text} per seed"


def _seeds(rows: Rows) -> str:
    seeds = [str(row["seed"]) for row in rows]
    return f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(seeds)}"


def _count_seeds(rows: Rows) -> str:
    """Return the number of seeds as text, and how many of them stopped at a shorter length."""
    num_skipped = count_skipped(rows)
    return f"{len(rows)}, {num_skipped} stopped" if num_skipped else f"{len(rows)}"


def _name_line(label: str, unfit: Collection[str]) -> str:
    return f"{label} ({UNFIT_NOTE})" if label in unfit else label


def _value_table(title: str, lines: Lines, value_name: str, unfit: Collection[str]) -> ReportTable:
    body = []
    for label, by_length in lines.items():
        for length, rows in by_length.items():
            value, low, high = pool_seeds(rows)
            seed_range = "-" if len(rows) == 1 else interval_text(*seed_value_range(rows))
            cells = [number_text(value), interval_text(low, high), seed_range, _count(rows), _count_seeds(rows)]
            body.append([_name_line(label, unfit), f"{length:,}", *cells, ", ".join(str(row["seed"]) for row in rows)])
    columns = ["configuration", "length", value_name, "95% interval", "range over seeds", "n", "number of seeds"]
    return ReportTable(f"{title}: {value_name} by length", [*columns, "seeds"], body)


def heat_map(title: str, rows: Rows) -> Chart:
    """Return exact match or perplexity of the labels, one row per label and one column per length.

    The labels that did not fit their training lengths are at the bottom.
    """
    all_lines, all_lengths = _group_lines(rows), sorted({int(row["length"]) for row in rows})
    lengths = all_lengths[:MAX_MAP_COLUMNS]
    labels = list(all_lines)[: MAX_MAP_CELLS // len(lengths)]
    value_name, unfit = _value_name(rows), select_unfit_labels(rows)
    shown_names = [f"{label} (no fit)" if label in unfit else label for label in labels]
    has_row_labels = len(labels) <= MAX_HEIGHT // ROW_HEIGHT
    names = dict(zip(truncate_labels(shown_names), shown_names, strict=True)) if has_row_labels else {}
    columns = [f"{length:,}" for length in lengths]
    values, texts, body = [], [], []
    for label in labels:
        cells = [all_lines[label].get(length) for length in lengths]
        values.append([None if rows is None else round(pool_seeds(rows)[0], 4) for rows in cells])
        cell_texts = (["no result"] if rows is None else _describe_rows(rows, value_name) for rows in cells)
        texts.append([hover_text(label, *lines) for lines in cell_texts])
        body.append([_name_line(label, unfit), *map(_cell, cells)])
    # Rows that are not high enough for labels show them only on hovering.
    ticks: dict[str, Any] = {"showticklabels": False}
    if names:
        ticks = {"tickvals": list(range(len(names))), "ticktext": [escape_chart_text(name) for name in names]}
        ticks["automargin"] = True
    omitted = []
    if len(labels) < len(all_lines):
        omitted.append(f"the first {len(labels):,} of {len(all_lines):,} configurations")
    if len(lengths) < len(all_lengths):
        omitted.append(f"the shortest {len(lengths):,} of {len(all_lengths):,} lengths")
    limits: dict[str, float] = {} if uses_loss(rows) else {"zmin": 0.0, "zmax": 1.0}
    trace = {
        "type": "heatmap",
        "z": values,
        "x": columns,
        "y": list(range(len(labels))),
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": value_name}, "thickness": 12},
        "xgap": 1,
        "ygap": int(has_row_labels),
        "meta": None,
        **limits,
    }
    return Chart(
        title=f"{title}: {value_name} of all configurations",
        description=f"Heat map of {value_name}: {len(labels):,} configurations and {len(lengths):,} lengths.",
        traces=[trace],
        layout={
            "xaxis": axis_layout("length") | {"type": "category"},
            "yaxis": axis_layout("") | {"autorange": "reversed"} | ticks,
            "height": min(MAX_HEIGHT, max(MIN_HEIGHT, ROW_HEIGHT * len(labels) + 120)),
        },
        table=ReportTable(f"{title}: {value_name} by length (number of seeds)", ["configuration", *columns], body),
        notes=[
            *([f"The heat map and its table show {' and '.join(omitted)}."] if omitted else []),
            *([f"(no fit): {UNFIT_NOTE}."] if unfit else []),
        ],
        tick_names={name: label for name, label in names.items() if name != label},
    )


def _cell(rows: Rows | None) -> str:
    return "-" if rows is None else f"{number_text(pool_seeds(rows)[0])} ({_count_seeds(rows)})"


# Median loss and number of runs, by step.
LossCurve = Mapping[int, tuple[float, int]]


def loss_charts(runs: Sequence[RunRecord], drawn_labels: Sequence[str]) -> tuple[list[Chart], list[str]]:
    """Return a chart per task of the median training loss over runs, and sentences about the losses left out.

    A chart has the labels that the other charts of its task draw, or else the first ones. A task whose runs have logged
    no loss has no chart.
    """
    by_task: dict[str, list[RunRecord]] = {}
    for run in runs:
        task = run.description.get("task")
        name = str(task.get("name")) if isinstance(task, Mapping) else "unknown task"
        by_task.setdefault(name, []).append(run)
    charts, sentences = [], []
    for task_name, task_runs in by_task.items():
        labels = list(dict.fromkeys(run.label for run in task_runs))
        labels = [label for label in drawn_labels if label in labels] or labels
        curves = {label: _curve([run for run in task_runs if run.label == label]) for label in labels[:MAX_LINES]}
        title = "Training loss" if len(by_task) == 1 else f"Training loss: {task_name.replace('_', ' ')}"
        if omitted := {label: count for label, (_, count) in curves.items() if count}:
            counts = ", ".join(f"{count:,} of {label}" for label, count in omitted.items())
            sentences.append(f"{title}: the chart leaves out logged losses that are not finite ({counts}).")
        if drawn := {label: curve for label, (curve, _) in curves.items() if curve}:
            charts.append(_loss_chart(title, drawn))
    return charts, sentences


def _loss_chart(title: str, curves: Mapping[str, LossCurve]) -> Chart:
    lines, body = [], []
    steps = sorted({step for curve in curves.values() for step in curve})
    for label, curve in curves.items():
        points = []
        for step, (loss, count) in curve.items():
            runs = "1 run" if count == 1 else f"median of {count} runs"
            points.append(ChartPoint(step, loss, (f"step {step:,}: loss {loss:.4g}", runs)))
            body.append([label, f"{step:,}", f"{loss:.4g}", str(count)])
        lines.append((label, points))
    ticks: dict[str, Any] = {"tickvals": steps} if steps[-1] - steps[0] < MIN_STEPS else {}
    chart = line_chart(
        title,
        lines,
        subject="the training loss against the training step",
        x=axis_layout("training step", **ticks),
        y=axis_layout("loss (log scale)", log=True),
        table=ReportTable(f"{title} by step", ["configuration", "step", "loss", "runs"], body),
        switch="log y",
        notes=["Mean loss since the previous point of the log; the median over the runs that trained up to this step."],
    )
    for trace in chart.traces:
        trace["marker"]["maxdisplayed"] = MAX_SYMBOLS
    return chart


def _curve(runs: Sequence[RunRecord]) -> tuple[LossCurve, int]:
    """Return at most ``MAX_POINTS`` increasing steps, and the number of logged losses that are not finite."""
    losses: dict[int, list[float]] = {}
    num_omitted = 0
    for run in runs:
        path = run.folder / METRICS
        for line, row in enumerate(read_rows(path, is_growing=True), start=1):
            name = "mean_loss" if row.get("mean_loss") is not None else "loss"
            if row.get(name) is None or "step" not in row:
                continue
            check_row_field(row, "step", STEP, path, line)
            check_row_field(row, name, LOSS, path, line)
            if is_finite(row[name]):
                losses.setdefault(row["step"], []).append(float(row[name]))
            else:
                num_omitted += 1
    steps = sorted(losses)
    spacing = max(1, -(-len(steps) // (MAX_POINTS - 1)))
    kept_steps = sorted({*steps[::spacing], *steps[-1:]})
    return {step: (median(losses[step]), len(losses[step])) for step in kept_steps}, num_omitted
