"""Which scheme and encoding extrapolates: tables and a figure from the comparisons which_parity, -copy and -addition.

``python benchmarks/which_table.py runs/which_parity runs/which_copy runs/which_addition`` prints a table per task and
draws ``docs/which.png``. A cell holds the exact match at 1, 2, 5, 10 and 100 times the training length over all
seeds; ``·`` was not measured, because no seed had an exact match at the length before.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lengthwise.folder import read_rows
from lengthwise.recipes.which import COLUMNS, FACTORS, LINES
from lengthwise.report import FITTED, pooled

Rows = Sequence[Mapping[str, Any]]
FIGURE = Path("docs/which.png")


def shares(runs: Rows) -> list[float | None]:
    """Exact match at each factor over all seeds; a seed that stopped before counts as none, None where all did."""
    found: list[float | None] = []
    seeds = {row["seed"] for row in runs}
    for factor in FACTORS:
        at = [row for row in runs if row["length"] == factor * row["train_lengths"][1]]
        found.append(pooled(at)[0] * len(at) / len(seeds) if at else None)
    return found


def cell(runs: Rows) -> str:
    """Five numbers, and what does not fit."""
    if not runs:
        return ""
    fits = {row["seed"]: row["fitted"] for row in runs}
    fitted = sum(value >= FITTED for value in fits.values())
    if fitted == 0:
        return f"never fits ({max(fits.values()):.2f})"
    written = " ".join("·" if share is None else f"{share:.2f}".removeprefix("0") for share in shares(runs))
    written = written.replace("1.00", "1").replace(".00", "0")
    return written if fitted == len(fits) else f"{written} ({fitted}/{len(fits)} fit)"


def table(rows: Rows) -> list[list[str]]:
    """Encodings down, schemes across."""
    body = []
    for encoding in LINES:
        by_scheme = [[row for row in rows if row["row"] == f"{scheme}/{encoding}"] for scheme in COLUMNS]
        if any(by_scheme):
            body.append([encoding, *map(cell, by_scheme)])
    return body


def draw(by_task: Mapping[str, Rows]) -> None:
    """A panel per task: a row per encoding, five columns per scheme."""
    figure = Figure(figsize=(13, 1.2 + 3.1 * len(by_task)), layout="constrained")
    for axes, (task, rows) in zip(np.atleast_1d(figure.subplots(len(by_task), 1)), by_task.items(), strict=True):
        encodings = [name for name in LINES if any(row["row"].endswith(f"/{name}") for row in rows)]
        values = np.full((len(encodings), len(COLUMNS) * len(FACTORS)), np.nan)
        for line, encoding in enumerate(encodings):
            for place, scheme in enumerate(COLUMNS):
                runs = [row for row in rows if row["row"] == f"{scheme}/{encoding}"]
                if runs:
                    part = slice(place * len(FACTORS), (place + 1) * len(FACTORS))
                    values[line, part] = [0.0 if share is None else share for share in shares(runs)]
        image = axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_yticks(range(len(encodings)), encodings)
        axes.set_xticks(range(values.shape[1]), [f"{factor}x" for factor in FACTORS] * len(COLUMNS), fontsize=7)
        for place, scheme in enumerate(COLUMNS):
            middle = place * len(FACTORS) + (len(FACTORS) - 1) / 2
            axes.text(middle, -0.75, scheme, ha="center", fontsize=9)
            axes.axvline((place + 1) * len(FACTORS) - 0.5, color="white", linewidth=3)
        axes.set_title(task, pad=16)
    figure.colorbar(image, ax=figure.axes, label="exact match", shrink=0.6)
    figure.savefig(FIGURE, dpi=130)


def main(folders: list[Path]) -> None:
    """Print every task's table, draw all."""
    by_task = {}
    for folder in folders:
        rows = read_rows(folder / "results.jsonl")
        by_task[rows[0]["task"]] = rows
        print(f"\n### {rows[0]['task']}\n")
        for line in (["encoding", *COLUMNS], ["---"] * (1 + len(COLUMNS)), *table(rows)):
            print(f"| {' | '.join(line)} |")
    draw(by_task)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
