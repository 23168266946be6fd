"""The claim about recall (a reviewer's extreme case): needles in a growing haystack, and why they are lost."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.tables_and_figures import Rows
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproductions.claim import Claim, Size, Table
from lengthwise.experiments.run import Run
from lengthwise.experiments.run_analysis import diagnose_run
from lengthwise.tasks import Recall

KINDS = {
    "needle": Recall(num_pairs=1),
    "one of four": Recall(),
    "four of eight": Recall(num_pairs=8, num_queries=4),
}
# Examples that a diagnosis looks at.
EXAMPLES = 64


def _experiments() -> dict[str, Experiment]:
    """NoPE with and without scores that grow with the length; rotary beside them."""
    tests = EvaluationSettings(lengths=(32, 64, 128, 512, 2048), num_examples=(512, 512, 512, 256, 64))
    rows = {}
    for kind, task in KINDS.items():
        plain = replace(recipe("recall"), task=task, evaluation=tests)
        sharp = replace(plain, decoder=replace(plain.decoder, length_scaling="log"))
        rows[kind] = plain
        rows[f"{kind}, log scaling"] = sharp
        rows[f"{kind}, rotary, log scaling"] = replace(sharp, encoding=Rotary())
    return rows


def _read(run: Run, rows: Rows) -> Mapping[str, Any]:
    """The attention of the head that looks at what is needed most, by length, and what the failures come from."""
    found = diagnose_run(run, max(row["length"] for row in rows), num_examples=EXAMPLES)
    return {
        "mass": {str(each.length): max(each.mass, default=0.0) for each in found.by_length},
        "limited_by": found.limited_by,
    }


def _tables(rows: Rows, readings: Rows) -> list[Table]:
    lengths = sorted({int(length) for reading in readings for length in reading["mass"]})
    body = []
    for reading in readings:
        mass = [f"{reading['mass'][str(each)]:.3f}" if str(each) in reading["mass"] else "-" for each in lengths]
        body.append([reading["row"], str(reading["seed"]), *mass, reading["limited_by"]])
    title = "attention of the best head on what an answer needs, by length, and what limits the run"
    return [(title, ["row", "seed", *(f"{length:,}" for length in lengths), "limited by"], body)]


RECALL = Claim(
    name="recall",
    summary="needles in a haystack, one question or several, to 64 times the length; how attention dilutes",
    paper="a reviewer's question (k = 1); tasks after Arora et al. 2024 (arXiv 2312.04927)",
    experiments=_experiments,
    laptop=Size(
        num_seeds=1,
        rows=("needle", "needle, log scaling", "one of four, log scaling", "four of eight, log scaling"),
        longest=512,
    ),
    read=_read,
    tables=_tables,
)
