"""Charts of the training loss against the step, one chart per task and one line per label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from lengthwise.core.type_checks import is_count, is_finite, is_number
from lengthwise.experiments.run_folder import read_rows
from lengthwise.report.chart import MAX_LINES, Chart, Table, axis, hover, line_trace
from lengthwise.report.folders import RunRecord
from lengthwise.report.result_checks import Check, check_value
from lengthwise.training.trainer import METRICS

# Maximum number of points of a line, and of points with a symbol.
MAX_POINTS, MAX_SYMBOLS = 120, 8
# Smallest difference between the first and the last step for automatic ticks, which can be fractions.
MIN_STEPS = 20
STEP: Check = (is_count, "a whole number of at least 0")
LOSS: Check = (is_number, "a number")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """Median loss and number of runs by step, and the number of logged losses that are not finite."""

    points: Mapping[int, tuple[float, int]]
    num_omitted: int


def loss_charts(runs: Sequence[RunRecord], drawn_labels: Sequence[str]) -> tuple[list[Chart], list[str]]:
    """Return a chart per task of the median training loss over runs, and sentences about the losses left out.

    A chart has the labels that the other charts of its task draw, or else the first ones. A task whose runs have logged
    no loss has no chart.
    """
    by_task: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_task.setdefault(_task_name(run.description), []).append(run)
    charts, sentences = [], []
    for task, task_runs in by_task.items():
        labels = list(dict.fromkeys(run.label for run in task_runs))
        labels = [label for label in drawn_labels if label in labels] or labels
        curves = {label: _curve([run for run in task_runs if run.label == label]) for label in labels[:MAX_LINES]}
        title = "Training loss" if len(by_task) == 1 else f"Training loss: {task.replace('_', ' ')}"
        if omitted := {label: curve.num_omitted for label, curve in curves.items() if curve.num_omitted}:
            counts = ", ".join(f"{count:,} of {label}" for label, count in omitted.items())
            sentences.append(f"{title}: the chart leaves out logged losses that are not finite ({counts}).")
        if curves := {label: curve for label, curve in curves.items() if curve.points}:
            charts.append(_loss_chart(title, curves))
    return charts, sentences


def _task_name(description: Mapping[str, Any]) -> str:
    task = description.get("task")
    return str(task.get("name")) if isinstance(task, Mapping) else "unknown task"


def _loss_chart(title: str, curves: Mapping[str, LossCurve]) -> Chart:
    traces, body = [], []
    steps = sorted({step for curve in curves.values() for step in curve.points})
    for index, (label, curve) in enumerate(curves.items()):
        points = curve.points.items()
        texts = [hover(label, f"step {step:,}: loss {loss:.4g}", _runs(count)) for step, (loss, count) in points]
        trace = line_trace(index, list(curve.points), [loss for loss, _ in curve.points.values()], texts)
        trace["marker"]["maxdisplayed"] = MAX_SYMBOLS
        traces.append(trace)
        body += [[label, f"{step:,}", f"{loss:.4g}", str(count)] for step, (loss, count) in points]
    ticks: dict[str, Any] = {"tickvals": steps} if steps[-1] - steps[0] < MIN_STEPS else {}
    return Chart(
        title=title,
        description=f"Line chart of the training loss against the training step, {len(curves)} lines.",
        traces=traces,
        layout={"xaxis": axis("training step", **ticks), "yaxis": axis("loss (log scale)", log=True)},
        table=Table(title=f"{title} by step", header=["configuration", "step", "loss", "runs"], body=body),
        lines=list(curves),
        switches=("log y",),
        notes=["Mean loss since the previous point of the log; the median over the runs that trained up to this step."],
    )


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"median of {count} runs"


def _curve(runs: Sequence[RunRecord]) -> LossCurve:
    """Return at most ``MAX_POINTS`` increasing steps with the median loss over runs."""
    losses: dict[int, list[float]] = {}
    num_omitted = 0
    for run in runs:
        path = run.folder / METRICS
        for line, row in enumerate(read_rows(path, is_growing=True), start=1):
            name = "mean_loss" if row.get("mean_loss") is not None else "loss"
            if row.get(name) is None or "step" not in row:
                continue
            check_value(row, "step", STEP, path, line)
            check_value(row, name, LOSS, path, line)
            if is_finite(row[name]):
                losses.setdefault(row["step"], []).append(float(row[name]))
            else:
                num_omitted += 1
    steps = sorted(losses)
    spacing = max(1, -(-len(steps) // (MAX_POINTS - 1)))
    kept_steps = sorted({*steps[::spacing], *steps[-1:]})
    points = {step: (median(losses[step]), len(losses[step])) for step in kept_steps}
    return LossCurve(points=points, num_omitted=num_omitted)
