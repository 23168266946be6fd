"""Claim on model scale, a question of two reviewers: extrapolation by depth, width and number of training steps."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.tables_and_figures import FIT_THRESHOLD, Rows, save_figure
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.few_tokens import sparse_parity_up_to
from lengthwise.experiments.reproductions.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run

# Pairs of number of layers and width; each head has 32 dimensions.
MODEL_SIZES = ((1, 32), (1, 64), (1, 128), (2, 64), (4, 64))
# Fractions of the recipe's training steps.
STEP_FRACTIONS = (0.25, 0.5, 1.0)
# Minimum exact match at which a test length counts toward the reach of a run.
EXACT_MATCH_THRESHOLD = 0.9
# Task, size and budget by label.
SETTINGS = {
    f"{name}, {size[0]} x {size[1]}, {budget:g} of the steps": (name, size, budget)
    for name in ("parity", "variables", "sparse parity")
    for size in MODEL_SIZES
    for budget in STEP_FRACTIONS
}
MARKERS = {0.25: "v", 0.5: "s", 1.0: "o"}


def _build_experiments() -> dict[str, Experiment]:
    parity_evaluation = EvaluationSettings(
        lengths=(20, 40, 200, 2000, 20_000), num_examples=(256, 256, 256, 64, 4), stop_at_zero=True
    )
    chain_evaluation = EvaluationSettings(
        lengths=(16, 32, 160, 1600), num_examples=(256, 256, 256, 32), stop_at_zero=True
    )
    bit_evaluation = EvaluationSettings(
        lengths=(50, 100, 200, 500),
        num_examples=(512,),
        variants=tuple(f"flagged-{num_bits}" for num_bits in (1, 2, 4, 6)),
    )
    base_experiments = {
        "parity": replace(recipe("parity"), evaluation=parity_evaluation),
        "variables": replace(recipe("variable_assignment"), evaluation=chain_evaluation),
        "sparse parity": replace(sparse_parity_up_to(6), evaluation=bit_evaluation),
    }
    return {
        label: _resize(base_experiments[name], *model_size, step_fraction)
        for label, (name, model_size, step_fraction) in SETTINGS.items()
    }


def _resize(experiment: Experiment, num_layers: int, d_model: int, step_fraction: float) -> Experiment:
    steps = round(step_fraction * experiment.training.steps)
    return replace(
        experiment,
        decoder=replace(experiment.decoder, num_layers=num_layers, d_model=d_model, num_heads=d_model // 32),
        training=replace(
            experiment.training, steps=steps, cooldown_steps=min(experiment.training.cooldown_steps, steps // 2)
        ),
    )


def _extract_reading(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return the number of weights, the training FLOPs, whether the run fits its training lengths, and its reach.

    Training uses six FLOPs per weight and token, without attention. The reach is a test length divided by the longest
    training length. This test length is the longest one up to which exact match is at least ``EXACT_MATCH_THRESHOLD``
    on every task variant.
    """
    experiment = run.experiment
    min_train_length, max_train_length = experiment.train_lengths
    num_weights = sum(weight.numel() for weight in run.decoder.parameters())
    rng = stream(experiment.seed, "tokens of a sequence")
    token_counts = [
        experiment.task.sample(length=length, size=1, rng=rng).tokens.shape[1]
        for length in range(min_train_length, max_train_length + 1)
    ]
    num_tokens = run.facts["steps"] * experiment.training.batch_size * sum(token_counts) / len(token_counts)
    lengths = sorted({row["length"] for row in rows})
    exact_match = {length: min(row["exact_match"] for row in rows if row["length"] == length) for length in lengths}
    first_failure = next((length for length in lengths if exact_match[length] < EXACT_MATCH_THRESHOLD), None)
    exact_lengths = [length for length in lengths if first_failure is None or length < first_failure]
    return {
        "weights": num_weights,
        "flops": 6 * num_weights * num_tokens,
        "fits": run.facts["fitted"] >= FIT_THRESHOLD,
        "reached": max(exact_lengths, default=0) / max_train_length,
    }


def _build_tables(rows: Rows, readings: Rows) -> list[Table]:
    return [table for task in _tasks(readings) for table in (_size_table(task, readings), _flops_table(task, readings))]


def _tasks(readings: Rows) -> list[str]:
    return list(dict.fromkeys(_settings_of(reading)[0] for reading in readings))


def _settings_of(reading: Mapping[str, Any]) -> tuple[str, tuple[int, int], float]:
    return SETTINGS[reading["row"]]


