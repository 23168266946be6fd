"""Claim on rivals of PPC: positions learned from the content, other encodings, and loops, on copying and parity."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from claims.longest_exact import EXACT_MATCH_THRESHOLD

from lengthwise.encodings import CoPE, EncodingSettings, NoPE, PartialRotary, PoPE, RePo, Rotary, SelectiveRotary
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
from lengthwise.experiments.recipes.comparisons import demo
from lengthwise.experiments.recipes.tuned_encodings import SMALL, TunedEncoding, compare_ppc_with_encodings
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run, load_run, train
from lengthwise.experiments.run_evaluation import evaluate
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.training.training_settings import TrainingSettings

LONGEST = 10
EVALUATION = EvaluationSettings(
    lengths=(10, 12, 15, 20, 30, 50, 100, 1000),
    num_examples=(512, 512, 512, 512, 256, 256, 64, 16),
    stop_at_zero=True,
)
# Decoder and training of each task; training ends some steps after a run fits. Parity needs more layers than copying
# (benchmarks/fit_sweep.md). Scores are scaled as in the papers.
SETTINGS: dict[str, tuple[DecoderSettings, TrainingSettings]] = {
    "copy": (replace(SMALL, num_heads=2), TrainingSettings(steps=2000, fit_every=100, cooldown_steps=300)),
    "parity": (
        replace(SMALL, num_layers=4),
        TrainingSettings(steps=1500, batch_size=128, learning_rate=1e-3, fit_every=100, cooldown_steps=300),
    ),
}
# Encodings, and changes of the decoder.
RIVALS: dict[str, tuple[EncodingSettings, dict[str, Any]]] = {
    "rotary": (Rotary(), {}),
    "NoPE": (NoPE(), {"previous_token_mix": True}),
    "partial rotary": (PartialRotary(), {}),
    "PoPE": (PoPE(), {}),
    "RePo": (RePo(), {}),
    "Selective RoPE": (SelectiveRotary(), {}),
    "CoPE": (CoPE(), {}),
    "looped NoPE": (NoPE(), {"num_layers": 1, "loops": 4, "previous_token_mix": True}),
}
# Learning rates of rows that do not fit with that of their task, from a search on other seeds
# (benchmarks/claims/rivals/tuning.py).
LEARNING_RATES: dict[str, dict[str, float]] = {"copy": {"RePo": 1e-3}, "parity": {}}
# Steps without positions after training with rotary (DroPE), and the label of these results.
DROPPED_STEPS, DROPPED = 200, "DroPE"
# Training steps of a time measurement, and the number of measurements of each row.
TIMED_STEPS, TIMED_ROUNDS = 20, 3


def rival_experiments(task: str, learning_rates: Mapping[str, float]) -> dict[str, Experiment]:
    """Return PPC and its rivals on ``copy`` or ``parity``, trained on up to 10 symbols or bits, by label."""
    ppc_experiment = demo()["discovered (PPC)"] if task == "copy" else recipe("parity")
    ppc_experiment = replace(ppc_experiment, train_lengths=(1, LONGEST), evaluation=EVALUATION)
    decoder, training = SETTINGS[task]
    fitted = {
        label: TunedEncoding(
            encoding=encoding,
            decoder=replace(decoder, **changes),
            training=replace(training, learning_rate=learning_rates.get(label, training.learning_rate)),
        )
        for label, (encoding, changes) in RIVALS.items()
    }
    rows = compare_ppc_with_encodings(ppc_experiment, fitted)
    return {f"{task}, {'PPC' if label.endswith('(PPC)') else label}": row for label, row in rows.items()}


def _build_experiments() -> dict[str, Experiment]:
    tasks = [rival_experiments(task, learning_rates) for task, learning_rates in LEARNING_RATES.items()]
    return {label: experiment for experiments in tasks for label, experiment in experiments.items()}


def _measure_run(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return fit, reach and cost of a run; for rotary, also the fit and reach of DroPE, which continues the run."""
    measurement = _measure_longest_exact(run, rows) | _measure_step(run.experiment)
    if run.experiment.encoding != Rotary() or run.experiment.scheme.predicts_ids:
        return measurement
    start = load_run(run.folder, overrides={"encoding": NoPE()}, device="cpu")
    training = TrainingSettings(
        steps=min(DROPPED_STEPS, start.experiment.training.steps),
        batch_size=start.experiment.training.batch_size,
        learning_rate=start.experiment.training.learning_rate / 3,
    )
    with tempfile.TemporaryDirectory() as folder:
        dropped = train(
            replace(start.experiment, training=training), Path(folder) / "run", start=start, device="cpu", report=None
        )
        assert dropped is not None
        return {**measurement, "dropped": _measure_longest_exact(dropped, evaluate(dropped, run.experiment.evaluation))}


def _measure_longest_exact(run: Run, rows: Rows) -> dict[str, Any]:
    return {
        "given": rows[0]["given"],
        "steps": run.facts["steps"],
        "fitted": run.facts["fitted"],
        "longest_exact": longest_exact_length(rows, EXACT_MATCH_THRESHOLD) / run.experiment.train_lengths[1],
    }


