"""Claim on recall with several queries in texts with more pairs: how far each attention option and encoding reaches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lengthwise.encodings import NAPE, ALiBi, DAPEv2, EncodingSettings, Rotary, Weave
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, longest_exact_length
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproductions.reproduction import Claim, SizePreset, Table
from lengthwise.experiments.run import Run

TRAIN_LENGTHS = (32, 64)
# Test lengths up to 1,024 times the longest training length, and the number of examples at each.
LENGTHS = (64, 128, 256, 512, 1024, 4096, 16_384, 65_536)
NUM_EXAMPLES = (512, 256, 128, 64, 64, 16, 4, 2)
# Longest test of options that store all scores: the time of a test grows with the square of its length.
MAX_LENGTH_WITH_SCORES = 16_384
# Window and steps of weave that keep the distances of the longest test length within those of training.
WEAVE = Weave(window=32, width=2048)
EXACT_MATCH_THRESHOLD = 0.9
# Encoding and changes of the decoder by label.
OPTIONS: dict[str, tuple[EncodingSettings, dict[str, Any]]] = {
    "NAPE": (NAPE(), {}),
    "NAPE, log scaling": (NAPE(), {"length_scaling": "log"}),
    "NAPE, top-k": (NAPE(), {"weights": "top_k"}),
    "NAPE, entmax": (NAPE(), {"weights": "entmax"}),
    "NAPE, scalable entmax": (NAPE(), {"weights": "entmax", "length_scaling": "learned"}),
    "ALiBi": (ALiBi(), {}),
    "DAPE V2": (DAPEv2(), {}),
    "rotary": (Rotary(), {}),
    "rotary, weave": (WEAVE, {}),
}


def _build_experiments() -> dict[str, Experiment]:
    """Return one experiment per option; all have the same task, size and training."""
    base = replace(recipe("multi_query_recall"), evaluation=_evaluation())
    experiments = {}
    for label, (encoding, options) in OPTIONS.items():
        stores_scores = "weights" in options or isinstance(encoding, DAPEv2 | Weave)
        evaluation = base.evaluation.up_to(MAX_LENGTH_WITH_SCORES) if stores_scores else base.evaluation
        decoder = replace(base.decoder, **options)
        experiments[label] = replace(base, encoding=encoding, decoder=decoder, evaluation=evaluation)
    return experiments


def _evaluation() -> EvaluationSettings:
    return EvaluationSettings(lengths=LENGTHS, num_examples=NUM_EXAMPLES, stop_at_zero=True)


def _extract_reading(run: Run, rows: Rows) -> Mapping[str, Any]:
    """Return the steps, whether the run fits, and its reach in training lengths."""
    return {
        "steps": run.facts["steps"],
        "fits": run.facts["fitted"] >= FIT_THRESHOLD,
        "reached": longest_exact_length(rows, EXACT_MATCH_THRESHOLD) / TRAIN_LENGTHS[1],
    }


def _build_tables(rows: Rows, readings: Rows) -> list[Table]:
    """Return the reach of every seed by option."""
    body = []
    for label in dict.fromkeys(reading["row"] for reading in readings):
        runs = [reading for reading in readings if reading["row"] == label]
        cells = [f"{run['reached']:g}x" + ("" if run["fits"] else " (does not fit)") for run in runs]
        body.append([label, ", ".join(f"{run['steps']:,}" for run in runs), ", ".join(cells)])
    title = f"reach in training lengths at exact match {EXACT_MATCH_THRESHOLD} or more, by seed"
    return [(title, ["row", "steps", "reach"], body)]


RECALL_ATTENTION = Claim(
    name="recall_attention",
    summary="recall with four queries and more pairs in longer texts (MQMTAR), by attention option and encoding",
    paper="task of Vasylenko et al. 2025 (arXiv 2506.16640)",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, max_length=1024),
    full=SizePreset(num_seeds=3),
    read=_extract_reading,
    tables=_build_tables,
)
