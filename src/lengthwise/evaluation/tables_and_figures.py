"""Tables and figures of result rows: exact match by length, or perplexity by context length."""

import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthwise.evaluation.figure_layout import (
    MAX_LINES,
    UNFIT_COLOR,
    LineLabel,
    assign_colors,
    count_seeds,
    label_lines,
    make_panels,
    save_figure,
    set_length_axis,
    set_logarithmic_values,
)
from lengthwise.evaluation.result_rows import (
    FIT_THRESHOLD,
    Rows,
    count_skipped,
    find_given_knowledge,
    group_rows,
    is_skipped,
    label_without_variant,
    pool_seeds,
    seed_value_range,
    select_unfit_labels,
    uses_loss,
)

# Words for configurations without a seed that fits its training lengths.
UNFIT_NOTE = "did not fit: says nothing about longer lengths"
# Smallest difference of exact match, or of the loss, at which two lines look different.
VISIBLE_DIFFERENCE = 0.05


def table_title(rows: Rows) -> str:
    """Return the title of a table of these rows."""
    num_seeds = max(len(runs) for by_length in group_rows(rows).values() for runs in by_length.values())
    # An interval over examples does not include the variation between seeds.
    note = " (one seed each; other seeds may differ)" if num_seeds == 1 else ""
    if uses_loss(rows):
        return f"perplexity by context length, with the 95% interval over documents{note}"
    return f"exact match by length, with the 95% interval over examples{note or ' and seeds'}"


def describe_result(rows: Rows) -> str:
    """Return the exact match of a run at the longest training length, or its loss at the longest context length."""
    last_row = rows[-1]
    if uses_loss(rows):
        return f"loss {last_row['loss']:.3f} at context length {last_row['length']}"
    lengths = "lengths up to" if "file" in last_row else "length"
    return f"exact match {last_row['fitted']:.3f} at {lengths} {last_row['train_lengths'][1]}"


