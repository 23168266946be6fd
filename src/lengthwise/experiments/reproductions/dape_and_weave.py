"""Claim on DAPE V2 and weave: how far they reach on parity, copying and addition, beside the encodings they change."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lengthwise.encodings import DAPEv2, EncodingSettings, KERPLELog, Rotary, Weave
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, longest_exact_length
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.fitted_encodings import FOUR_LAYERS, LARGE_TRAINING, SMALL_WITH_PREVIOUS_TOKEN
from lengthwise.experiments.reproductions.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential
from lengthwise.tasks import Addition, Copy, Parity, Task
from lengthwise.training.training_settings import TrainingSettings

# Test lengths in training lengths, and the number of examples at each.
MULTIPLES = (1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0)
NUM_EXAMPLES = (512, 512, 512, 512, 256, 256, 64)
# Width of the steps of weave in IDs; its window is the longest training length.
WEAVE_WIDTH = 20
EXACT_MATCH_THRESHOLD = 0.9


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
    """Return the two encodings, each after the encoding it changes, on each task."""
    experiments = {}
    for name, fitted in TASKS.items():
        length = fitted.train_length
        lengths = tuple(dict.fromkeys(round(multiple * length) for multiple in MULTIPLES))
        # The steps keep the distances of the longest test within those of training.
        encodings: dict[str, EncodingSettings] = {
            "rotary": Rotary(),
            "rotary, weave": Weave(window=length, width=WEAVE_WIDTH),
            "KERPLE (log)": KERPLELog(),
            "DAPE V2": DAPEv2(),
        }
        for label, encoding in encodings.items():
            experiments[f"{name}, {label}"] = Experiment(
                task=fitted.task,
                scheme=Sequential(),
                encoding=encoding,
                decoder=fitted.decoder,
                training=fitted.training,
                train_lengths=(1, length),
                evaluation=EvaluationSettings(
                    lengths=lengths, num_examples=NUM_EXAMPLES[-len(lengths) :], stop_at_zero=True
                ),
            )
    return experiments


def _extract_reading(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return the longest training length, the steps, whether the run fits, and its reach in training lengths."""
    longest = run.experiment.train_lengths[1]
    return {
        "trained_on": longest,
        "steps": run.facts["steps"],
        "fits": run.facts["fitted"] >= FIT_THRESHOLD,
        "reached": longest_exact_length(rows, EXACT_MATCH_THRESHOLD) / longest,
    }


def _build_tables(rows: Rows, readings: Rows) -> list[Table]:
    """Return the reach of every seed by encoding, with a column per task."""
    encodings = dict.fromkeys(str(reading["row"]).partition(", ")[2] for reading in readings)
    body = []
    for encoding in encodings:
        cells = []
        for name in TASKS:
            runs = [reading for reading in readings if reading["row"] == f"{name}, {encoding}"]
            cells.append(
                ", ".join(f"{run['reached']:g}x" + ("" if run["fits"] else " (no fit)") for run in runs) or "-"
            )
        body.append([encoding, *cells])
    columns = [f"{name}, up to {fitted.train_length}" for name, fitted in TASKS.items()]
    title = f"reach in training lengths at exact match {EXACT_MATCH_THRESHOLD} or more, by seed"
    return [(title, ["encoding", *columns], body)]


DAPE_AND_WEAVE = Claim(
    name="dape_and_weave",
    summary="reach of DAPE V2 and weave on copying, parity and addition, beside KERPLE (log) and rotary",
    paper="Zheng et al. 2024 (arXiv 2410.04798); Ma et al. 2024 (arXiv 2410.15859)",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1),
    full=SizePreset(num_seeds=3),
    read=_extract_reading,
    tables=_build_tables,
)
