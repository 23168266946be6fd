"""Claim on recall (k = 1: an answer depends on one token): accuracy in longer texts, and causes of failure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.result_rows import Rows
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_evaluation import diagnose_run
from lengthwise.tasks import Recall

TASKS = {"needle": Recall(num_pairs=1), "one of four": Recall(), "four of eight": Recall(num_pairs=8, num_queries=4)}
LAPTOP_LABELS = ("needle", "needle, log scaling", "one of four, log scaling", "four of eight, log scaling")
# Number of examples per diagnosis.
NUM_EXAMPLES = 64


def _build_experiments() -> dict[str, Experiment]:
    """Return three experiments per recall task: NoPE without and with log length scaling, and rotary with it."""
    evaluation = EvaluationSettings(lengths=(32, 64, 128, 512, 2048), num_examples=(512, 512, 512, 256, 64))
    experiments = {}
    for task_label, task in TASKS.items():
        baseline = replace(recipe("recall"), task=task, evaluation=evaluation)
        log_scaled = replace(baseline, decoder=replace(baseline.decoder, length_scaling="log"))
        experiments[task_label] = baseline
        experiments[f"{task_label}, log scaling"] = log_scaled
        experiments[f"{task_label}, rotary, log scaling"] = replace(log_scaled, encoding=Rotary())
    return experiments


def _measure_run(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return the attention of the best head on the needed tokens at each length, and the limiting cause."""
    diagnosis = diagnose_run(run, max(row["length"] for row in rows), num_examples=NUM_EXAMPLES)
    return {
        "mass": {str(result.length): max(result.needed_mass, default=0.0) for result in diagnosis.by_length},
        "limited_by": diagnosis.limited_by,
    }


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    lengths = sorted({int(length) for measurement in measurements for length in measurement["mass"]})
    body = []
    for measurement in measurements:
        mass = measurement["mass"]
        masses = [f"{mass[str(length)]:.3f}" if str(length) in mass else "-" for length in lengths]
        body.append([measurement["row"], str(measurement["seed"]), *masses, measurement["limited_by"]])
    title = "attention of the best head on the needed tokens, by length, and the limiting cause"
    return [(title, ["row", "seed", *(f"{length:,}" for length in lengths), "limited by"], body)]


CLAIM = Claim(
    summary="recall with one or several questions, up to 64 times the training length; dilution of attention",
    paper="a reviewer's question (k = 1); tasks of Arora et al. 2024 (arXiv 2312.04927)",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, labels=LAPTOP_LABELS, max_length=512),
    measure=_measure_run,
    tables=_build_tables,
)