def result_tables(rows: Rows, diverged: Sequence[str] = ()) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return the title, header and body of a table of the labels that fit, and of one of those that did not fit.

    A table has one line per label and one column per length. A cell has the value over seeds, its interval, and the
    number of seeds; seeds that stopped at a shorter length count as 0. The column ``fits`` counts the seeds with exact
    match 0.99 or more at the longest training length. ``diverged`` contains the label of each run that diverged.
    """
    title, (header, body) = table_title(rows), _table(rows, diverged)
    unfit = select_unfit_labels(rows) | (set(diverged) - {str(row["row"]) for row in rows})
    fit_lines, unfit_lines = ([line for line in body if (line[0] in unfit) == is_unfit] for is_unfit in (False, True))
    tables = [(title, header, fit_lines), (f"{title}; {UNFIT_NOTE}", header, unfit_lines)]
    return [table for table in tables if table[2]]


def _table(rows: Rows, diverged: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    by_label = group_rows(rows)
    lengths = list(next(iter(by_label.values())))
    header = ["configuration", "given", "trained on", "IDs in training", "steps", "fits"]
    header += [f"{length:,}\nn={format_num_examples(rows, length)}" for length in lengths]
    body = []
    for label, by_length in by_label.items():
        runs = next(runs for runs in by_length.values() if runs)
        min_length, max_length = runs[0]["train_lengths"]
        min_id, max_id = min(row["id_range"][0] for row in runs), max(row["id_range"][1] for row in runs)
        fits = describe_fitting_seeds(runs) + (f", {diverged.count(label)} diverged" if label in diverged else "")
        cells = [
            find_given_knowledge(runs),
            f"{min_length}-{max_length}",
            f"{min_id:,}-{max_id:,}",
            _budget(runs),
            fits,
        ]
        body.append([label, *cells, *(format_value(by_length[length]) for length in lengths)])
    for label in dict.fromkeys(label for label in diverged if label not in by_label):
        body.append([label, "-", "-", "-", "-", f"{diverged.count(label)} diverged", *("-" for _ in lengths)])
    return header, body


def _budget(runs: Rows) -> str:
    """Return the number of layers on a second line below the number of steps; rows of other models have no layers."""
    num_layers = runs[0].get("num_layers")
    layers = "" if num_layers is None else f"\n{num_layers} layer{'s' if num_layers > 1 else ''}"
    return f"{format_step_range(runs)}{layers}"


def format_step_range(runs: Rows) -> str:
    """Return the number of training steps as text, as a range if runs differ."""
    step_counts = [int(row["steps"]) for row in runs]
    return "-".join(f"{count:,}" for count in dict.fromkeys((min(step_counts), max(step_counts))))


def length_table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Return a header and a body for one run, with one line per length."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]]
    if uses_loss(rows):
        columns = {
            "kind": lambda row: str(row["variant"]),
            "context": lambda row: f"{row['shortest_context']:,}-{row['length']:,}",
            "windows": lambda row: str(row["num_examples"]),
            "documents": lambda row: str(row["num_documents"]),
            "loss": lambda row: f"{row['loss']:.4f}",
            "95% interval": lambda row: "-" if row["low"] is None else f"{row['low']:.4f}-{row['high']:.4f}",
            "perplexity": lambda row: f"{row['perplexity']:.2f}",
            "bits per byte": lambda row: "-" if row["bits_per_byte"] is None else f"{row['bits_per_byte']:.3f}",
            "tokens": lambda row: f"{row['token_accuracy']:.4f}",
        }
    else:
        columns = {
            "variant": lambda row: str(row["variant"]),
            "length": lambda row: f"{row['length']:,}",
            "requested tokens": lambda row: f"{row['requested_tokens']:,}",
            "text tokens": lambda row: "-" if is_skipped(row) else f"{row['text_tokens']:,}",
            "n": lambda row: str(row["num_examples"]) + (f" of {row['num_rows']}" if row.get("num_rows") else ""),
            "exact match": lambda row: "0 (skipped)" if is_skipped(row) else f"{row['exact_match']:.3f}",
            "95% interval": lambda row: "-" if is_skipped(row) else f"{row['low']:.3f}-{row['high']:.3f}",
            "tokens": lambda row: "-" if is_skipped(row) else f"{row['token_accuracy']:.4f}",
            "IDs": lambda row: "-" if row["id_accuracy"] is None else f"{row['id_accuracy']:.4f}",
            "first errors": lambda row: "-" if is_skipped(row) else _format_first_errors(row["first_error"]),
        }
    if all(row["variant"] is None for row in rows):
        columns.pop(next(iter(columns)))
    # Only rows of text models have a number of tokens, and they have no ID accuracy.
    for column, key in {"requested tokens": "requested_tokens", "text tokens": "text_tokens"}.items():
        if rows[0].get(key) is None:
            columns.pop(column, None)
    if "id_accuracy" not in rows[0]:
        columns.pop("IDs", None)
    return list(columns), [[cell(row) for cell in columns.values()] for row in rows]


def _format_first_errors(error_counts: Mapping[str, Any] | None) -> str:
    if error_counts is None:
        return "none"
    kinds_text = ", ".join(f"{error_counts[kind]} {kind}" for kind in ("token", "id", "end") if error_counts[kind])
    return f"{kinds_text}; median index {error_counts['median_index']:g}"


def describe_fitting_seeds(runs: Rows) -> str:
    """Return how many seeds fit the longest training length, and the best fit if none does; a dash for losses."""
    if uses_loss(runs):
        return "-"
    num_fits = sum(row["fitted"] >= FIT_THRESHOLD for row in runs)
    status = ("yes" if num_fits else "no") if len(runs) == 1 else f"{num_fits} of {len(runs)} seeds"
    return status if num_fits else f"{status} ({max(row['fitted'] for row in runs):.3f})"


def format_value(rows: Rows) -> str:
    """Return exact match or perplexity as text, its interval, and the number of seeds; a dash if there are no rows.

    Another line counts the seeds that stopped at a shorter length.
    """
    if not rows:
        return "-"
    pooled_value, low, high = pool_seeds(rows)
    interval_text = "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"
    lines = [f"{pooled_value:.{2 if uses_loss(rows) else 3}f}", interval_text, count_seeds([len(rows)])]
    if num_skipped := count_skipped(rows):
        lines.append(f"{num_skipped} stopped")
    return "\n".join(lines)


def format_num_examples(rows: Rows, length: int) -> str:
    """Return the number of examples per evaluated seed at a length, as a range if rows differ; 0 without such seeds."""
    length_rows = [row for row in rows if row["length"] == length and not is_skipped(row)]
    example_counts = sorted({int(row["num_examples"]) for row in length_rows} or {0})
    return "-".join(str(count) for count in dict.fromkeys((example_counts[0], example_counts[-1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLine:
    """Line of a label: its rows by length, without lengths that have no rows, and whether any seed fits."""

    label: str
    runs: Mapping[int, Rows]
    fits: bool

    @property
    def name(self) -> str:
        """Label, with a note if no seed fits its training lengths."""
        return self.label if self.fits else f"{self.label} (did not fit)"

    @property
    def values(self) -> list[float]:
        """Exact match or perplexity over all seeds at each length."""
        return [pool_seeds(runs)[0] for runs in self.runs.values()]

    @property
    def train_lengths(self) -> tuple[int, int] | None:
        """Shortest and longest training length, or None if it is unknown."""
        lengths = next(iter(self.runs.values()))[0]["train_lengths"]
        return None if lengths is None else (int(lengths[0]), int(lengths[1]))


def select_figure_lines(rows: Rows) -> tuple[list[FigureLine], int]:
    """Return at most ``MAX_LINES`` lines in the order of their labels (`select_labels`), and the number of others."""
    unfit = select_unfit_labels(rows)
    lines = [
        FigureLine(
            label=label, runs={length: runs for length, runs in by_length.items() if runs}, fits=label not in unfit
        )
        for label, by_length in group_rows(rows).items()
    ]
    labels = select_labels({line.label: line.runs for line in lines}, unfit, MAX_LINES)
    return [line for line in lines if line.label in labels], len(lines) - len(labels)


def select_labels(runs: Mapping[str, Mapping[int, Rows]], unfit: Container[str], max_labels: int) -> list[str]:
    """Return the labels whose lines differ most, so that a figure shows what fails as well as what works.

    ``runs`` has the rows of each label by length. The first label is usually the subject and is always included. Each
    next label has the largest difference from all included lines at any length. Lines that look like an included one
    come last, and before them those of the ``unfit`` labels.
    """
    curves = {label: _curve(by_length) for label, by_length in runs.items()}
    selected, others = [next(iter(curves))], list(curves)[1:]
    while others and len(selected) < max_labels:
        distances = {label: min(_distance(curves[label], curves[other]) for other in selected) for label in others}
        selected.append(
            max(others, key=lambda label: (distances[label] > VISIBLE_DIFFERENCE, label not in unfit, distances[label]))
        )
        others.remove(selected[-1])
    return [label for label in curves if label in selected]


def _curve(by_length: Mapping[int, Rows]) -> dict[int, float]:
    """Return the exact match, or the loss, over all seeds at each length."""
    values = {length: pool_seeds(rows)[0] for length, rows in by_length.items()}
    is_loss = any(map(uses_loss, by_length.values()))
    return {length: math.log(value) if is_loss else value for length, value in values.items()}


def _distance(curve: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the largest difference at a common length; curves without one differ by 1, as 0 and 1 do."""
    # Rounded, because equal differences are decided by the order of the labels.
    return max((round(abs(curve[length] - other[length]), 9) for length in curve.keys() & other.keys()), default=1.0)


