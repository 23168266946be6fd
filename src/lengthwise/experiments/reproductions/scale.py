"""Model scale (asked for by two reviewers): how far a claim holds by depth, width and training budget."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.tables_and_figures import FITTED, Rows, save_figure
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.sparse_parity import sparse_parity_up_to
from lengthwise.experiments.reproductions.claim import Claim, Size, Table
from lengthwise.experiments.run import Run

# Layers and width; a head has 32 dimensions.
SIZES = ((1, 32), (1, 64), (1, 128), (2, 64), (4, 64))
# Of the steps of the recipe.
BUDGETS = (0.25, 0.5, 1.0)
# A length is reached where exact match is at least this.
REACHED = 0.9
# Rows: the task, the size and the budget of each.
CELLS = {
    f"{name}, {size[0]} x {size[1]}, {budget:g} of the steps": (name, size, budget)
    for name in ("parity", "variables", "sparse parity")
    for size in SIZES
    for budget in BUDGETS
}
MARKERS = {0.25: "v", 0.5: "s", 1.0: "o"}


def _experiments() -> dict[str, Experiment]:
    far = EvaluationSettings(lengths=(20, 40, 200, 2000, 20_000), num_examples=(256, 256, 256, 64, 4), until_none=True)
    chains = EvaluationSettings(lengths=(16, 32, 160, 1600), num_examples=(256, 256, 256, 32), until_none=True)
    bits = EvaluationSettings(
        lengths=(50, 100, 200, 500), num_examples=(512,), variants=tuple(f"flagged-{number}" for number in (1, 2, 4, 6))
    )
    bases = {
        "parity": replace(recipe("parity"), evaluation=far),
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
    """Weights, and operations of training: six for each weight and token, attention's own not counted."""
    experiment = run.experiment
    first, last = experiment.train_lengths
    weights = sum(weight.numel() for weight in run.decoder.parameters())
    rng = stream(experiment.seed, "tokens of a sequence")
    sizes = [
        experiment.task.sample(length=length, size=1, rng=rng).tokens.shape[1] for length in range(first, last + 1)
    ]
    tokens = run.facts["steps"] * experiment.training.batch_size * sum(sizes) / len(sizes)
    lengths = sorted({row["length"] for row in rows})
    fails = (each for each in lengths if min(row["exact_match"] for row in rows if row["length"] == each) < REACHED)
    beyond = next(fails, None)
    reached = [length for length in lengths if beyond is None or length < beyond]
    return {
        "weights": weights,
        "flops": 6 * weights * tokens,
        "fits": run.facts["fitted"] >= FITTED,
        "reached": max(reached, default=0) / last,
    }


def _tables(rows: Rows, readings: Rows) -> list[Table]:
    return [
        made for task in _tasks(readings) for made in (_by_size(task, readings), _at_equal_operations(task, readings))
    ]


def _tasks(readings: Rows) -> list[str]:
    return list(dict.fromkeys(_cell(reading)[0] for reading in readings))


def _cell(reading: Mapping[str, Any]) -> tuple[str, tuple[int, int], float]:
    return CELLS[reading["row"]]


def _by_size(task: str, readings: Rows) -> Table:
    """A line per size, a column per budget: what every seed reached."""
    body = []
    for layers, width in SIZES:
        line = [f"{layers} x {width}", "-"]
        for budget in BUDGETS:
            own = [each for each in readings if _cell(each) == (task, (layers, width), budget)]
            reached = ", ".join(_shown(each) for each in own)
            flops = sum(each["flops"] for each in own) / max(len(own), 1)
            line.append(f"{reached}\n({flops:.1e} operations)" if own else "-")
            line[1] = f"{own[0]['weights']:,}" if own else line[1]
        body.append(line)
    title = f"{task}: times the training length at exact match {REACHED} or more, by seed"
    return title, ["layers x width", "weights", *(f"{budget:g} of the steps" for budget in BUDGETS)], body


def _shown(reading: Mapping[str, Any]) -> str:
    return f"{reading['reached']:g}x" if reading["fits"] else f"{reading['reached']:g}x (does not fit)"


def _at_equal_operations(task: str, readings: Rows) -> Table:
    """The sizes whose training took as much, within a factor of four, side by side."""
    own = [reading for reading in readings if _cell(reading)[0] == task]
    body = []
    for power in sorted({_power(reading) for reading in own}):
        alike = [reading for reading in own if _power(reading) == power]
        cells = dict.fromkeys(map(_cell, alike))
        means = {cell: _mean_reach([each for each in alike if _cell(each) == cell]) for cell in cells}
        best = max(means.values())
        ahead = [f"{size[0]} x {size[1]} ({budget:g})" for (_, size, budget), mean in means.items() if mean == best]
        body.append(
            [f"{4.0**power:.1e} to {4.0 ** (power + 1):.1e}", str(len(cells)), ", ".join(ahead), f"{best:.3g}x"]
        )
    title = f"{task}: at equal operations, the size that reaches furthest (share of the steps)"
    return title, ["operations", "sizes", "furthest", "mean of the logarithms"], body


def _power(reading: Mapping[str, Any]) -> int:
    return math.floor(math.log(reading["flops"], 4))


def _mean_reach(readings: Rows) -> float:
    """The geometric mean; what does not even reach the training length counts as a tenth of it."""
    return math.exp(sum(math.log(max(each["reached"], 0.1)) for each in readings) / len(readings))


def _draw(rows: Rows, readings: Rows, folder: Path, title: str) -> Path:
    """Times the training length against operations of training, a panel per task."""
    # Imported here: it takes a second, and most commands draw nothing.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import NullFormatter  # noqa: PLC0415

    tasks = _tasks(readings)
    figure = Figure(figsize=(5.5 * len(tasks), 4.5), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for place, (layers, width) in enumerate(SIZES):
            points = []
            for budget in BUDGETS:
                own = [each for each in readings if _cell(each) == (task, (layers, width), budget)]
                if own:
                    points.append((sum(each["flops"] for each in own) / len(own), _mean_reach(own)))
                axes.plot(
                    [each["flops"] for each in own],
                    [max(each["reached"], 0.1) for each in own],
                    MARKERS[budget],
                    color=f"C{place}",
                    alpha=0.4,
                )
            axes.plot(*zip(*points, strict=True), "-", color=f"C{place}", label=f"{layers} x {width}")
        axes.set(xscale="log", yscale="log", xlabel="operations of training", title=task)
        # Of the powers of ten alone: other numbers stand upon each other.
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylabel(f"times the training length, exact match {REACHED} or more")
        axes.grid(alpha=0.3)
    for budget, marker in MARKERS.items():
        axes.plot([], [], marker, color="gray", label=f"{budget:g} of the steps, a seed each")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8, title="layers x width")
    figure.suptitle(title)
    return save_figure(figure, folder)


SCALE = Claim(
    name="scale",
    summary="how far PPC and sparse parity hold by depth, width and training budget; at equal operations",
    paper="a question of two reviewers",
    experiments=_experiments,
    laptop=Size(
        num_seeds=1,
        rows=tuple(label for label, (name, _, budget) in CELLS.items() if name == "parity" and budget > 0.25),
        longest=2000,
    ),
    full=Size(num_seeds=3),
    read=_read,
    tables=_tables,
    draw=_draw,
)
