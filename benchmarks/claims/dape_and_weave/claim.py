"""Claim on DAPE V2 and weave: how far they reach on parity, copying and addition, beside the encodings they change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from claims.longest_exact import EXACT_MATCH_THRESHOLD, format_longest_exact, measure_longest_exact

from lengthwise.encodings import DAPEv2, EncodingSettings, KERPLELog, Rotary, Weave
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_by_length
from lengthwise.evaluation.result_rows import Rows
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.tuned_encodings import FOUR_LAYERS, LARGE_TRAINING, SMALL_WITH_PREVIOUS_TOKEN
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run, load_run
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential
from lengthwise.tasks import Addition, Copy, Parity, Task
from lengthwise.training.training_settings import TrainingSettings

# Test lengths in training lengths, and the number of examples at each.
MULTIPLES = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
NUM_EXAMPLES = (512, 512, 512, 512, 256, 256, 64)
# Base encodings and DAPE V2; weave is an evaluation of the rotary runs.
ENCODINGS: dict[str, EncodingSettings] = {"rotary": Rotary(), "KERPLE (log)": KERPLELog(), "DAPE V2": DAPEv2()}
# Width of the steps of weave in IDs, and a width beyond every distance of a test.
WEAVE_WIDTH, ONE_STEP_WIDTH = 20, 1_000_000
# Fields of a result with weave in a measurement.
RESULT_NAMES = ("length", "num_examples", "exact_match", "low", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class _FittedTask:
    """Task with the longest training length, and settings for all encodings that let rotary fit a longer one."""

    task: Task
    train_length: int
    decoder: DecoderSettings
    training: TrainingSettings


COPY_TRAINING = TrainingSettings(steps=3000, fit_every=100, cooldown_steps=200)
DEEP_TRAINING = replace(LARGE_TRAINING, steps=1500, fit_every=50, cooldown_steps=100)
TASKS = {
    "copy": _FittedTask(task=Copy(), train_length=10, decoder=SMALL_WITH_PREVIOUS_TOKEN, training=COPY_TRAINING),
    "parity": _FittedTask(task=Parity(), train_length=5, decoder=FOUR_LAYERS, training=DEEP_TRAINING),
    "addition": _FittedTask(task=Addition(), train_length=2, decoder=FOUR_LAYERS, training=DEEP_TRAINING),
}


def _build_experiments() -> dict[str, Experiment]:
    """Return DAPE V2, its base KERPLE (log), and rotary, the base of weave, on each task."""
    experiments = {}
    for name, fitted in TASKS.items():
        length = fitted.train_length
        lengths = tuple(dict.fromkeys(round(multiple * length) for multiple in MULTIPLES))
        evaluation = EvaluationSettings(lengths=lengths, num_examples=NUM_EXAMPLES[-len(lengths) :], stop_at_zero=True)
        for label, encoding in ENCODINGS.items():
            experiments[f"{name}, {label}"] = Experiment(
                task=fitted.task,
                scheme=Sequential(),
                encoding=encoding,
                decoder=fitted.decoder,
                training=fitted.training,
                train_lengths=(1, length),
                evaluation=evaluation,
            )
    return experiments


def weaves(trained_distance: int) -> dict[str, Weave]:
    """Return settings of weave by label for a rotary run with ID distances up to ``trained_distance`` in training."""
    return {
        "half of the trained distances": Weave(window=max(1, trained_distance // 2), width=WEAVE_WIDTH),
        "all trained distances": Weave(window=trained_distance, width=WEAVE_WIDTH),
        # One step for all larger distances (ReRoPE), which is the largest trained distance.
        "all trained distances, one step": Weave(window=max(1, trained_distance - 1), width=ONE_STEP_WIDTH),
    }


def _measure_run(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return the longest training length, the steps, whether the run fits, and its reach in training lengths.

    The measurement of a rotary run also has its results with weave, which needs no more training.
    """
    measurement = measure_longest_exact(run, rows)
    if not isinstance(run.experiment.encoding, Rotary):
        return measurement
    return {**measurement, "weave": _evaluate_with_weave(run)}


def _evaluate_with_weave(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return length, exact match and its interval of the run's weights with each setting of weave."""
    experiment, device = run.experiment, next(run.decoder.parameters()).device.type
    results = {}
    for label, weave in weaves(int(run.facts["trained_distance"])).items():
        decoder = load_run(run.folder, overrides={"encoding": weave}, device=device).decoder
        by_length = tuple(evaluate_by_length(decoder, experiment.task, experiment.scheme, experiment.evaluation))
        measured = [result for result in by_length if not result.skipped]
        results[label] = [{name: getattr(result, name) for name in RESULT_NAMES} for result in measured]
    return results


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    """Return the reach of every seed by encoding, with a column per task, and the results with weave."""
    body = []
    for encoding in dict.fromkeys(str(measurement["row"]).partition(", ")[2] for measurement in measurements):
        cells = []
        for name in TASKS:
            runs = [measurement for measurement in measurements if measurement["row"] == f"{name}, {encoding}"]
            cells.append(", ".join(map(format_longest_exact, runs)) or "-")
        body.append([encoding, *cells])
    columns = [f"{name}, up to {fitted.train_length}" for name, fitted in TASKS.items()]
    title = f"longest exact length in training lengths, at exact match {EXACT_MATCH_THRESHOLD} or more, by seed"
    return [(title, ["encoding", *columns], body), _weave_table(measurements)]


def _weave_table(measurements: Rows) -> Table:
    """Return the exact match of every rotary run with each window of weave, by length."""
    body = []
    for measurement in measurements:
        for window, results in measurement.get("weave", {}).items():
            cells = [
                f"{result['length']}: {result['exact_match']:.3f} [{result['low']:.2f}, {result['high']:.2f}]"
                for result in results
            ]
            body.append([measurement["row"], str(measurement["seed"]), window, ", ".join(cells)])
    title = "rotary runs, evaluated with weave: exact match [95% interval] by length"
    return title, ["row", "seed", "window of weave", "length: exact match"], body


CLAIM = Claim(
    summary="reach of DAPE V2 and weave on copying, parity and addition, beside KERPLE (log) and rotary",
    paper="Zheng et al. 2024 (arXiv 2410.04798); Ma et al. 2024 (arXiv 2410.15859)",
    experiments=_build_experiments,
    # Addition takes as long as the other two tasks together.
    laptop=SizePreset(
        num_seeds=1, labels=tuple(f"{task}, {name}" for task in ("copy", "parity") for name in ENCODINGS)
    ),
    full=SizePreset(num_seeds=3),
    measure=_measure_run,
    tables=_build_tables,
)
