"""Claim on the minimax objective: training on the worst length instead of the average, and how far a model reaches."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from claims.longest_exact import EXACT_MATCH_THRESHOLD

from lengthwise.core.confidence_intervals import clustered_interval
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.figure_layout import (
    LINE_COLORS,
    UNFIT_COLOR,
    LineLabel,
    count_seeds,
    label_lines,
    make_panels,
    save_figure,
    set_logarithmic_values,
)
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, longest_exact_length
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.comparisons import demo
from lengthwise.experiments.recipes.tuned_encodings import PARITY_ENCODINGS, compare_ppc_with_encodings
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_evaluation import iter_result_rows

# 0 is the average; with 1000, a length with a loss 0.01 above the others has nearly all the weight.
TILTS = (0.0, 10.0, 1000.0)
TRAIN_LENGTHS = (1, 10)
# Fewer steps than in the recipes, so that the longest test does not limit PPC.
PPC_STEPS = 800
# A strong tilt needs more steps to fit (README.md).
LONG_STEPS = 4500
EVALUATION = EvaluationSettings(
    lengths=(10, 12, 14, 16, 18, 20, 22, 25, 30, 40, 60, 100, 200, 500, 1000, 2000),
    num_examples=(*[512] * 9, *[256] * 3, 128, 64, 32, 16),
    stop_at_zero=True,
)
# Number of examples of each training length whose loss is measured.
NUM_LOSS_EXAMPLES = 256


def _build_experiments() -> dict[str, Experiment]:
    """Return copying with PPC and ALiBi (in two budgets), and parity with PPC and rotary, each with every tilt.

    Every step has examples of all training lengths, so that the worst length of a step is the worst of all.
    """
    copying = demo()
    parity_experiments = compare_ppc_with_encodings(recipe("parity"), {"rotary": PARITY_ENCODINGS["rotary"]})
    methods = {
        "copy, PPC": _with_steps(copying["discovered (PPC)"], PPC_STEPS),
        "copy, ALiBi": copying["ALiBi"],
        f"copy, ALiBi, {LONG_STEPS:,} steps": _with_steps(copying["ALiBi"], LONG_STEPS),
        "parity, PPC": _with_steps(parity_experiments["predicted (PPC)"], PPC_STEPS),
        "parity, rotary": parity_experiments["rotary"],
    }
    experiments = {}
    for method, base in methods.items():
        for tilt in TILTS:
            training = replace(base.training, lengths_per_batch=TRAIN_LENGTHS[1], length_tilt=tilt)
            experiments[_label(method, tilt)] = replace(
                base, training=training, train_lengths=TRAIN_LENGTHS, evaluation=EVALUATION
            )
    return experiments


def _with_steps(experiment: Experiment, steps: int) -> Experiment:
    return replace(experiment, training=replace(experiment.training, steps=steps))


def _label(method: str, tilt: float) -> str:
    return f"{method}, tilt {tilt:g}"


def _measure_run(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return the tilt, the fit, the reach, and the mean and the largest token loss of the training lengths."""
    first, last = run.experiment.train_lengths
    settings = EvaluationSettings(lengths=tuple(range(first, last + 1)), num_examples=(NUM_LOSS_EXAMPLES,))
    losses = [row["answer_loss"] for row in iter_result_rows(run, settings)]
    return {
        "tilt": run.experiment.training.length_tilt,
        "fits": run.facts["fitted"] >= FIT_THRESHOLD,
        "longest_exact": longest_exact_length(rows, EXACT_MATCH_THRESHOLD),
        "mean_loss": float(np.mean(losses)),
        "worst_loss": max(losses),
        "worst_length": first + int(np.argmax(losses)),
    }


def _method_of(measurement: Mapping[str, Any]) -> str:
    return str(measurement["row"]).rpartition(", ")[0]


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    """Return the reach and the losses of every seed, and the paired comparison of each tilt with the average."""
    longest_exact, losses = [], []
    for method in dict.fromkeys(map(_method_of, measurements)):
        average = _select(measurements, method, TILTS[0])
        for tilt in TILTS:
            tilted = _select(measurements, method, tilt)
            if not tilted:
                continue
            label = _label(method, tilt)
            longest_exact.append(
                [label, ", ".join(map(_format_longest_exact, tilted.values())), *_compare(tilted, average)]
            )
            cells = [
                ", ".join(f"{measurement[name]:.2g}" for measurement in tilted.values())
                for name in ("mean_loss", "worst_loss")
            ]
            worst_lengths = ", ".join(str(measurement["worst_length"]) for measurement in tilted.values())
            losses.append([label, *cells, worst_lengths])
    title = f"longest length with exact match {EXACT_MATCH_THRESHOLD} or more, by seed"
    longest_exact_header = [
        "row",
        "longest exact",
        "ratio to tilt 0, geometric mean [95% interval]",
        "does it reach further?",
    ]
    loss_header = ["row", "mean over lengths", "worst length", "which length"]
    return [
        (title, longest_exact_header, longest_exact),
        ("token loss at the training lengths in nats, by seed", loss_header, losses),
    ]