def draw_result_figure(rows: Rows, folder: Path, title: str) -> Path:
    """Draw exact match or perplexity by length into ``figure.png`` and ``figure.svg``, and return the first path.

    Each task and variant has a panel with at most ``MAX_LINES`` lines. Bands show the range over seeds, or the 95%
    interval of a single seed.
    """
    tasks = list(dict.fromkeys(str(row["task"]) for row in rows))
    panels: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: tasks.index(str(row["task"]))):
        panels.setdefault((str(row["task"]), row.get("variant")), []).append({**row, "row": label_without_variant(row)})
    selections = {key: select_figure_lines(panel_rows) for key, panel_rows in panels.items()}
    titles, colors = [], []
    for (task, variant), (lines, _) in selections.items():
        names = [title, *([task.replace("_", " ")] if len(tasks) > 1 else []), *([variant] if variant else [])]
        seed_counts = [len(runs) for line in lines for runs in line.runs.values()]
        titles.append(f"{': '.join(names)}, {count_seeds(seed_counts)}")
        # A label has the same color in all panels of its task.
        task_lines = [line.label for key, (lines, _) in selections.items() if key[0] == task for line in lines]
        line_colors = assign_colors(task_lines, [line.label for line in lines])
        colors.append({line.label: line_colors[line.label] if line.fits else UNFIT_COLOR for line in lines})
    labels = [[line.name for line in lines] for lines, _ in selections.values()]
    figure, all_axes = make_panels(titles, labels, _caption(rows, list(selections.values())))
    for axes, colors_by_label, (key, (lines, _)) in zip(all_axes, colors, selections.items(), strict=True):
        _draw_panel(axes, lines, colors_by_label, panels[key])
    return save_figure(figure, folder)


