"""Claim on model scale, a question of two reviewers: extrapolation by depth, width and number of training steps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from claims.longest_exact import EXACT_MATCH_THRESHOLD

from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.figure_layout import (
    LINE_COLORS,
    UNFIT_COLOR,
    LineLabel,
    count_seeds,
    label_lines,
    make_panels,
    save_figure,
)
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, longest_exact_length
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.recipe_table import sparse_parity_up_to
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run

# Pairs of number of layers and width; each head has 32 dimensions.
MODEL_SIZES = ((1, 32), (1, 64), (1, 128), (2, 64), (4, 64))
# Fractions of the recipe's training steps.
STEP_FRACTIONS = (0.25, 0.5, 1.0)
# Task, size and budget by label.
SETTINGS = {
    f"{name}, {size[0]} x {size[1]}, {budget:g} of the steps": (name, size, budget)
    for name in ("parity", "variables", "sparse parity")
    for size in MODEL_SIZES
    for budget in STEP_FRACTIONS
}
MARKERS = {0.25: "v", 0.5: "s", 1.0: "o"}
MARKER_NAMES = ("triangle", "square", "circle")
# Height of a reach of 0 on the logarithmic axis, with the tick label 0.
ZERO_HEIGHT = 0.1


def _build_experiments() -> dict[str, Experiment]:
    parity = EvaluationSettings(
        lengths=(20, 40, 200, 2000, 20_000), num_examples=(256, 256, 256, 64, 4), stop_at_zero=True
    )
    chains = EvaluationSettings(lengths=(16, 32, 160, 1600), num_examples=(256, 256, 256, 32), stop_at_zero=True)
    variants = tuple(f"flagged-{num_bits}" for num_bits in (1, 2, 4, 6))
    bits = EvaluationSettings(lengths=(50, 100, 200, 500), num_examples=(512,), variants=variants)
    experiments = {
        "parity": replace(recipe("parity"), evaluation=parity),
        "variables": replace(recipe("variable_assignment_by_hand"), evaluation=chains),
        "sparse parity": replace(sparse_parity_up_to(6), evaluation=bits),
    }
    return {label: _resize(experiments[name], *size, fraction) for label, (name, size, fraction) in SETTINGS.items()}


def _resize(experiment: Experiment, num_layers: int, d_model: int, fraction: float) -> Experiment:
    training, steps = experiment.training, round(fraction * experiment.training.steps)
    return replace(
        experiment,
        decoder=replace(experiment.decoder, num_layers=num_layers, d_model=d_model, num_heads=d_model // 32),
        training=replace(training, steps=steps, cooldown_steps=min(training.cooldown_steps, steps // 2)),
    )


def _measure_run(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return the number of weights, the training FLOPs, whether the run fits its training lengths, and its reach.

    Training uses six FLOPs per weight and token, without attention. The reach is a test length divided by the longest
    training length. This test length is the longest one up to which exact match is at least ``EXACT_MATCH_THRESHOLD``
    on every task variant.
    """
    experiment = run.experiment
    shortest, longest = experiment.train_lengths
    num_weights = sum(weight.numel() for weight in run.decoder.parameters())
    rng = random_stream(experiment.seed, "tokens of a sequence")
    examples = [experiment.task.sample(length=length, size=1, rng=rng) for length in range(shortest, longest + 1)]
    token_counts = [example.tokens.shape[1] for example in examples]
    num_tokens = run.facts["steps"] * experiment.training.batch_size * sum(token_counts) / len(token_counts)
    return {
        "weights": num_weights,
        "flops": 6 * num_weights * num_tokens,
        "fits": run.facts["fitted"] >= FIT_THRESHOLD,
        "longest_exact": longest_exact_length(rows, EXACT_MATCH_THRESHOLD) / longest,
    }


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    return [
        table
        for task in _tasks(measurements)
        for table in (_size_table(task, measurements), _flops_table(task, measurements))
    ]


def _tasks(measurements: Rows) -> list[str]:
    return list(dict.fromkeys(_settings_of(measurement)[0] for measurement in measurements))


