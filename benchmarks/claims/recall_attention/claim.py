"""Claim on recall by attention option and encoding, with one query, and with several queries in fuller texts."""

from dataclasses import replace
from typing import Any

from claims.longest_exact import EXACT_MATCH_THRESHOLD, format_longest_exact, measure_longest_exact

from lengthwise.encodings import NAPE, ALiBi, DAPEv2, EncodingSettings, NoPE, Rotary, Weave
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.result_rows import Rows
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproduction import Claim, SizePreset, Table

# Test lengths in training lengths, and the number of examples at each.
MULTIPLES = (1, 4, 16, 64, 256, 1024)
NUM_EXAMPLES = (512, 256, 128, 32, 4, 2)
# Longest test of options that compute a bias or store all scores: its time grows with the square of the length.
MAX_MULTIPLE_WITH_SCORES = 256
MAX_LAPTOP_MULTIPLE = 64
# Recipe by task; the first task is that of the laptop size.
RECIPES = {"one of four": "recall", "MQMTAR": "multi_query_recall"}
# Weave keeps the distances of the longest test within those of training.
WEAVE = Weave(window=16, width=1024)
# Encoding and changes of the decoder by label.
OPTIONS: dict[str, tuple[EncodingSettings, dict[str, Any]]] = {
    "NoPE": (NoPE(), {}),
    "NoPE, log scaling": (NoPE(), {"length_scaling": "log"}),
    "NoPE, top-k": (NoPE(), {"weights": "top_k"}),
    "NoPE, entmax": (NoPE(), {"weights": "entmax"}),
    "NAPE, log scaling": (NAPE(), {"length_scaling": "log"}),
    "NAPE, scalable entmax": (NAPE(), {"weights": "entmax", "length_scaling": "learned"}),
    "ALiBi": (ALiBi(), {}),
    "DAPE V2": (DAPEv2(), {}),
    "rotary": (Rotary(), {}),
    "rotary, weave": (WEAVE, {}),
}


def _build_experiments() -> dict[str, Experiment]:
    """Return one experiment per task and option; all options of a task have the same size and training."""
    experiments = {}
    for task, recipe_name in RECIPES.items():
        base = recipe(recipe_name)
        train_length = base.train_lengths[1]
        evaluation = EvaluationSettings(
            lengths=tuple(multiple * train_length for multiple in MULTIPLES), num_examples=NUM_EXAMPLES
        )
        for option, (encoding, changes) in OPTIONS.items():
            is_fast = isinstance(encoding, NoPE | Rotary) and "weights" not in changes
            max_multiple = MULTIPLES[-1] if is_fast else MAX_MULTIPLE_WITH_SCORES
            experiments[f"{task}, {option}"] = replace(
                base,
                encoding=encoding,
                decoder=replace(base.decoder, **changes),
                evaluation=evaluation.with_max_length(max_multiple * train_length),
            )
    return experiments


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    """Return the reach of every seed by option."""
    body = []
    for label in dict.fromkeys(measurement["row"] for measurement in measurements):
        runs = [measurement for measurement in measurements if measurement["row"] == label]
        cells = [format_longest_exact(run) for run in runs]
        body.append([label, ", ".join(f"{run['steps']:,}" for run in runs), ", ".join(cells)])
    title = f"longest exact length in training lengths, at exact match {EXACT_MATCH_THRESHOLD} or more, by seed"
    return [(title, ["row", "steps", "longest exact"], body)]


CLAIM = Claim(
    summary="recall by attention option and encoding, up to 1,024 times the training length; several queries (MQMTAR)",
    paper="tasks of Arora et al. 2024 (arXiv 2312.04927) and Vasylenko et al. 2025 (arXiv 2506.16640)",
    experiments=_build_experiments,
    laptop=SizePreset(
        num_seeds=1,
        labels=tuple(f"one of four, {option}" for option in OPTIONS),
        max_length=MAX_LAPTOP_MULTIPLE * recipe("recall").train_lengths[1],
    ),
    full=SizePreset(num_seeds=3),
    measure=measure_longest_exact,
    tables=_build_tables,
)
