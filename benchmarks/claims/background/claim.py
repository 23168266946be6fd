"""Claim on the background of planted tokens: a Markov chain or a natural text instead of independent letters."""

from dataclasses import replace
from pathlib import Path

from claims.longest_exact import EXACT_MATCH_THRESHOLD

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.evaluation.result_rows import FIT_THRESHOLD, Rows, label_without_variant, longest_exact_length
from lengthwise.evaluation.tables_and_figures import draw_result_figure
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.recipe_table import sparse_parity_up_to
from lengthwise.experiments.reproduction import Claim, SizePreset, Table
from lengthwise.positions import Skipwise
from lengthwise.tasks import Background, MarkovChain, NaturalText, SparseParity

# Number of flagged bits in the tests, and the largest number in training.
NUM_BITS = 3
NUM_LETTERS = 26
# A letter is repeated, followed by the next letter, or followed by any letter, with these probabilities.
REPEAT, FOLLOW, ANY = 0.5, 0.3, 0.2
# English text on every machine: the documentation of Python.
CORPUS = "stdlib:pydoc_data/topics.py"
METHODS = ("NoPE", "rotary", "rotary + PoSE")
INDEPENDENT, MARKOV, NATURAL = "independent letters", "Markov chain", "English text"


def _build_chain() -> MarkovChain:
    """Return a chain whose letters are equally frequent, as the independent letters are."""
    rows = [
        tuple(
            ANY / NUM_LETTERS + REPEAT * (letter == other) + FOLLOW * (other == (letter + 1) % NUM_LETTERS)
            for other in range(NUM_LETTERS)
        )
        for letter in range(NUM_LETTERS)
    ]
    return MarkovChain(transitions=tuple(rows))


def _build_experiments() -> dict[str, Experiment]:
    """Return sparse parity among letters with three ways to encode positions, in three backgrounds."""
    backgrounds: dict[str, Background | None] = {
        INDEPENDENT: None,
        MARKOV: _build_chain(),
        NATURAL: NaturalText(num_frequent=NUM_LETTERS, corpus=CORPUS),
    }
    base = sparse_parity_up_to(NUM_BITS, coding="letters", test_bits=(NUM_BITS,))
    assert isinstance(base.task, SparseParity)
    experiments = {}
    for name, background in backgrounds.items():
        task = replace(base.task, num_letters=NUM_LETTERS, background=background)
        plain = replace(
            base,
            task=task,
            decoder=replace(base.decoder, d_model=64, num_heads=2),
            training=replace(base.training, steps=2500, cooldown_steps=400),
            evaluation=EvaluationSettings(
                lengths=(50, 100, 200, 500, 2000),
                num_examples=(512, 512, 512, 512, 64),
                variants=(f"flagged-{NUM_BITS}",),
            ),
        )
        rotary = replace(plain, encoding=Rotary())
        experiments[f"NoPE, {name}"] = plain
        experiments[f"rotary, {name}"] = rotary
        experiments[f"rotary + PoSE, {name}"] = replace(rotary, scheme=Skipwise(num_position_ids=4096))
    return experiments


def _build_tables(rows: Rows, measurements: Rows) -> list[Table]:
    """Return the reach of every seed, with a line per method and a column per background."""
    body = []
    for method in METHODS:
        labels = [f"{method}, {background}" for background in (INDEPENDENT, MARKOV, NATURAL)]
        cells = [[row for row in rows if label_without_variant(row) == label] for label in labels]
        if any(cells):
            body.append([method, *(_format_longest_exact(cell) or "-" for cell in cells)])
    title = f"longest test length with exact match {EXACT_MATCH_THRESHOLD} or more up to it, by seed"
    return [(title, ["method", INDEPENDENT, MARKOV, NATURAL], body)]


def _format_longest_exact(rows: Rows) -> str:
    by_seed = [[row for row in rows if row["seed"] == seed] for seed in sorted({row["seed"] for row in rows})]
    return ", ".join(
        f"{longest_exact_length(run_rows, EXACT_MATCH_THRESHOLD):,}"
        + ("" if run_rows[0]["fitted"] >= FIT_THRESHOLD else " (does not fit)")
        for run_rows in by_seed
    )


def _draw_figure(rows: Rows, measurements: Rows, folder: Path, title: str) -> Path:
    """Draw exact match by length, with a panel per background."""
    panels = []
    for row in rows:
        method, _, background = label_without_variant(row).partition(", ")
        panels.append({**row, "row": method, "variant": background})
    return draw_result_figure(panels, folder, title)


CLAIM = Claim(
    summary="parity of planted bits in independent letters, in a Markov chain and in text, to 40 times the length",
    paper="a question of a reviewer; the task follows section 5.1",
    experiments=_build_experiments,
    laptop=SizePreset(
        num_seeds=1,
        labels=tuple(f"{method}, {name}" for name in (INDEPENDENT, MARKOV, NATURAL) for method in METHODS[:2]),
        max_length=500,
    ),
    full=SizePreset(num_seeds=3),
    tables=_build_tables,
    draw=_draw_figure,
)