def _measure_step(experiment: Experiment) -> dict[str, float]:
    """Return the milliseconds of a training step, and those of the rotary row on the same batches, measured in turn.

    The smallest of several measurements is the one that other programs on the machine disturb least.
    """
    rotary = rival_experiments(experiment.task.name, {})[f"{experiment.task.name}, rotary"]
    # PPC has other batches than the rotary row.
    batch_size, lengths_per_batch = experiment.training.batch_size, experiment.training.lengths_per_batch
    same_batches = replace(rotary.training, batch_size=batch_size, lengths_per_batch=lengths_per_batch)
    rotary = replace(rotary, training=same_batches, train_lengths=experiment.train_lengths)
    times: dict[str, list[float]] = {"step_ms": [], "rotary_step_ms": []}
    for _ in range(TIMED_ROUNDS):
        for name, timed in zip(times, (experiment, rotary), strict=True):
            with tempfile.TemporaryDirectory() as folder:
                training = replace(timed.training, steps=TIMED_STEPS, fit_every=None, cooldown_steps=0)
                run = train(replace(timed, training=training), Path(folder) / "run", device="cpu", report=None)
                assert run is not None
                times[name].append(1000 * run.facts["train_s"] / TIMED_STEPS)
    return {name: min(values) for name, values in times.items()}


def _list_results(measurements: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Return the measurements of every seed by label; DroPE has the cost of rotary."""
    results: dict[str, list[Mapping[str, Any]]] = {}
    for measurement in measurements:
        results.setdefault(measurement["row"], []).append(measurement)
        if "dropped" in measurement:
            label = f"{measurement['row'].partition(',')[0]}, {DROPPED}"
            results.setdefault(label, []).append({**measurement, **measurement["dropped"]})
    return results


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    """Return one line per row: fit, reach of every seed, reach of the worst seed, and the cost of a step."""
    body = []
    for label, results in _list_results(measurements).items():
        longest_exact = [f"{result['longest_exact']:g}x" for result in results]
        num_fitted = sum(result["fitted"] >= FIT_THRESHOLD for result in results)
        costs = [result["step_ms"] / result["rotary_step_ms"] for result in results]
        steps = [result["steps"] for result in results]
        step_text = f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,}-{max(steps):,}"
        worst = min(result["longest_exact"] for result in results)
        cells = [str(results[0]["given"]), step_text, f"{num_fitted} of {len(results)}"]
        body.append([label, *cells, f"{worst:g}x", ", ".join(longest_exact), f"{sorted(costs)[len(costs) // 2]:.2f}"])
    title = f"longest exact length in training lengths, at exact match {EXACT_MATCH_THRESHOLD} or more, and cost"
    return [(title, ["row", "given", "steps", "fits", "worst seed", "each seed", "time per step (rotary = 1)"], body)]


def _draw_figure(rows: Rows, measurements: Rows, folder: Path, title: str) -> Path:
    """Draw the reach of every run, one panel per task and one line per row; larger points are the worst seeds."""
    results = _list_results(measurements)
    tasks = list(dict.fromkeys(label.partition(", ")[0] for label in results))
    names = {
        task: [label.partition(", ")[2] for label in results if label.partition(", ")[0] == task] for task in tasks
    }
    counts = count_seeds([len(runs) for runs in results.values()])
    caption = (
        f"Points: single runs; large: worst seed. Reach: the longest test length with exact match "
        f"{EXACT_MATCH_THRESHOLD} or more; 0 is drawn at 0.5. Tests end at {EVALUATION.lengths[-1] // LONGEST} times."
    )
    figure, panels = make_panels([f"{title}: {task}, {counts}" for task in tasks], list(names.values()), caption)
    for axes, task in zip(panels, tasks, strict=True):
        labels, colors = [], [*LINE_COLORS] * 2
        for place, (line_color, name) in enumerate(zip(colors, names[task], strict=False)):
            runs = results[f"{task}, {name}"]
            fits = any(result["fitted"] >= FIT_THRESHOLD for result in runs)
            color, text = (line_color, name) if fits else (UNFIT_COLOR, f"{name} (no fit)")
            longest_exact = [max(result["longest_exact"], 0.5) for result in runs]
            height = len(names[task]) - place
            axes.plot([0.5, min(longest_exact)], [height] * 2, "-", color=color, alpha=0.5)
            axes.plot(longest_exact, [height] * len(longest_exact), "o", color=color, alpha=0.4, markersize=5)
            axes.plot([min(longest_exact)], [height], "o", color=color, markersize=9)
            labels.append(LineLabel(text=text, color=color, value=float(height)))
        axes.set(xscale="log", xlabel="reach in training lengths", yticks=[], ylim=(0.5, len(names[task]) + 0.5))
        ticks = (1, 2, 5, 10, 100)
        axes.set_xticks(ticks, [f"{tick}x" for tick in ticks])
        axes.minorticks_off()
        label_lines(axes, labels)
    return save_figure(figure, folder)


CLAIM = Claim(
    summary="PPC beside RePo, PoPE, Selective RoPE, CoPE, DroPE, partial rotary and loops: reach, cost, what was given",
    paper="Li et al. 2025 (arXiv 2512.14391) and others",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, labels=tuple(rival_experiments("copy", {}))),
    full=SizePreset(num_seeds=3),
    measure=_measure_run,
    tables=_build_tables,
    draw=_draw_figure,
)