def _select(measurements: Rows, method: str, tilt: float) -> dict[int, Mapping[str, Any]]:
    """Return the measurements of a row by seed."""
    return {
        measurement["seed"]: measurement for measurement in measurements if measurement["row"] == _label(method, tilt)
    }


def _format_longest_exact(measurement: Mapping[str, Any]) -> str:
    return f"{measurement['longest_exact']:,}" + ("" if measurement["fits"] else " (does not fit)")


def _compare(tilted: Mapping[int, Mapping[str, Any]], average: Mapping[int, Mapping[str, Any]]) -> tuple[str, str]:
    """Return the ratio of the reach to that of the average over pairs of one seed, with its interval, and a verdict.

    A run that does not reach its longest training length counts with a reach of 1.
    """
    seeds = [seed for seed in tilted if seed in average]
    if not seeds or tilted == average:
        return "-", "-"
    differences = np.array([math.log(_longest_exact(tilted[seed]) / _longest_exact(average[seed])) for seed in seeds])
    ratio = f"{math.exp(differences.mean()):.2f}"
    low, high = clustered_interval(differences, np.ones(len(seeds), dtype=np.int64))
    if low is None or high is None:
        return ratio, "cannot be told from one seed"
    if low == high == 0:
        verdict = "no, equal on every seed"
    else:
        verdict = "yes" if low > 0 else "no, less far" if high < 0 else "cannot be told"
    return f"{ratio} [{math.exp(low):.2f}, {math.exp(high):.2f}]", verdict


def _longest_exact(measurement: Mapping[str, Any]) -> int:
    return max(1, int(measurement["longest_exact"]))


def _draw_figure(rows: Rows, measurements: Rows, folder: Path, title: str) -> Path:
    """Draw the reach of each run against the tilt, with a panel per task and a line through the worst seeds."""
    methods = list(dict.fromkeys(map(_method_of, measurements)))
    panels: dict[str, list[str]] = {}
    for method in methods:
        panels.setdefault(method.split(", ")[0], []).append(method)
    counts = [len(_select(measurements, method, tilt)) for method in methods for tilt in TILTS]
    caption = (
        f"Points: single runs. Lines: worst seed. Test length: the longest with exact match {EXACT_MATCH_THRESHOLD} or "
        "more; 0 is drawn at 1. Gray points: runs that did not fit. Tilt 0: average over lengths."
    )
    seeds = count_seeds([count for count in counts if count])
    names = [[method.partition(", ")[2] for method in panel] for panel in panels.values()]
    figure, all_axes = make_panels([f"{title}: {task}, {seeds}" for task in panels], names, caption)
    for axes, panel in zip(all_axes, panels.values(), strict=True):
        labels = []
        for color, method in zip(LINE_COLORS, panel, strict=False):
            longest_exact = {index: _select(measurements, method, tilt).values() for index, tilt in enumerate(TILTS)}
            points = {index: runs for index, runs in longest_exact.items() if runs}
            worst = [min(map(_longest_exact, runs)) for runs in points.values()]
            axes.plot(list(points), worst, "-", color=color)
            for index, runs in points.items():
                for run in runs:
                    axes.plot(index, _longest_exact(run), "o", color=color if run["fits"] else UNFIT_COLOR, alpha=0.4)
            labels.append(LineLabel(text=method.partition(", ")[2], color=color, value=float(worst[-1])))
        axes.set_xticks(range(len(TILTS)), [f"{tilt:g}" for tilt in TILTS])
        axes.set_xlim(-0.2, len(TILTS) - 0.8)
        axes.set_xlabel("tilt toward the worst length")
        set_logarithmic_values(axes, "test length reached")
        label_lines(axes, labels)
    return save_figure(figure, folder)


CLAIM = Claim(
    summary="training on the worst length against the average: reach of PPC and the best common encodings",
    paper="review of Theorem 4.3; tilted losses of Li et al. 2021 (arXiv 2007.01162)",
    experiments=_build_experiments,
    laptop=SizePreset(
        num_seeds=1,
        labels=tuple(
            _label(method, tilt)
            for method in ("copy, PPC", "copy, ALiBi", "parity, PPC", "parity, rotary")
            for tilt in (TILTS[0], TILTS[-1])
        ),
    ),
    full=SizePreset(num_seeds=8),
    measure=_measure_run,
    tables=_build_tables,
    draw=_draw_figure,
)
