"""Claim on model scale (a question of two reviewers): extrapolation by depth, width and training budget."""

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

# Layers and width; each head has 32 dimensions.
SIZES = ((1, 32), (1, 64), (1, 128), (2, 64), (4, 64))
# Fractions of the recipe's training steps.
BUDGETS = (0.25, 0.5, 1.0)
# Smallest exact match at a length that counts as reached.
THRESHOLD = 0.9
# Task, size and budget by label.
CELLS = {
    f"{name}, {size[0]} x {size[1]}, {budget:g} of the steps": (name, size, budget)
    for name in ("parity", "variables", "sparse parity")
    for size in SIZES
    for budget in BUDGETS
}
MARKERS = {0.25: "v", 0.5: "s", 1.0: "o"}


def _experiments() -> dict[str, Experiment]:
    parity = EvaluationSettings(
        lengths=(20, 40, 200, 2000, 20_000), num_examples=(256, 256, 256, 64, 4), stop_at_zero=True
    )
    chains = EvaluationSettings(lengths=(16, 32, 160, 1600), num_examples=(256, 256, 256, 32), stop_at_zero=True)
    bits = EvaluationSettings(
        lengths=(50, 100, 200, 500), num_examples=(512,), variants=tuple(f"flagged-{number}" for number in (1, 2, 4, 6))
    )
    bases = {
        "parity": replace(recipe("parity"), evaluation=parity),
        "variables": replace(recipe("variable_assignment"), evaluation=chains),
        "sparse parity": replace(sparse_parity_up_to(6), evaluation=bits),
    }
    return {label: _sized(bases[name], *size, budget) for label, (name, size, budget) in CELLS.items()}


