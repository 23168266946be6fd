"""Print tables and draw a figure of the comparisons which_parity, which_copy and which_addition.

``python benchmarks/which_table.py runs/which_parity runs/which_copy runs/which_addition`` prints one table per task and
draws ``docs/which.png``. A cell lists the exact match over all seeds at 1, 2, 5, 10 and 100 times the training length.
``·`` marks lengths that were not measured because every seed had an exact match of 0 at the previous length. Runs in
later folders replace runs with the same label and seed in earlier folders, for example with more training steps.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthwise.evaluation.figure_layout import FIGURE_WIDTH, FONT_SIZE, LINE_HEIGHT, count_seeds
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, is_skipped, pool_seeds
from lengthwise.experiments.recipes.comparisons import ENCODING_NAMES, LENGTH_FACTORS, MAX_STEPS, SCHEME_NAMES
from lengthwise.experiments.run_folder import read_rows
from lengthwise.positions import SCHEMES, describe_given_information
from lengthwise.tasks import TASKS

Rows = Sequence[Mapping[str, Any]]
# Smallest exact match at the training length for which longer lengths are shown.
MIN_FIT = 0.9
FIGURE = Path("docs/which.png")


def exact_match_by_factor(runs: Rows) -> list[float | None]:
    """Return exact match over all seeds at each factor; stopped seeds count as 0, and None means no measurement."""
    values: list[float | None] = []
    for factor in LENGTH_FACTORS:
        rows = [row for row in runs if row["length"] == factor * row["train_lengths"][1]]
        values.append(None if all(map(is_skipped, rows)) else pool_seeds(rows)[0])
    return values


def fit_by_seed(runs: Rows) -> dict[int, float]:
    """Return the exact match of each seed at the longest training length, as measured after training.

    Runs of YaRN are trained without its factor, so their fit is the exact match of the evaluation.
    """
    if runs[0]["encoding"] == "yarn":
        return {row["seed"]: row["exact_match"] for row in runs if row["length"] == row["train_lengths"][1]}
    return {row["seed"]: row["fitted"] for row in runs}


def missing_reason(runs: Rows) -> str:
    """Return the reason why a cell has no numbers, or an empty string if it has numbers."""
    if not runs:
        return "IDs not read"
    best = max(fit_by_seed(runs).values())
    steps = max(row["steps"] for row in runs)
    return "" if best >= MIN_FIT else f"never fits ({best:.2f} after {steps:,})"


def format_cell(runs: Rows) -> str:
    """Return the five numbers of a cell, and the number of seeds that fit."""
    if reason := missing_reason(runs):
        return reason
    fits = fit_by_seed(runs)
    num_fits = sum(value >= FIT_THRESHOLD for value in fits.values())
    values = exact_match_by_factor(runs)
    text = " ".join("·" if value is None else f"{value:.2f}".removeprefix("0") for value in values)
    text = text.replace("1.00", "1").replace(".00", "0")
    steps = max(row["steps"] for row in runs)
    if num_fits < len(fits):
        return f"{text} ({num_fits}/{len(fits)} fit in {steps:,})"
    return f"{text} (in {steps:,})" if steps > MAX_STEPS else text


def table_body(rows: Rows) -> list[list[str]]:
    """Return the body of a table with one line per encoding and one column per scheme; the first line is ``given``."""
    task = TASKS[rows[0]["task"]]()
    body = [["given", *(describe_given_information(task, SCHEMES[scheme]()) for scheme in SCHEME_NAMES)]]
    for encoding in ENCODING_NAMES:
        by_scheme = [[row for row in rows if row["row"] == f"{scheme}/{encoding}"] for scheme in SCHEME_NAMES]
        if any(by_scheme):
            body.append([encoding, *map(format_cell, by_scheme)])
    return body


def draw(by_task: Mapping[str, Rows]) -> None:
    """Draw one panel per task, with one line per encoding and five columns per scheme."""
    heights = [0.75 + LINE_HEIGHT * 1.4 * len(encodings_of(rows)) for rows in by_task.values()]
    figure = Figure(figsize=(FIGURE_WIDTH, 1.1 + sum(heights)), layout="constrained")
    all_axes = np.atleast_1d(figure.subplots(len(by_task), 1, height_ratios=heights))
    for axes, (task, rows) in zip(all_axes, by_task.items(), strict=True):
        image = draw_task(axes, rows)
        seeds = count_seeds([len({row["seed"] for row in rows if row["row"] == label}) for label in labels_of(rows)])
        axes.set_title(f"{task}, {seeds}", pad=18, loc="left", fontsize=FONT_SIZE + 1)
    all_axes[-1].set_xlabel("test length, in longest training lengths", fontsize=FONT_SIZE)
    bar = figure.colorbar(image, ax=figure.axes, orientation="horizontal", shrink=0.5, aspect=40)
    bar.set_label("exact match, mean over seeds", fontsize=FONT_SIZE)
    bar.ax.tick_params(labelsize=FONT_SIZE)
    figure.savefig(FIGURE, dpi=160)


def draw_task(axes: Axes, rows: Rows) -> Any:
    """Draw the panel of one task, and return its image."""
    encodings, num_factors = encodings_of(rows), len(LENGTH_FACTORS)
    values = np.full((len(encodings), len(SCHEME_NAMES) * num_factors), np.nan)
    for column, scheme in enumerate(SCHEME_NAMES):
        middle = column * num_factors + (num_factors - 1) / 2
        for line, encoding in enumerate(encodings):
            runs = [row for row in rows if row["row"] == f"{scheme}/{encoding}"]
            if reason := missing_reason(runs):
                text = reason.partition(" (")[0]
                axes.text(middle, line, text, ha="center", va="center", fontsize=FONT_SIZE, color="0.35")
            else:
                part = slice(column * num_factors, (column + 1) * num_factors)
                values[line, part] = [0.0 if value is None else value for value in exact_match_by_factor(runs)]
        axes.text(middle, 1.02, scheme, ha="center", fontsize=FONT_SIZE, transform=axes.get_xaxis_transform())
        axes.axvline((column + 1) * num_factors - 0.5, color="white", linewidth=3)
    axes.set_facecolor("0.9")
    axes.set_yticks(range(len(encodings)), encodings, fontsize=FONT_SIZE)
    axes.set_xticks(range(values.shape[1]), list(map(str, LENGTH_FACTORS)) * len(SCHEME_NAMES), fontsize=FONT_SIZE)
    return axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")


def labels_of(rows: Rows) -> list[str]:
    """Return the labels of the rows without repetition."""
    return list(dict.fromkeys(row["row"] for row in rows))


def encodings_of(rows: Rows) -> list[str]:
    """Return the encodings that occur in the labels of the rows, in the order of the tables."""
    return [name for name in ENCODING_NAMES if any(label.endswith(f"/{name}") for label in labels_of(rows))]


def main(folders: list[Path]) -> None:
    """Print one table per task and draw the figure."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        rows = read_rows(folder if folder.suffix == ".jsonl" else folder / "results.jsonl")
        task_rows = by_task.setdefault(rows[0]["task"], [])
        new_runs = {(row["row"], row["seed"]) for row in rows}
        task_rows[:] = [row for row in task_rows if (row["row"], row["seed"]) not in new_runs] + rows
    for task, rows in by_task.items():
        print(f"\n### {task}\n")
        for line in (["encoding", *SCHEME_NAMES], ["---"] * (1 + len(SCHEME_NAMES)), *table_body(rows)):
            print(f"| {' | '.join(line)} |")
    draw(by_task)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