def _caption(rows: Rows, selections: Sequence[tuple[Sequence[FigureLine], int]]) -> str:
    lines = [line for panel_lines, _ in selections for line in panel_lines]
    seed_counts = {len(runs) for line in lines for runs in line.runs.values()}
    interval = f"95% interval over {'documents' if uses_loss(rows) else 'examples'}"
    note = f" ({interval} where there is one seed)" if 1 in seed_counts else ""
    seed_range = f"Lines: mean over seeds; bands: range from the lowest to the highest seed{note}"
    texts = [f"Bands: {interval}" if seed_counts == {1} else seed_range]
    if any(count_skipped(runs) for line in lines for runs in line.runs.values()):
        texts.append("a seed that stopped at a shorter length without an exact match counts as 0")
    if any(len({line.train_lengths for line in panel_lines}) > 1 for panel_lines, _ in selections):
        texts.append("hollow markers: lengths on which the model of the line was trained")
    if not all(line.fits for line in lines):
        texts.append(f"dashed gray: {UNFIT_NOTE}")
    counts = [num_omitted for _, num_omitted in selections]
    if most := max(counts):
        number = f"{most} more" if min(counts) == most else f"up to {most} more"
        row_word = f"{'row' if most == 1 else 'rows'}{' per panel' * (len(counts) > 1)}"
        texts.append(f"the lines are those that differ most; only in the table: {number} {row_word}")
    return "; ".join(texts) + "."


def _common_range(ranges: Collection[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the training lengths that all ranges share; None if they share none or one is unknown."""
    known = [lengths for lengths in ranges if lengths is not None]
    if len(known) < len(ranges):
        return None
    shortest, longest = max(first for first, _ in known), min(last for _, last in known)
    return (shortest, longest) if shortest <= longest else None


def _draw_panel(axes: Any, lines: Sequence[FigureLine], colors: Mapping[str, str], rows: Rows) -> None:
    ranges = {line.train_lengths for line in lines}
    for index, line in enumerate(lines):
        lengths, color, style = list(line.runs), colors[line.label], "-" if line.fits else "--"
        marker = {"marker": "osD^vP"[index], "markersize": 4}
        # The first label is on top, because it is usually the subject of the comparison; unfit labels are at the back.
        zorder = 10 - index if line.fits else 3 - index / 10
        axes.plot(lengths, line.values, style, color=color, label=line.name, zorder=zorder, **marker)
        bands = [seed_value_range(runs) for runs in line.runs.values()]
        if len(bands) == 1:
            axes.vlines(lengths, *zip(*bands, strict=True), color=color, alpha=0.5, linewidth=2)
        else:
            axes.fill_between(lengths, *zip(*bands, strict=True), color=color, alpha=0.15, linewidth=0)
        if len(ranges) > 1 and line.train_lengths is not None:
            first, last = line.train_lengths
            for length, value in zip(lengths, line.values, strict=True):
                if first <= length <= last:
                    axes.plot(length, value, color=color, markerfacecolor="white", zorder=zorder, **marker)
    range_name = "all trained on" if len(ranges) > 1 else "trained on"
    set_length_axis(axes, {int(row["length"]) for row in rows}, _common_range(ranges), range_name)
    if uses_loss(rows):
        set_logarithmic_values(axes, "perplexity (log scale)")
        axes.set_xlabel("context length in tokens (log scale)")
    else:
        axes.set(ylim=(-0.03, 1.03), ylabel="exact match", xlabel="length (log scale)")
    in_order = sorted(lines, key=lambda line: not line.fits)
    label_lines(axes, [LineLabel(line.name, colors[line.label], line.values[-1]) for line in in_order])
