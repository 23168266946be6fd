"""Tables and figures of result rows: exact match by length, or perplexity by context length."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError
from lengthwise.core.intervals import interval_over_models

Rows = Sequence[Mapping[str, Any]]
FIT_THRESHOLD = 0.99
MIN_PANELS_FOR_TWO_COLUMNS = 5


def group_rows(rows: Rows) -> dict[str, dict[int, Rows]]:
    """Group result rows by label (the value of ``row``) and then by length; a group has one row per seed."""
    labels = list(dict.fromkeys(str(row["row"]) for row in rows))
    lengths = sorted({int(row["length"]) for row in rows})
    return {
        label: {length: [row for row in rows if row["row"] == label and row["length"] == length] for length in lengths}
        for label in labels
    }


def uses_loss(rows: Rows) -> bool:
    """Return True for rows with losses, False for rows with exact match; a table never contains both."""
    return "loss" in rows[0]


def pool_seeds(rows: Rows) -> tuple[float, float | None, float | None]:
    """Return the exact match over the examples of all seeds, with its 95% interval (all seeds use the same examples).

    For losses, return the perplexity of the mean loss over seeds. The bounds of its interval are means over seeds
    too, because all seeds use the same documents.
    """
    if uses_loss(rows):
        perplexity, low, high = (_perplexity([row[loss_name] for row in rows]) for loss_name in ("loss", "low", "high"))
        assert perplexity is not None
        return perplexity, low, high
    num_examples = [int(row["num_examples"]) for row in rows]
    num_exact = [round(float(row["exact_match"]) * count) for row, count in zip(rows, num_examples, strict=True)]
    return (sum(num_exact) / sum(num_examples), *interval_over_models(num_exact, num_examples))


def _perplexity(losses: Sequence[float | None]) -> float | None:
    known_losses = [loss for loss in losses if loss is not None]
    return math.exp(sum(known_losses) / len(known_losses)) if known_losses else None


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
    return f"exact match {last_row['fitted']:.2f} at length {last_row['train_lengths'][1]}"


def table(rows: Rows, diverged: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Return a header and a body with one line per label and one column per length, and intervals below the values.

    The column ``fits`` counts the seeds with exact match 0.99 or more at the longest training length. Seeds that do not
    fit cannot show extrapolation. ``diverged`` contains the label of each run that diverged.
    """
    by_label = group_rows(rows)
    lengths = list(next(iter(by_label.values())))
    header = ["configuration", "told", "trained on", "IDs in training", "steps", "fits"]
    header += [f"{length:,}\nn={format_num_examples(rows, length)}" for length in lengths]
    body = []
    for label, by_length in by_label.items():
        runs = next(runs for runs in by_length.values() if runs)
        min_length, max_length = runs[0]["train_lengths"]
        min_id, max_id = min(row["id_range"][0] for row in runs), max(row["id_range"][1] for row in runs)
        step_counts = sorted({int(row["steps"]) for row in runs})
        step_range = "-".join(f"{num_steps:,}" for num_steps in dict.fromkeys((step_counts[0], step_counts[-1])))
        fits = fit_status(runs) + (f", {diverged.count(label)} diverged" if label in diverged else "")
        cells = [knowledge_of(runs), f"{min_length}-{max_length}", f"{min_id:,}-{max_id:,}", step_range, fits]
        body.append([label, *cells, *(format_value(by_length[length]) for length in lengths)])
    for label in dict.fromkeys(label for label in diverged if label not in by_label):
        body.append([label, "-", "-", "-", "-", f"{diverged.count(label)} diverged", *("-" for _ in lengths)])
    return header, body


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
            "n": lambda row: str(row["num_examples"]) + (f" of {row['num_rows']}" if row.get("num_rows") else ""),
            "exact match": lambda row: f"{row['exact_match']:.3f}",
            "95% interval": lambda row: f"{row['low']:.3f}-{row['high']:.3f}",
            "tokens": lambda row: f"{row['token_accuracy']:.4f}",
            "IDs": lambda row: f"{row['id_accuracy']:.4f}",
            "first errors": lambda row: _format_first_errors(row["first_error"]),
        }
    if all(row["variant"] is None for row in rows):
        columns.pop(next(iter(columns)))
    # Rows of text models have no ID accuracy.
    if "id_accuracy" not in rows[0]:
        columns.pop("IDs", None)
    return list(columns), [[cell(row) for cell in columns.values()] for row in rows]


def _format_first_errors(error_counts: Mapping[str, Any] | None) -> str:
    if error_counts is None:
        return "none"
    kinds_text = ", ".join(f"{error_counts[kind]} {kind}" for kind in ("token", "id", "end") if error_counts[kind])
    return f"{kinds_text}; median index {error_counts['median_index']:g}"


def knowledge_of(rows: Rows) -> str:
    """Return the field ``told`` of the rows of a label; a dash for rows of earlier versions without this field."""
    return next((str(row["told"]) for row in rows if "told" in row), "-")


def fit_status(runs: Rows) -> str:
    """Return how many seeds fit the longest training length, as text; a dash for losses."""
    if uses_loss(runs):
        return "-"
    num_fits = sum(row["fitted"] >= FIT_THRESHOLD for row in runs)
    if not num_fits:
        return f"did not fit ({max(row['fitted'] for row in runs):.2f})"
    return "yes" if len(runs) == 1 else f"{num_fits} of {len(runs)} seeds"