def _sized(base: Experiment, layers: int, width: int, budget: float) -> Experiment:
    steps = round(budget * base.training.steps)
    return replace(
        base,
        decoder=replace(base.decoder, num_layers=layers, d_model=width, num_heads=width // 32),
        training=replace(base.training, steps=steps, cooldown_steps=min(base.training.cooldown_steps, steps // 2)),
    )


def _read(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return weights, training FLOPs (six per weight and token, without attention), fit, and reach.

    The reach is the longest length up to which every exact match is at least ``THRESHOLD``, in training lengths.
    """
    experiment = run.experiment
    first, last = experiment.train_lengths
    weights = sum(weight.numel() for weight in run.decoder.parameters())
    rng = stream(experiment.seed, "tokens of a sequence")
    sizes = [
        experiment.task.sample(length=length, size=1, rng=rng).tokens.shape[1] for length in range(first, last + 1)
    ]
    tokens = run.facts["steps"] * experiment.training.batch_size * sum(sizes) / len(sizes)
    lengths = sorted({row["length"] for row in rows})
    fails = (each for each in lengths if min(row["exact_match"] for row in rows if row["length"] == each) < THRESHOLD)
    first_failure = next(fails, None)
    reached = [length for length in lengths if first_failure is None or length < first_failure]
    return {
        "weights": weights,
        "flops": 6 * weights * tokens,
        "fits": run.facts["fitted"] >= FIT_THRESHOLD,
        "reached": max(reached, default=0) / last,
    }


def _tables(rows: Rows, readings: Rows) -> list[Table]:
    return [table for task in _tasks(readings) for table in (_by_size(task, readings), _at_equal_flops(task, readings))]


def _tasks(readings: Rows) -> list[str]:
    return list(dict.fromkeys(_cell(reading)[0] for reading in readings))


def _cell(reading: Mapping[str, Any]) -> tuple[str, tuple[int, int], float]:
    return CELLS[reading["row"]]


def _by_size(task: str, readings: Rows) -> Table:
    """Return the reach of every seed, by size and budget."""
    body = []
    for layers, width in SIZES:
        cells = [f"{layers} x {width}", "-"]
        for budget in BUDGETS:
            group = [each for each in readings if _cell(each) == (task, (layers, width), budget)]
            reached = ", ".join(_reach_text(each) for each in group)
            flops = sum(each["flops"] for each in group) / max(len(group), 1)
            cells.append(f"{reached}\n({flops:.1e} FLOPs)" if group else "-")
            cells[1] = f"{group[0]['weights']:,}" if group else cells[1]
        body.append(cells)
    title = f"{task}: reach in training lengths at exact match {THRESHOLD} or more, by seed"
    return title, ["layers x width", "weights", *(f"{budget:g} of the steps" for budget in BUDGETS)], body


def _reach_text(reading: Mapping[str, Any]) -> str:
    return f"{reading['reached']:g}x" if reading["fits"] else f"{reading['reached']:g}x (does not fit)"


def _at_equal_flops(task: str, readings: Rows) -> Table:
    """Return the sizes with the largest reach, by training FLOPs in bins of a factor of four."""
    task_readings = [reading for reading in readings if _cell(reading)[0] == task]
    body = []
    for power in sorted({_power(reading) for reading in task_readings}):
        equal = [reading for reading in task_readings if _power(reading) == power]
        cells = dict.fromkeys(map(_cell, equal))
        means = {cell: _geometric_mean_exact_length([each for each in equal if _cell(each) == cell]) for cell in cells}
        best = max(means.values())
        leaders = [f"{size[0]} x {size[1]} ({budget:g})" for (_, size, budget), mean in means.items() if mean == best]
        body.append(
            [f"{4.0**power:.1e} to {4.0 ** (power + 1):.1e}", str(len(cells)), ", ".join(leaders), f"{best:.3g}x"]
        )
    title = f"{task}: size with the largest reach at equal training FLOPs (fraction of the steps)"
    return title, ["FLOPs", "sizes", "largest reach", "geometric mean"], body


def _power(reading: Mapping[str, Any]) -> int:
    return math.floor(math.log(reading["flops"], 4))


def _geometric_mean_exact_length(readings: Rows) -> float:
    """Return the geometric mean; a run that fails within the training length counts as 0.1."""
    return math.exp(sum(math.log(max(each["reached"], 0.1)) for each in readings) / len(readings))


def _draw(rows: Rows, readings: Rows, folder: Path, title: str) -> Path:
    """Draw reach against training FLOPs, a panel per task."""
    # Imported here because it takes a second and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import NullFormatter  # noqa: PLC0415

    tasks = _tasks(readings)
    figure = Figure(figsize=(5.5 * len(tasks), 4.5), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for place, (layers, width) in enumerate(SIZES):
            points = []
            for budget in BUDGETS:
                group = [each for each in readings if _cell(each) == (task, (layers, width), budget)]
                if group:
                    points.append(
                        (sum(each["flops"] for each in group) / len(group), _geometric_mean_exact_length(group))
                    )
                axes.plot(
                    [each["flops"] for each in group],
                    [max(each["reached"], 0.1) for each in group],
                    MARKERS[budget],
                    color=f"C{place}",
                    alpha=0.4,
                )
            axes.plot(*zip(*points, strict=True), "-", color=f"C{place}", label=f"{layers} x {width}")
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs", title=task)
        # Powers of ten only: labels of minor ticks would overlap.
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"reach in training lengths, exact match {THRESHOLD} or more")
        axes.grid(alpha=0.3)
    for budget, marker in MARKERS.items():
        axes.plot([], [], marker, color="gray", label=f"{budget:g} of the steps, one point per seed")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, title="layers x width")
    figure.suptitle(title)
    return save_figure(figure, folder)


SCALE = Claim(
    name="scale",
    summary="extrapolation of PPC and sparse parity by depth, width and training budget, and at equal FLOPs",
    paper="a question of two reviewers",
    experiments=_experiments,
    laptop=SizePreset(
        num_seeds=1,
        labels=tuple(label for label, (name, _, budget) in CELLS.items() if name == "parity" and budget > 0.25),
        max_length=2000,
    ),
    full=SizePreset(num_seeds=3),
    read=_read,
    tables=_tables,
    draw=_draw,
)