def _settings_of(measurement: Mapping[str, Any]) -> tuple[str, tuple[int, int], float]:
    return SETTINGS[measurement["row"]]


def _size_table(task: str, measurements: Rows) -> Table:
    """Return a table of the reach of every seed, with a row per model size and a column per training budget."""
    body = []
    for size in MODEL_SIZES:
        row_cells = [f"{size[0]} x {size[1]}", "-"]
        for fraction in STEP_FRACTIONS:
            seed_measurements = [
                measurement for measurement in measurements if _settings_of(measurement) == (task, size, fraction)
            ]
            longest_exact_by_seed = ", ".join(_format_max_length(measurement) for measurement in seed_measurements)
            flops = sum(measurement["flops"] for measurement in seed_measurements) / max(len(seed_measurements), 1)
            row_cells.append(f"{longest_exact_by_seed}\n({flops:.1e} FLOPs)" if seed_measurements else "-")
            row_cells[1] = f"{seed_measurements[0]['weights']:,}" if seed_measurements else row_cells[1]
        body.append(row_cells)
    title = f"{task}: longest exact length in training lengths, at exact match {EXACT_MATCH_THRESHOLD} or more, by seed"
    budgets = [f"{fraction:g} of the steps" for fraction in STEP_FRACTIONS]
    return title, ["layers x width", "weights", *budgets], body


def _format_max_length(measurement: Mapping[str, Any]) -> str:
    return (
        f"{measurement['longest_exact']:g}x"
        if measurement["fits"]
        else f"{measurement['longest_exact']:g}x (does not fit)"
    )


def _flops_table(task: str, measurements: Rows) -> Table:
    """Return a table of the sizes with the largest mean reach, by training FLOPs in bins of a factor of four."""
    task_measurements = [measurement for measurement in measurements if _settings_of(measurement)[0] == task]
    body = []
    for flops_bin in sorted({_flops_bin(measurement) for measurement in task_measurements}):
        bin_measurements = [measurement for measurement in task_measurements if _flops_bin(measurement) == flops_bin]
        mean_longest_exact = {
            settings: _mean_longest_exact(
                [measurement for measurement in bin_measurements if _settings_of(measurement) == settings]
            )
            for settings in dict.fromkeys(map(_settings_of, bin_measurements))
        }
        largest = max(
            (longest_exact for longest_exact in mean_longest_exact.values() if longest_exact is not None), default=None
        )
        best = [
            settings[1:]
            for settings, longest_exact in mean_longest_exact.items()
            if longest_exact is not None and longest_exact == largest
        ]
        best_sizes = ", ".join(f"{size[0]} x {size[1]} ({fraction:g})" for size, fraction in best)
        flops_range = f"{4.0**flops_bin:.1e} to {4.0 ** (flops_bin + 1):.1e}"
        cells = ["none fits on all seeds", "-"] if largest is None else [best_sizes, f"{largest:.3g}x"]
        body.append([flops_range, str(len(mean_longest_exact)), *cells])
    title = f"{task}: size with the largest reach at equal training FLOPs (fraction of the steps)"
    return title, ["FLOPs", "sizes", "largest reach", "geometric mean"], body


def _flops_bin(measurement: Mapping[str, Any]) -> int:
    return math.floor(math.log(measurement["flops"], 4))


def _mean_longest_exact(measurements: Rows) -> float | None:
    """Return the geometric mean of the reach over runs, 0 if one is 0; None if a run does not fit."""
    if not all(measurement["fits"] for measurement in measurements):
        return None
    return float(math.prod(measurement["longest_exact"] for measurement in measurements) ** (1 / len(measurements)))


