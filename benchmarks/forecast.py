"""How well ``certify`` foretells trained transformers: what it says from short passes beside what is measured later.

Every row and seed is trained on short lengths, asked by ``certify_run``, and then measured at 2, 4 and 16 times the
longest trained length: the share of right answers, token by token, the end token left out. Rows are appended to
``results/forecast.jsonl``; what is there is not done again.

Beside the forecast stand four baselines, all of them for nine cases of ten: no change from the longest trained length;
the same with a slack that was chosen on the runs that the forecast's own constants were chosen on; the straight line
through accuracies at trained lengths; and "anything", from 0 to 1. The interval score (Gneiting and Raftery 2007) is
the width, and 20 times what a miss is off.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lengthwise.batch import to_batch
from lengthwise.encodings import KERPLELog, Rotary
from lengthwise.experiment import Experiment
from lengthwise.folder import append_rows, read_rows
from lengthwise.grading import grade
from lengthwise.intervals import student, wilson_interval
from lengthwise.provenance import provenance
from lengthwise.randomness import stream
from lengthwise.recipes import COMPARISONS, recipe
from lengthwise.run import Run, certify_run, train

RESULTS = Path(__file__).parent / "results" / "forecast.jsonl"
FIGURE = Path("docs/forecast.png")
TIMES = (2, 4, 16)
# Examples measured at each length: answers of one example are alike, so that their number counts.
EXAMPLES, FEW = 256, 4
LEVEL, Z, REACHED = 0.9, 1.644854, 0.9
# What "no change" has to allow for, chosen like the forecast's constants.
SLACK = 0.5
# Tasks of which other runs were looked at to choose constants.
SEEN = ("parity", "addition")
HELD = 1 << 15


def rows() -> dict[str, Experiment]:
    """Four tasks, two ways to read IDs each."""
    parity, addition = COMPARISONS["which_parity"](), recipe("addition_coupled")
    return {
        **{f"parity, {code}": parity[f"coupled/{code}"] for code in ("rotary", "t5")},
        "addition, rotary": addition,
        "addition, kerple_log": replace(addition, encoding=KERPLELog()),
        "sparse parity, nope": recipe("sparse_parity"),
        "sparse parity, rotary": replace(recipe("sparse_parity"), encoding=Rotary()),
        "recall, nope": recipe("recall"),
        "recall, rotary": replace(recipe("recall"), encoding=Rotary()),
    }


def measured(run: Run, length: int, examples: int) -> tuple[float, float, int]:
    """The share of right answers, the standard error of its mean over examples, and how many answers there were."""
    task, scheme, right, number = run.experiment.task, run.experiment.scheme, [], []
    end = task.vocabulary.index("end")
    tokens = task.sample(length=length, size=1, rng=stream(0)).tokens.shape[1]
    step = max(1, HELD // tokens)
    for first in range(0, examples, step):
        rng = stream(run.experiment.seed, "forecast measured", length, first)
        drawn = task.sample(length=length, size=min(step, examples - first), rng=rng)
        batch = to_batch(length, drawn, scheme.assign(drawn, rng, training=False))
        graded = grade(run.decoder, batch, end=end, decode="forced")
        start = int(batch.prompt_length.min())
        counted = graded.scored & (batch.tokens[:, start:] != end)
        right.append((graded.token_right & (graded.id_right | ~graded.id_scored) & counted).sum(dim=1))
        number.append(counted.sum(dim=1))
    sums, counts = torch.cat(right).double(), torch.cat(number).double()
    share = float(sums.sum() / counts.sum())
    spread = float((sums - share * counts).square().sum().sqrt() / counts.sum())
    return share, spread, int(counts.sum())


def straight_line(lengths: list[int], shares: list[float], length: int) -> tuple[float, float]:
    """The 90% interval of a line through accuracies at trained lengths, continued."""
    sizes, values = np.array(lengths, dtype=float), np.array(shares)
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    solution, *_ = np.linalg.lstsq(design, values)
    freedom = len(sizes) - 2
    residual = float(((values - design @ solution) ** 2).sum()) / freedom
    at = np.array([1.0, length])
    half = student(freedom, LEVEL) * np.sqrt(residual * (1 + at @ np.linalg.inv(design.T @ design) @ at))
    middle = float(at @ solution)
    return float(np.clip(middle - half, 0, 1)), float(np.clip(middle + half, 0, 1))


def one(name: str, experiment: Experiment, folder: Path) -> Iterator[dict[str, Any]]:
    """A row per length."""
    run = train(experiment, folder, resume=folder.exists(), device="cpu")
    assert run is not None
    run.decoder.eval()
    longest = experiment.train_lengths[1]
    started = time.perf_counter()
    certificate = certify_run(run, [times * longest for times in TIMES], seed=experiment.seed)
    certify_seconds = time.perf_counter() - started
    known = np.linspace(max(experiment.train_lengths[0], longest // 2), longest, 5).round().astype(int).tolist()
    shares = [measured(run, length, EXAMPLES)[0] for length in known]
    for times in TIMES:
        length = times * longest
        answers = measured(run, longest, 1)[2]
        started = time.perf_counter()
        share, spread, number = measured(run, length, EXAMPLES if answers <= FEW else max(32, EXAMPLES // times))
        yield {
            "row": name,
            "seed": experiment.seed,
            "times": times,
            "length": length,
            "measured": share,
            "standard_error": spread,
            "answers": number,
            "foretold": next((asdict(each) for each in certificate.forecasts if each.length == length), None),
            "refused": certificate.refused or certificate.beyond.get(length),
            "fidelity": asdict(certificate.fidelity),
            "needs": asdict(certificate.needs),
            "horizon": certificate.horizon,
            "limited_by": certificate.limited_by,
            "no_change": wilson_interval(round(shares[-1] * EXAMPLES), EXAMPLES, Z),
            "straight_line": straight_line(known, shares, length),
            "fitted": run.facts["fitted"],
            "steps": run.facts["steps"],
            "certify_seconds": round(certify_seconds, 1),
            "measure_seconds": round(time.perf_counter() - started, 1),
        }


def score(low: float, high: float, value: float) -> float:
    """The interval score; small is good."""
    return high - low + 2 / (1 - LEVEL) * (max(low - value, 0.0) + max(value - high, 0.0))


def _told(row: dict[str, Any]) -> tuple[float, float]:
    return row["foretold"]["low"], row["foretold"]["high"]


BASELINES: dict[str, Callable[[dict[str, Any]], tuple[float, float]]] = {
    "certify": _told,
    "no change": lambda row: (row["no_change"][0], row["no_change"][1]),
    "no change, with slack": lambda row: (max(0.0, row["no_change"][0] - SLACK), min(1.0, row["no_change"][1] + SLACK)),
    "straight line": lambda row: (row["straight_line"][0], row["straight_line"][1]),
    "anything": lambda _: (0.0, 1.0),
}


def held(row: dict[str, Any]) -> bool:
    """Whether the measured value is within the interval."""
    low, high = _told(row)
    return bool(low <= row["measured"] <= high)


def summary(found: list[dict[str, Any]], what: str) -> list[str]:
    """Lines of Markdown about some cells; the unit is a run, with the lengths it has among them."""
    answered = [row for row in found if row["foretold"] is not None]
    if not answered:
        return [f"{what}: none of {len(found)} cells answered"]
    widths = [high - low for low, high in map(_told, answered)]
    by_run: dict[tuple[str, int], list[bool]] = {}
    for row in answered:
        by_run.setdefault((row["row"], row["seed"]), []).append(held(row))
    shares = [float(np.mean(each)) for each in by_run.values()]
    scores = {
        name: np.mean([score(*interval(row), row["measured"]) for row in answered])
        for name, interval in BASELINES.items()
    }
    return [
        f"{what}: {len(answered)} of {len(found)} cells answered, median width {np.median(widths):.2f}; intervals that "
        f"hold: {np.mean(shares):.3f}, the mean over {len(shares)} runs, in {sum(map(all, by_run.values()))} of which "
        f"all do",
        f"{what}, mean interval score: " + ", ".join(f"{name} {value:.3f}" for name, value in scores.items()),
    ]


def report(found: list[dict[str, Any]]) -> list[str]:
    """Summaries: of all, of tasks whose other runs chose the constants and of the others, and where accuracy falls."""
    parts: dict[str, Callable[[dict[str, Any]], bool]] = {
        "all cells": lambda row: True,
        "parity and addition": lambda row: row["row"].split(",")[0] in SEEN,
        "sparse parity and recall": lambda row: row["row"].split(",")[0] not in SEEN,
        "cells measured below 0.9": lambda row: row["measured"] < REACHED,
    }
    return [line for what, within in parts.items() for line in summary([row for row in found if within(row)], what)]


def table(found: list[dict[str, Any]]) -> list[str]:
    """Every cell."""
    lines = ["| row | seed | length | foretold | interval | measured | |", "|---|---|---|---|---|---|---|"]
    for row in found:
        share = f"{row['measured']:.3f}"
        if row["foretold"] is None:
            parts = ["-", "-", share, f"not foretold: {row['refused']}"]
        else:
            low, high = _told(row)
            parts = [f"{row['foretold']['accuracy']:.3f}", f"{low:.2f} to {high:.2f}", share]
            parts.append("" if held(row) else "**missed**")
        lines.append(f"| {row['row']} | {row['seed']} | {row['length']:,} | {' | '.join(parts)} |")
    return lines


MARKERS = {2: "o", 4: "s", 16: "^"}
COLORS = ("#2471a3", "#c0392b")


def draw(axes: Axes, task: str, found: list[dict[str, Any]]) -> None:
    """One task: a point per run and length, its interval across; the diagonal is a forecast that came true."""
    axes.plot([0, 1], [0, 1], color="0.8", zorder=0)
    ways = sorted({row["row"].split(", ")[1] for row in found})
    for color, way in zip(COLORS, ways, strict=True):
        for times, marker in MARKERS.items():
            cells = [row for row in found if row["row"].endswith(way) and row["times"] == times and row["foretold"]]
            middle = np.array([row["foretold"]["accuracy"] for row in cells])
            low, high = np.array([_told(row) for row in cells]).T
            share = [row["measured"] for row in cells]
            # Rounding may leave an end of the interval behind the value.
            off = np.maximum([middle - low, high - middle], 0)
            label = f"{way}, {times} times"
            axes.errorbar(
                middle, share, xerr=off, fmt=marker, color=color, alpha=0.7, elinewidth=0.8, markersize=4, label=label
            )
    axes.set(title=task, xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
    axes.legend(fontsize=7, loc="upper left")


def plot(found: list[dict[str, Any]], path: Path) -> None:
    """Foretold against measured, a panel per task."""
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        by_task.setdefault(row["row"].split(", ")[0], []).append(row)
    figure = Figure(figsize=(9, 9), layout="constrained")
    grid = figure.subplots(2, 2, squeeze=False)
    for axes, (task, cells) in zip(grid.flat, by_task.items(), strict=True):
        draw(axes, task, cells)
    figure.supxlabel("accuracy foretold from short passes, with its interval")
    figure.supylabel("accuracy measured at 2, 4 and 16 times the longest trained length")
    figure.savefig(path, dpi=110)
    print(f"wrote {path}")


def main() -> None:
    """Train, ask and measure what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="7100,7101,7102,7103,7104")
    parser.add_argument("--rows", default=None, help="Labels, separated by semicolons; all by default.")
    parser.add_argument("--out", type=Path, default=Path("runs/forecast"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="Print what is there and do nothing.")
    parser.add_argument("--figure", action="store_true", help=f"Draw what is there into {FIGURE} and do nothing.")
    asked = parser.parse_args()
    there = read_rows(asked.results) if asked.results.exists() else []
    if asked.figure:
        plot(there, FIGURE)
        return
    if asked.table:
        print("\n".join([*report(there), "", *table(there)]))
        return
    torch.set_num_threads(1)
    known = rows()
    done = {(row["row"], row["seed"]) for row in there}
    for name in known if asked.rows is None else asked.rows.split(";"):
        for seed in map(int, asked.seeds.split(",")):
            if (name, seed) not in done:
                folder = asked.out / name.replace(", ", "-").replace(" ", "-") / f"seed-{seed}"
                new = list(one(name, replace(known[name], seed=seed), folder))
                append_rows(asked.results, [{**row, **provenance()} for row in new])
                print(name, seed, [(row["measured"], row["foretold"] and row["foretold"]["accuracy"]) for row in new])


if __name__ == "__main__":
    main()
