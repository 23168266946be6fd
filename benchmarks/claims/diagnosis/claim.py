"""Claim on diagnosis (a reviewers' question): the diagnoses of six runs whose causes of failure are known."""

import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from claims.ppc.claim import CLAIM as PPC
from claims.sparse_parity.claim import CLAIM as SPARSE_PARITY
from claims.variable_assignment.claim import CLAIM as VARIABLE_ASSIGNMENT

from lengthwise.encodings import NoPE, Rotary
from lengthwise.evaluation.diagnosis.failure_attribution import ID_ERRORS, MORE_IDS, TOKENS_OR_IDS
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.figure_layout import (
    FIGURE_WIDTH,
    FONT_SIZE,
    LINE_COLORS,
    LINE_HEIGHT,
    count_seeds,
    save_figure,
)
from lengthwise.evaluation.forecast.certificate import UNTRAINED_IDS
from lengthwise.evaluation.result_rows import Rows
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import COMPARISONS, recipe
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_evaluation import diagnose_run

# Number of examples per diagnosis, and characters per line of a cause in the figure.
NUM_EXAMPLES, CAUSE_CHARACTERS = 256, 34
# Names of causes in saved measurements that differ from the current names.
SAVED_CAUSE_NAMES = {
    MORE_IDS: "more different IDs than training showed",
    UNTRAINED_IDS: "IDs or distances that training did not show",
    TOKENS_OR_IDS: "the number of tokens and the IDs, each of which is enough to fail by",
    ID_ERRORS: "IDs that it predicts wrong",
}


def _build_experiments() -> dict[str, Experiment]:
    """Return experiments with known causes of failure at their longest test length, which the diagnosis uses."""
    recall = recipe("recall")
    cases = {
        "recall, NoPE": (replace(recall, encoding=NoPE()), (32, 1024)),
        "recall, rotary": (replace(recall, encoding=Rotary()), (32, 128)),
        "copy, rotary": (COMPARISONS["which_copy"]()["sequential/rotary"], (20, 40)),
        "sparse parity, undiluted": (SPARSE_PARITY.experiments()["up to 4 bits, undiluted"], (50, 500)),
        "parity, PPC, no gaps": (PPC.experiments()["parity, gaps up to 0"], (20, 200)),
        "variables, PPC, 2 operands": (VARIABLE_ASSIGNMENT.experiments()["predicted (PPC), 2 operands"], (16, 160)),
    }
    base = EvaluationSettings(num_examples=(NUM_EXAMPLES,))
    settings = {label: replace(base, lengths=lengths) for label, (_, lengths) in cases.items()}
    return {label: replace(experiment, evaluation=settings[label]) for label, (experiment, _) in cases.items()}


def _measure_run(run: Run, rows: Rows) -> Mapping[str, Any]:
    diagnosis = diagnose_run(run, max(row["length"] for row in rows), num_examples=NUM_EXAMPLES)
    failures = diagnosis.failures
    return {
        "length": diagnosis.length,
        "exact_match": diagnosis.by_length[-1].exact_match,
        "first_errors": {}
        if failures is None
        else {"token": failures.token, "ID": failures.id, "end": failures.end_too_early + failures.end_too_late},
        "repaired": {SAVED_CAUSE_NAMES.get(cause.name, cause.name): cause.repair_rate for cause in diagnosis.causes},
        "mass": {str(result.length): max(result.needed_mass, default=0.0) for result in diagnosis.by_length},
        "limited_by": diagnosis.limited_by,
    }


def _cause_names(measurements: Rows) -> list[str]:
    return list(dict.fromkeys(name for measurement in measurements for name in measurement["repaired"]))


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    causes, body = _cause_names(measurements), []
    for measurement in measurements:
        errors = ", ".join(f"{count} {kind}" for kind, count in measurement["first_errors"].items() if count)
        repair_rates = [
            f"{measurement['repaired'][name]:.2f}" if name in measurement["repaired"] else "-" for name in causes
        ]
        masses = list(measurement["mass"].values())
        attention = f"{masses[0]:.2f}, {masses[-1]:.2f}"
        start = [
            measurement["row"],
            str(measurement["seed"]),
            f"{measurement['length']:,}",
            f"{measurement['exact_match']:.3f}",
        ]
        body.append([*start, errors or "none", *repair_rates, attention, measurement["limited_by"]])
    header = ["row", "seed", "length", "exact match", "first errors", *causes, "attention", "limited by"]
    title = (
        "first errors, the fraction that each intervention repairs, and attention on the needed tokens, near and far"
    )
    return [(title, header, body)]


def _draw_figure(rows: Rows, measurements: Rows, folder: Path, title: str) -> Path:
    """Draw one panel per row label: the fraction of first errors that each intervention repairs, one point per seed."""
    # Importing matplotlib takes a second, and most commands draw no figure.
    from matplotlib.figure import Figure  # noqa: PLC0415

    causes, labels = _cause_names(measurements), list(dict.fromkeys(measurement["row"] for measurement in measurements))
    cause_texts = [textwrap.fill(cause, CAUSE_CHARACTERS) for cause in causes]
    bar_height = 0.05 + LINE_HEIGHT * max(text.count("\n") + 1 for text in cause_texts)
    panel_height = 0.55 + bar_height * len(causes)
    figure = Figure(figsize=(FIGURE_WIDTH, 0.7 + panel_height * len(labels)), layout="constrained")
    all_axes = figure.subplots(len(labels), squeeze=False)[:, 0]
    for axes, label in zip(all_axes, labels, strict=True):
        panel = [measurement for measurement in measurements if measurement["row"] == label]
        for cause_index, name in enumerate(causes):
            # A cause without first errors of its kind repairs none of the run's errors.
            failing = [measurement["repaired"] for measurement in panel if measurement["repaired"]]
            repair_rates, color = [repaired.get(name, 0.0) for repaired in failing], "0.4"
            if any(name in repaired for repaired in failing):
                axes.barh(cause_index, sum(repair_rates) / len(repair_rates), color=LINE_COLORS[cause_index], alpha=0.5)
                axes.plot(repair_rates, [cause_index] * len(repair_rates), "o", color=color, markersize=4)
        axes.set(xlim=(0, 1.02), ylim=(-0.6, len(causes) - 0.4))
        panel_title = f"{label}, length {panel[0]['length']:,}, {count_seeds([len(panel)])}"
        axes.set_title(panel_title, fontsize=FONT_SIZE, loc="left")
        axes.set_yticks(range(len(causes)), cause_texts)
        axes.tick_params(labelsize=FONT_SIZE)
    x_label = "fraction of first errors that the intervention repairs\n(bars: mean; points: seeds with errors)"
    all_axes[-1].set_xlabel(x_label, fontsize=FONT_SIZE)
    figure.suptitle(title, fontsize=FONT_SIZE + 1)
    return save_figure(figure, folder)


CLAIM = Claim(
    summary="causes of failure at a length: six runs with known causes, and their lengthwise diagnose output",
    paper="a reviewers' question",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1),
    full=SizePreset(num_seeds=3),
    measure=_measure_run,
    tables=_build_tables,
    draw=_draw_figure,
)
