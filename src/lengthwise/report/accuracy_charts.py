"""Line charts of result rows: exact match or perplexity against length."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from lengthwise.evaluation.figure_lines import select_labels
from lengthwise.evaluation.result_rows import (
    Rows,
    complete_rows,
    count_skipped,
    is_skipped,
    label_of,
    pool_seeds,
    select_unfit,
    uses_loss,
    value_range,
)
from lengthwise.evaluation.tables_and_figures import UNFIT_NOTE
from lengthwise.report.chart import (
    MAX_LINES,
    Chart,
    Table,
    axis,
    error_bars,
    hover,
    interval_text,
    line_trace,
    number_text,
)

Lines = Mapping[str, Mapping[int, Rows]]
# Maximum number of training ranges that a note lists.
MAX_RANGES = 6


def panels(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Yield the title and the rows of each task, variant and kind of value; each panel has its own charts.

    A run whose evaluation stopped has a skipped row at the longer lengths, and counts as 0 there.
    """
    by_panel: dict[tuple[str, str | None, bool], list[Mapping[str, Any]]] = {}
    for row in complete_rows(rows):
        key = (str(row["task"]), row.get("variant"), "loss" in row)
        by_panel.setdefault(key, []).append({**row, "row": label_of(row)})
    for (task, variant, _), panel_rows in by_panel.items():
        yield task.replace("_", " ") + (f", {variant}" if variant else ""), panel_rows


def group_lines(rows: Rows) -> dict[str, dict[int, list[Mapping[str, Any]]]]:
    """Group rows by label and length in one pass, in the order of labels and with increasing lengths.

    Labels that did not fit their training lengths are last.
    """
    lines: dict[str, dict[int, list[Mapping[str, Any]]]] = {}
    for row in sorted(rows, key=lambda row: int(row["length"])):
        lines.setdefault(str(row["row"]), {}).setdefault(int(row["length"]), []).append(row)
    unfit = select_unfit(rows)
    order = dict.fromkeys(str(row["row"]) for row in rows)
    return {label: lines[label] for label in sorted(order, key=lambda label: label in unfit)}


def accuracy_chart(title: str, rows: Rows) -> Chart:
    """Return exact match or perplexity against length, one line per label: mean over seeds, bars for the range."""
    lines = group_lines(rows)
    value_name, all_unfit = name_value(rows), select_unfit(rows)
    labels = select_labels(lines, all_unfit, MAX_LINES)
    unfit = [label for label in labels if label in all_unfit]
    traces = []
    for index, label in enumerate(labels):
        traces += list(_traces(index, label, lines[label], value_name, fits=label not in unfit))
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
        "xaxis": axis("length (log scale)", log=True, tickvals=lengths),
        "yaxis": axis(value_name, log=uses_loss(rows), **({} if uses_loss(rows) else {"range": [-0.04, 1.06]})),
        "shapes": [_training_area(*each, opacity=1 / len(train_ranges)) for each in train_ranges[:MAX_RANGES]],
    }
    return Chart(
        title=f"{title}: {value_name} against length",
        description=f"Line chart of {value_name} against length up to {lengths[-1]:,}, {len(labels)} lines.",
        traces=traces,
        layout=layout,
        table=_value_table(title, lines, value_name, all_unfit),
        lines=labels,
        switches=("log x", "seeds") if any(len(runs) > 1 for runs in _groups(lines)) else ("log x",),
        notes=notes,
        unfit=unfit,
    )


def name_value(rows: Rows) -> str:
    """Return the name of the value that the charts of these rows show."""
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


def _groups(lines: Lines) -> Iterator[Rows]:
    for by_length in lines.values():
        yield from by_length.values()


def _traces(
    index: int, label: str, by_length: Mapping[int, Rows], value_name: str, *, fits: bool
) -> Iterator[dict[str, Any]]:
    """Yield the line of a label and, if it has several seeds, the points of the seeds."""
    groups = list(by_length.values())
    values = [pool_seeds(rows)[0] for rows in groups]
    texts = [hover(label, *describe_rows(rows, value_name)) for rows in groups]
    yield line_trace(index, list(by_length), values, texts, fits=fits) | {
        "error_y": error_bars(values, [value_range(rows) for rows in groups])
    }
    runs = [row for rows in groups if len(rows) > 1 for row in rows]
    if runs:
        seed_values = [pool_seeds([row])[0] for row in runs]
        seed_texts = [hover(label, *describe_rows([row], value_name)) for row in runs]
        points = line_trace(index, [int(row["length"]) for row in runs], seed_values, seed_texts, fits=fits)
        marker = {"symbol": f"{points['marker']['symbol']}-open", "size": 5}
        yield points | {"mode": "markers", "marker": marker, "name": "seeds"}


def describe_rows(rows: Rows, value_name: str) -> Iterator[str]:
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


def count_text(rows: Rows) -> str:
    """Return the number of seeds as text, and how many of them stopped at a shorter length."""
    num_skipped = count_skipped(rows)
    return f"{len(rows)}, {num_skipped} stopped" if num_skipped else f"{len(rows)}"


def name_line(label: str, unfit: Container[str]) -> str:
    """Return a label, with a note if no seed fits its training lengths."""
    return f"{label} ({UNFIT_NOTE})" if label in unfit else label


def _value_table(title: str, lines: Lines, value_name: str, unfit: Container[str]) -> Table:
    body = []
    for label, by_length in lines.items():
        for length, rows in by_length.items():
            value, low, high = pool_seeds(rows)
            seed_range = "-" if len(rows) == 1 else interval_text(*value_range(rows))
            cells = [number_text(value), interval_text(low, high), seed_range, _count(rows), count_text(rows)]
            body.append([name_line(label, unfit), f"{length:,}", *cells, ", ".join(str(row["seed"]) for row in rows)])
    header = [
        "configuration",
        "length",
        value_name,
        "95% interval",
        "range over seeds",
        "n",
        "number of seeds",
        "seeds",
    ]
    return Table(title=f"{title}: {value_name} by length", header=header, body=body)
