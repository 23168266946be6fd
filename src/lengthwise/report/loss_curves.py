"""Chart of the training loss against the step, one line per label."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from lengthwise.experiments.run_folder import read_rows
from lengthwise.report.chart import MAX_LINES, Chart, Table, axis, hover, line_trace
from lengthwise.report.folders import RunRecord

METRICS = "metrics.jsonl"
# Maximum number of points of a line.
MAX_POINTS = 120


def loss_chart(runs: Sequence[RunRecord], labels: Sequence[str]) -> Chart | None:
    """Return the training loss of these labels, the median over their runs; None if no run has logged a loss."""
    curves = {label: _curve([run.folder for run in runs if run.label == label]) for label in labels[:MAX_LINES]}
    curves = {label: curve for label, curve in curves.items() if curve}
    if not curves:
        return None
    traces, body = [], []
    for index, (label, curve) in enumerate(curves.items()):
        texts = [hover(label, f"step {step:,}: loss {loss:.4g}", _runs(count)) for step, (loss, count) in curve.items()]
        losses = [loss for loss, _ in curve.values()]
        traces.append(line_trace(index, list(curve), losses, texts) | {"mode": "lines"})
        body += [[label, f"{step:,}", f"{loss:.4g}", str(count)] for step, (loss, count) in curve.items()]
    return Chart(
        title="Training loss",
        description=f"Line chart of the training loss against the training step, {len(curves)} lines.",
        traces=traces,
        layout={"xaxis": axis("training step"), "yaxis": axis("loss (log scale)", log=True)},
        table=Table(title="Training loss by step", header=["configuration", "step", "loss", "runs"], body=body),
        lines=list(curves),
        switches=("log y",),
        notes=["Mean loss since the previous point of the log; the median over the runs of a configuration."],
    )


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"median of {count} runs"


def _curve(folders: Sequence[Path]) -> dict[int, tuple[float, int]]:
    """Map at most ``MAX_POINTS`` steps to the median loss over runs and the number of runs; steps increase."""
    losses: dict[int, list[float]] = {}
    for folder in folders:
        for row in read_rows(folder / METRICS):
            loss = row.get("mean_loss", row.get("loss"))
            if loss is not None and "step" in row:
                losses.setdefault(int(row["step"]), []).append(float(loss))
    steps = sorted(losses)
    spacing = max(1, -(-len(steps) // (MAX_POINTS - 1)))
    kept_steps = sorted({*steps[::spacing], *steps[-1:]})
    return {step: (median(losses[step]), len(losses[step])) for step in kept_steps}