def _size_table(task: str, readings: Rows) -> Table:
    """Return a table of the reach of every seed, with a row per model size and a column per training budget."""
    body = []
    for num_layers, d_model in MODEL_SIZES:
        row_cells = [f"{num_layers} x {d_model}", "-"]
        for step_fraction in STEP_FRACTIONS:
            seed_readings = [
                reading for reading in readings if _settings_of(reading) == (task, (num_layers, d_model), step_fraction)
            ]
            reach_by_seed = ", ".join(_format_max_length(reading) for reading in seed_readings)
            flops = sum(reading["flops"] for reading in seed_readings) / max(len(seed_readings), 1)
            row_cells.append(f"{reach_by_seed}\n({flops:.1e} FLOPs)" if seed_readings else "-")
            row_cells[1] = f"{seed_readings[0]['weights']:,}" if seed_readings else row_cells[1]
        body.append(row_cells)
    title = f"{task}: reach in training lengths at exact match {EXACT_MATCH_THRESHOLD} or more, by seed"
    return (
        title,
        ["layers x width", "weights", *(f"{step_fraction:g} of the steps" for step_fraction in STEP_FRACTIONS)],
        body,
    )


def _format_max_length(reading: Mapping[str, Any]) -> str:
    return f"{reading['reached']:g}x" if reading["fits"] else f"{reading['reached']:g}x (does not fit)"


def _flops_table(task: str, readings: Rows) -> Table:
    """Return a table of the model sizes with the largest mean reach in each bin of training FLOPs.

    The upper end of a bin is four times its lower end.
    """
    task_readings = [reading for reading in readings if _settings_of(reading)[0] == task]
    body = []
    for flops_bin in sorted({_flops_bin(reading) for reading in task_readings}):
        bin_readings = [reading for reading in task_readings if _flops_bin(reading) == flops_bin]
        all_settings = dict.fromkeys(map(_settings_of, bin_readings))
        mean_reach = {
            settings_key: _mean_reach([reading for reading in bin_readings if _settings_of(reading) == settings_key])
            for settings_key in all_settings
        }
        largest_reach = max(mean_reach.values())
        best_sizes = [
            f"{model_size[0]} x {model_size[1]} ({step_fraction:g})"
            for (_, model_size, step_fraction), reach in mean_reach.items()
            if reach == largest_reach
        ]
        body.append(
            [
                f"{4.0**flops_bin:.1e} to {4.0 ** (flops_bin + 1):.1e}",
                str(len(all_settings)),
                ", ".join(best_sizes),
                f"{largest_reach:.3g}x",
            ]
        )
    title = f"{task}: size with the largest reach at equal training FLOPs (fraction of the steps)"
    return title, ["FLOPs", "sizes", "largest reach", "geometric mean"], body


def _flops_bin(reading: Mapping[str, Any]) -> int:
    return math.floor(math.log(reading["flops"], 4))


def _mean_reach(readings: Rows) -> float:
    """Return the geometric mean of the reach over runs; a reach of 0 counts as 0.1 to avoid the logarithm of 0."""
    return math.exp(sum(math.log(max(reading["reached"], 0.1)) for reading in readings) / len(readings))


def _draw_figure(rows: Rows, readings: Rows, folder: Path, title: str) -> Path:
    """Draw the reach of every run against its training FLOPs, with one panel per task."""
    # Importing matplotlib takes a second, and most commands draw no figure.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import NullFormatter  # noqa: PLC0415

    tasks = _tasks(readings)
    figure = Figure(figsize=(5.5 * len(tasks), 4.5), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for size_index, (num_layers, d_model) in enumerate(MODEL_SIZES):
            mean_points = []
            for step_fraction in STEP_FRACTIONS:
                seed_readings = [
                    reading
                    for reading in readings
                    if _settings_of(reading) == (task, (num_layers, d_model), step_fraction)
                ]
                if seed_readings:
                    mean_points.append(
                        (
                            sum(reading["flops"] for reading in seed_readings) / len(seed_readings),
                            _mean_reach(seed_readings),
                        )
                    )
                axes.plot(
                    [reading["flops"] for reading in seed_readings],
                    [max(reading["reached"], 0.1) for reading in seed_readings],
                    MARKERS[step_fraction],
                    color=f"C{size_index}",
                    alpha=0.4,
                )
            axes.plot(*zip(*mean_points, strict=True), "-", color=f"C{size_index}", label=f"{num_layers} x {d_model}")
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs", title=task)
        # Label only the powers of ten, because labels of minor ticks would overlap.
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"reach in training lengths, exact match {EXACT_MATCH_THRESHOLD} or more")
        axes.grid(alpha=0.3)
    for step_fraction, marker in MARKERS.items():
        axes.plot([], [], marker, color="gray", label=f"{step_fraction:g} of the steps, one point per seed")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, title="layers x width")
    figure.suptitle(title)
    return save_figure(figure, folder)


SCALE = Claim(
    name="scale",
    summary="extrapolation of PPC and sparse parity by depth, width and training budget, and at equal FLOPs",
    paper="a question of two reviewers",
    experiments=_build_experiments,
    laptop=SizePreset(
        num_seeds=1,
        labels=tuple(label for label, (name, _, budget) in SETTINGS.items() if name == "parity" and budget > 0.25),
        max_length=2000,
    ),
    full=SizePreset(num_seeds=3),
    read=_extract_reading,
    tables=_build_tables,
    draw=_draw_figure,
)
