"""Claim on the longest training length and on training beyond fitting: how far a model of copying then reaches."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from claims.longest_exact import EXACT_MATCH_THRESHOLD, format_longest_exact, measure_longest_exact

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.figure_layout import (
    LINE_COLORS,
    LineLabel,
    count_seeds,
    label_lines,
    make_panels,
    save_figure,
    set_logarithmic_values,
)
from lengthwise.evaluation.result_rows import Rows
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.comparisons import demo
from lengthwise.experiments.reproduction import Claim, SizePreset, Table

# Longest training lengths; the comparison ``demo`` has 10.
TRAIN_LENGTHS = (5, 10, 20, 40)
# Test lengths in training lengths, and the number of examples at each.
MULTIPLES = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 100.0)
NUM_EXAMPLES = (512, 512, 512, 512, 256, 256, 64, 16)
# Steps after which training ends without fitting, in steps of the demo; and steps of training beyond fitting.
MAX_STEPS, MORE_STEPS = 3, 4
BEYOND = f"{MORE_STEPS} times the steps"
# PPC, and the common encoding that reaches furthest in the demo.
LAPTOP_METHODS = ("discovered (PPC)", "ALiBi")


def _build_experiments() -> dict[str, Experiment]:
    """Return the methods of the demo, trained until they fit 5, 10, 20 and 40 symbols, and for longer on 10."""
    experiments = {}
    for method, base in demo().items():
        training = base.training
        for length in TRAIN_LENGTHS:
            steps = replace(
                training, steps=MAX_STEPS * training.steps, fit_every=100, cooldown_steps=training.steps // 2
            )
            experiments[f"{method}, up to {length}"] = _with_length(replace(base, training=steps), length)
        longer = replace(base, training=replace(training, steps=MORE_STEPS * training.steps))
        experiments[f"{method}, {BEYOND}"] = _with_length(longer, base.train_lengths[1])
    return experiments


def _with_length(experiment: Experiment, length: int) -> Experiment:
    lengths = tuple(round(multiple * length) for multiple in MULTIPLES)
    evaluation = EvaluationSettings(lengths=lengths, num_examples=NUM_EXAMPLES, stop_at_zero=True)
    return replace(experiment, train_lengths=(1, length), evaluation=evaluation)


def _method_of(measurement: Mapping[str, Any]) -> str:
    return str(measurement["row"]).rpartition(", ")[0]


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    """Return the reach of every seed by method, with a column per training length, and one for more steps."""
    columns = [f"up to {length}" for length in TRAIN_LENGTHS] + [BEYOND]
    body = []
    for method in dict.fromkeys(map(_method_of, measurements)):
        cells = [
            ", ".join(map(format_longest_exact, _select(measurements, f"{method}, {column}"))) or "-"
            for column in columns
        ]
        body.append([method, *cells])
    title = f"longest exact length in training lengths, at exact match {EXACT_MATCH_THRESHOLD} or more, by seed"
    return [(title, ["method", *columns], body)]


def _select(measurements: Rows, label: str) -> Rows:
    return [measurement for measurement in measurements if measurement["row"] == label]


def _draw_figure(rows: Rows, measurements: Rows, folder: Path, title: str) -> Path:
    """Draw the longest test length that each run reaches against its longest training length, a line per method."""
    until_fit = [measurement for measurement in measurements if not measurement["row"].endswith(BEYOND)]
    methods = list(dict.fromkeys(map(_method_of, until_fit)))
    counts = [
        len(_select(until_fit, label)) for label in dict.fromkeys(measurement["row"] for measurement in until_fit)
    ]
    caption = (
        f"Points: single runs. Lines: worst seed. Test length: the longest with exact match {EXACT_MATCH_THRESHOLD} or "
        f"more; tests end at {MULTIPLES[-1]:g} times the training length."
    )
    figure, (axes,) = make_panels([f"{title}: copying, {count_seeds(counts)}"], [methods], caption)
    labels = []
    for color, method in zip(LINE_COLORS, methods, strict=False):
        runs = [measurement for measurement in until_fit if _method_of(measurement) == method]
        lengths = sorted({measurement["trained_on"] for measurement in runs})
        points = [[run["longest_exact"] * length for run in runs if run["trained_on"] == length] for length in lengths]
        worst = [max(min(longest_exact), 1.0) for longest_exact in points]
        axes.plot(lengths, worst, "-", color=color)
        for length, longest_exact in zip(lengths, points, strict=True):
            axes.plot(
                [length] * len(longest_exact), [max(value, 1.0) for value in longest_exact], "o", color=color, alpha=0.4
            )
        labels.append(LineLabel(text=method, color=color, value=worst[-1]))
    axes.set(xscale="log", xlabel="longest training length")
    axes.set_xticks(TRAIN_LENGTHS, list(map(str, TRAIN_LENGTHS)))
    axes.minorticks_off()
    set_logarithmic_values(axes, "test length reached")
    label_lines(axes, labels)
    return save_figure(figure, folder)


CLAIM = Claim(
    summary="reach of PPC and three common encodings on copying, by longest training length, and beyond fitting",
    paper="a question of a reviewer",
    experiments=_build_experiments,
    laptop=SizePreset(
        num_seeds=1,
        labels=tuple(f"{method}, up to {length}" for method in LAPTOP_METHODS for length in TRAIN_LENGTHS[:-1]),
    ),
    full=SizePreset(num_seeds=3),
    measure=measure_longest_exact,
    tables=_build_tables,
    draw=_draw_figure,
)