def format_value(rows: Rows) -> str:
    """Return exact match or perplexity as text, with its interval on a second line; a dash if there are no rows."""
    if not rows:
        return "-"
    pooled_value, low, high = pool_seeds(rows)
    interval_text = "-" if low is None or high is None else f"{low:.2f}-{high:.2f}"
    return f"{pooled_value:.2f}\n{interval_text}" if uses_loss(rows) else f"{pooled_value:.3f}\n{interval_text}"


def format_num_examples(rows: Rows, length: int) -> str:
    """Return the number of examples per seed at a length, as a range if rows differ."""
    example_counts = sorted({int(row["num_examples"]) for row in rows if row["length"] == length})
    return "-".join(str(count) for count in dict.fromkeys((example_counts[0], example_counts[-1])))


def label_of(row: Mapping[str, Any]) -> str:
    """Return the label of a row without its variant."""
    label, variant = str(row["row"]), row.get("variant")
    return label if variant is None else label.removesuffix(f", {variant}")


def draw(rows: Rows, folder: Path, title: str) -> Path:
    """Draw exact match or perplexity by length into ``figure.png`` and ``figure.svg``, and return the first path.

    Each task and variant has a panel. Bands show the range over seeds; bars show the 95% interval of a single seed.
    """
    # Importing matplotlib takes a second, and most commands draw no figure.
    from matplotlib.figure import Figure  # noqa: PLC0415

    tasks = list(dict.fromkeys(str(row["task"]) for row in rows))
    panels: dict[tuple[str, str | None], list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: tasks.index(str(row["task"]))):
        panels.setdefault((str(row["task"]), row.get("variant")), []).append({**row, "row": label_of(row)})
    # The legend has one line per label.
    height = max(4.8 if len(panels) == 1 else 3.6, *(1.2 + 0.2 * len(group_rows(each)) for each in panels.values()))
    num_columns = 1 if len(panels) < MIN_PANELS_FOR_TWO_COLUMNS else 2
    num_panel_rows = math.ceil(len(panels) / num_columns)
    figure = Figure(figsize=(9 * num_columns, height * num_panel_rows), layout="constrained")
    for panel_index, ((task, variant), panel_rows) in enumerate(panels.items()):
        title_parts = [title, *([task.replace("_", " ")] if len(tasks) > 1 else []), *([variant] if variant else [])]
        axes = figure.add_subplot(num_panel_rows, num_columns, panel_index + 1)
        _draw_panel(axes, panel_rows, ": ".join(title_parts))
    figure.supxlabel("bands: range over seeds; bars: 95% interval of a single seed", fontsize=8)
    return save_figure(figure, folder)


def _draw_panel(axes: Any, rows: Rows, title: str) -> None:
    min_length, max_length = rows[0]["train_lengths"]
    axes.axvspan(min_length, max_length, color="0.9", label=f"trained on {min_length}-{max_length}")
    by_label = group_rows(rows)
    axes.set_prop_cycle(color=_line_colors(len(by_label)))
    for index, (label, by_length) in enumerate(by_label.items()):
        measured = {length: runs for length, runs in by_length.items() if runs}
        values = [pool_seeds(runs)[0] for runs in measured.values()]
        fits = uses_loss(rows) or any(row["fitted"] >= FIT_THRESHOLD for runs in measured.values() for row in runs)
        style, marker = "-" if fits else ":", "osD^vPX"[index % 7]
        name = label if fits else f"{label} (did not fit)"
        # The first label is on top, because it is usually the subject of the comparison.
        (curve,) = axes.plot(list(measured), values, style, marker=marker, markersize=4, label=name, zorder=10 - index)
        _draw_spread(axes, measured, curve.get_color())
    if uses_loss(rows):
        axes.set(xscale="log", xlabel="context length, tokens (log scale)", yscale="log", title=title)
        axes.set_ylabel("perplexity of held-out tokens (log scale)")
    else:
        axes.set(xscale="log", xlabel="length (log scale)", ylabel="exact match", ylim=(-0.03, 1.03), title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)


def _draw_spread(axes: Any, by_length: Mapping[int, Rows], color: Any) -> None:
    ranges = {length: _value_range(runs) for length, runs in by_length.items() if len(runs) > 1}
    intervals = {length: _value_range(runs) for length, runs in by_length.items() if len(runs) == 1}
    if ranges:
        axes.fill_between(list(ranges), *zip(*ranges.values(), strict=True), color=color, alpha=0.15, linewidth=0)
    if intervals:
        axes.vlines(list(intervals), *zip(*intervals.values(), strict=True), color=color, alpha=0.5, linewidth=1)


def _line_colors(num_colors: int) -> list[Any]:
    """Return the colors of a palette for ``num_colors`` lines, without gray, which marks the training range."""
    from matplotlib import colormaps  # noqa: PLC0415

    palette_size = 10 if num_colors < 10 else 20
    colors = [colormaps[f"tab{palette_size}"](color_index) for color_index in range(palette_size)]
    return [color for color in colors if max(color[:3]) - min(color[:3]) > 0.1]


def save_figure(figure: Any, folder: Path) -> Path:
    """Save ``figure.svg`` and ``figure.png`` to a folder, and return the path of ``figure.png``."""
    try:
        for extension in ("svg", "png"):
            figure.savefig(folder / f"figure.{extension}", dpi=160)
    except OSError as error:
        raise RunFolderError(f"cannot save figures in {folder} ({error.strerror}); choose a writable folder") from None
    return folder / "figure.png"


def _value_range(runs: Rows) -> tuple[float, float]:
    if len(runs) == 1:
        pooled_value, low, high = pool_seeds(runs)
        return (pooled_value, pooled_value) if low is None or high is None else (low, high)
    seed_values = [pool_seeds([row])[0] for row in runs]
    return min(seed_values), max(seed_values)
