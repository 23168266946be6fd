"""Which scheme and encoding extrapolates: tables and a figure from the comparisons which_parity, -copy and -addition.

``python benchmarks/which_table.py runs/which_parity runs/which_copy runs/which_addition`` prints a table per task and
draws ``docs/which.png``. A cell holds the exact match at 1, 2, 5, 10 and 100 times the training length over all
seeds; ``·`` was not measured, because no seed had an exact match at the length before. Of several results folders of
one task the later ones take the place of the earlier, cell by cell: those that were given more steps.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lengthwise.evaluation.tables_and_figures import FIT_THRESHOLD, pool_seeds
from lengthwise.experiments.recipes.which import ENCODING_NAMES, FACTORS, SCHEME_NAMES, STEPS
from lengthwise.experiments.run_folder import read_rows

Rows = Sequence[Mapping[str, Any]]
# What does not even reach this at 1x says nothing about longer lengths.
NEARLY = 0.9
FIGURE = Path("docs/which.png")


def shares(runs: Rows) -> list[float | None]:
    """Exact match at each factor over all seeds; a seed that stopped before counts as none, None where all did."""
    found: list[float | None] = []
    seeds = {row["seed"] for row in runs}
    for factor in FACTORS:
        at = [row for row in runs if row["length"] == factor * row["train_lengths"][1]]
        found.append(pool_seeds(at)[0] * len(at) / len(seeds) if at else None)
    return found


def verdict(runs: Rows) -> str:
    """Why a cell has no numbers; empty when it has."""
    if not runs:
        return "IDs not read"
    best = max(row["fitted"] for row in runs)
    steps = max(row["steps"] for row in runs)
    return "" if best >= NEARLY else f"never fits ({best:.2f} after {steps:,})"


def cell(runs: Rows) -> str:
    """Five numbers, and what does not fit."""
    if why := verdict(runs):
        return why
    fits = {row["seed"]: row["fitted"] for row in runs}
    fitted = sum(value >= FIT_THRESHOLD for value in fits.values())
    written = " ".join("·" if share is None else f"{share:.2f}".removeprefix("0") for share in shares(runs))
    written = written.replace("1.00", "1").replace(".00", "0")
    steps = max(row["steps"] for row in runs)
    if fitted < len(fits):
        return f"{written} ({fitted}/{len(fits)} fit in {steps:,})"
    return f"{written} (in {steps:,})" if steps > STEPS else written


def table(rows: Rows) -> list[list[str]]:
    """Encodings down, schemes across."""
    body = []
    for encoding in ENCODING_NAMES:
        by_scheme = [[row for row in rows if row["row"] == f"{scheme}/{encoding}"] for scheme in SCHEME_NAMES]
        if any(by_scheme):
            body.append([encoding, *map(cell, by_scheme)])
    return body


def draw(by_task: Mapping[str, Rows]) -> None:
    """A panel per task: a row per encoding, five columns per scheme."""
    figure = Figure(figsize=(13, 1.2 + 3.1 * len(by_task)), layout="constrained")
    for axes, (task, rows) in zip(np.atleast_1d(figure.subplots(len(by_task), 1)), by_task.items(), strict=True):
        encodings = [name for name in ENCODING_NAMES if any(row["row"].endswith(f"/{name}") for row in rows)]
        values = np.full((len(encodings), len(SCHEME_NAMES) * len(FACTORS)), np.nan)
        for line, encoding in enumerate(encodings):
            for place, scheme in enumerate(SCHEME_NAMES):
                runs = [row for row in rows if row["row"] == f"{scheme}/{encoding}"]
                if why := verdict(runs):
                    middle = place * len(FACTORS) + (len(FACTORS) - 1) / 2
                    axes.text(middle, line, why.partition(" (")[0], ha="center", va="center", fontsize=7, color="0.35")
                else:
                    part = slice(place * len(FACTORS), (place + 1) * len(FACTORS))
                    values[line, part] = [0.0 if share is None else share for share in shares(runs)]
        axes.set_facecolor("0.9")
        image = axes.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        axes.set_yticks(range(len(encodings)), encodings)
        axes.set_xticks(range(values.shape[1]), [f"{factor}x" for factor in FACTORS] * len(SCHEME_NAMES), fontsize=7)
        for place, scheme in enumerate(SCHEME_NAMES):
            middle = place * len(FACTORS) + (len(FACTORS) - 1) / 2
            axes.text(middle, 1.02, scheme, ha="center", fontsize=9, transform=axes.get_xaxis_transform())
            axes.axvline((place + 1) * len(FACTORS) - 0.5, color="white", linewidth=3)
        axes.set_title(task, pad=16, loc="left")
    figure.colorbar(image, ax=figure.axes, label="exact match", shrink=0.6)
    figure.savefig(FIGURE, dpi=130)


def main(folders: list[Path]) -> None:
    """Print every task's table, draw all."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for folder in folders:
        rows = read_rows(folder if folder.suffix == ".jsonl" else folder / "results.jsonl")
        known = by_task.setdefault(rows[0]["task"], [])
        again = {(row["row"], row["seed"]) for row in rows}
        known[:] = [row for row in known if (row["row"], row["seed"]) not in again] + rows
    for task, rows in by_task.items():
        print(f"\n### {task}\n")
        for line in (["encoding", *SCHEME_NAMES], ["---"] * (1 + len(SCHEME_NAMES)), *table(rows)):
            print(f"| {' | '.join(line)} |")
    draw(by_task)


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