def _draw_figure(rows: Rows, measurements: Rows, folder: Path, title: str) -> Path:
    """Draw the reach of every run against its training FLOPs, with one panel per task and one line per size.

    A budget with a run that does not fit has no mean, so the line of its size is interrupted there.
    """
    by_task: dict[str, dict[tuple[int, int], list[Rows]]] = {task: {} for task in _tasks(measurements)}
    for task, by_size in by_task.items():
        for size in MODEL_SIZES:
            budgets = [
                [measurement for measurement in measurements if _settings_of(measurement) == (task, size, fraction)]
                for fraction in STEP_FRACTIONS
            ]
            if any(budgets):
                by_size[size] = [budget for budget in budgets if budget]
    num_seeds = {task: [len(runs) for sizes in by_size.values() for runs in sizes] for task, by_size in by_task.items()}
    titles = [f"{title}: {task}, {count_seeds(num_seeds[task])}" for task in by_task]
    markers = ", ".join(f"{name} {fraction:g}" for fraction, name in zip(STEP_FRACTIONS, MARKER_NAMES, strict=True))
    caption = (
        f"Labels: layers x width. Points: single runs by fraction of the training steps ({markers}). Lines: geometric "
        "mean over seeds, where all seeds fit. Gray points: runs that did not fit, which say nothing about longer "
        f"lengths. Reach: longest test length with exact match {EXACT_MATCH_THRESHOLD} or more, in training lengths."
    )
    labels = [[_size_label(size, _fits(budgets)) for size, budgets in by_size.items()] for by_size in by_task.values()]
    figure, panels = make_panels(titles, labels, caption)
    for axes, by_size in zip(panels, by_task.values(), strict=True):
        _draw_task(axes, by_size)
    return save_figure(figure, folder)


def _draw_task(axes: Any, by_size: Mapping[tuple[int, int], list[Rows]]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator  # noqa: PLC0415

    labels = []
    for size, budgets in by_size.items():
        color = LINE_COLORS[MODEL_SIZES.index(size)]
        mean_flops = [sum(measurement["flops"] for measurement in budget) / len(budget) for budget in budgets]
        means = [_mean_longest_exact(budget) for budget in budgets]
        heights = [math.nan if mean is None else max(mean, ZERO_HEIGHT) for mean in means]
        axes.plot(mean_flops, heights, "-", color=color)
        for measurement in (measurement for budget in budgets for measurement in budget):
            marker, height = MARKERS[_settings_of(measurement)[2]], max(measurement["longest_exact"], ZERO_HEIGHT)
            point_color = color if measurement["fits"] else UNFIT_COLOR
            axes.plot(measurement["flops"], height, marker, color=point_color, alpha=0.4)
        fits = _fits(budgets)
        # Without a mean, the label is at the best run of the largest budget.
        best = max(measurement["longest_exact"] for measurement in budgets[-1])
        end = max(best, ZERO_HEIGHT) if means[-1] is None else heights[-1]
        labels.append(LineLabel(text=_size_label(size, fits), color=color if fits else UNFIT_COLOR, value=end))
    axes.set(xscale="log", yscale="log", xlabel="training FLOPs", ylabel="reach in training lengths")
    # Label only the powers of ten, because labels of minor ticks would overlap.
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(
        FuncFormatter(lambda longest_exact, _: "0" if longest_exact == ZERO_HEIGHT else f"{longest_exact:,g}")
    )
    axes.yaxis.set_minor_locator(NullLocator())
    label_lines(axes, labels)


def _fits(budgets: Sequence[Rows]) -> bool:
    """Return True if a run of any budget fits its training lengths."""
    return any(measurement["fits"] for budget in budgets for measurement in budget)


def _size_label(size: tuple[int, int], fits: bool) -> str:
    return f"{size[0]} x {size[1]}" + ("" if fits else " (did not fit)")


CLAIM = Claim(
    summary="extrapolation of PPC and sparse parity by depth, width and training budget, and at equal FLOPs",
    paper="a question of two reviewers",
    experiments=_build_experiments,
    laptop=SizePreset(
        num_seeds=1,
        labels=tuple(label for label, (name, _, budget) in SETTINGS.items() if name == "parity" and budget > 0.25),
        max_length=2000,
    ),
    full=SizePreset(num_seeds=3),
    measure=_measure_run,
    tables=_build_tables,
    draw=_draw_figure,
)
