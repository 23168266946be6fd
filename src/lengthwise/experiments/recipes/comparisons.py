"""Comparisons: several experiments by label, such as the demo and the grids of docs/which.md."""

from collections.abc import Iterable
from dataclasses import fields, replace
from functools import partial
from itertools import product

from lengthwise.core.randomness import random_stream
from lengthwise.encodings import ENCODINGS, FIRE, ALiBi, EncodingSettings, Learned, NoPE, YaRN
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.recipe_table import (
    COPY_RULE,
    MAX_GAPS,
    PARITY_NUM_POSITION_IDS,
    Recipe,
    evaluation_at_lengths,
    vary_recipe,
)
from lengthwise.experiments.recipes.tuned_encodings import (
    COPY_ENCODINGS,
    SHARP_DECODER,
    compare_ppc_with_encodings,
    until_fit_settings,
)
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES, DiscoveredCoupling, PositionScheme, Skipwise
from lengthwise.tasks import Addition, Copy, Parity, Task
from lengthwise.training.training_settings import TrainingSettings

# Context length of training of ``context_length``, and test lengths as multiples of it.
CONTEXT_LENGTH, CONTEXT_FACTORS = 256, (1, 2, 4, 8)
# Number of IDs of the grids, enough for the tokens of the longest test sequence; every table states it.
NUM_POSITION_IDS = 4096
# Test lengths of the grids, as multiples of the longest training length.
LENGTH_FACTORS = (1, 2, 5, 10, 100)
# Training steps of a run of a grid that does not fit earlier.
MAX_STEPS = 2000
# Scaling factor of YaRN beyond the training IDs, at evaluation only.
YARN_FACTOR = 10.0
SCHEME_NAMES = ("sequential", "skipwise", "randomized", "coupled", "predicted")
ENCODING_NAMES = ("nope", "learned", "rotary", "yarn", "alibi", "t5", "kerple_log", "fire")
ADDITION_ENCODINGS = ("nope", "rotary", "alibi", "fire")
# Task, longest training length and encodings of each grid.
GRID_TASKS: dict[str, tuple[type[Task], int, tuple[str, ...]]] = {
    "parity": (Parity, 20, ENCODING_NAMES),
    "copy": (Copy, 20, ENCODING_NAMES),
    "addition": (Addition, 10, ADDITION_ENCODINGS),
}


def demo() -> dict[str, Experiment]:
    """Return the comparison of PPC with common encodings on copying.

    The encodings have the best settings of ``benchmarks/fit_sweep.py``. PPC was tuned further, also at long lengths
    (``benchmarks/demo.md``). Its coupling was found in examples of the task.
    """
    ppc_experiment = vary_recipe(
        "parity",
        task=Copy(),
        scheme=DiscoveredCoupling(rule=COPY_RULE, num_position_ids=PARITY_NUM_POSITION_IDS, max_gaps=MAX_GAPS),
        # With a head dimension of 32 or 64, 1 of 4 tuning seeds fails at 20,000 symbols; with 128, none.
        decoder=DecoderSettings(d_model=128, num_heads=1),
        training=TrainingSettings(steps=1200, learning_rate=2e-3, weight_decay=0.1),
        train_lengths=(1, 10),
        evaluation=replace(
            evaluation_at_lengths(5, 10, 12, 20, 50, 200, 2000, 20_000, num=(512, 512, 512, 512, 512, 128, 16, 1)),
            stop_at_zero=True,
        ),
    )
    return compare_ppc_with_encodings(ppc_experiment, COPY_ENCODINGS)


def parity_id_range() -> dict[str, Experiment]:
    """Return parity recipes with different numbers of training IDs."""
    evaluation = evaluation_at_lengths(20, 200, 2000, 20_000, num=(128, 128, 32, 4))
    num_ids = {factor: round(factor * PARITY_NUM_POSITION_IDS) for factor in (0.1, 1, 4)}
    return {
        f"IDs to {factor:g}x": vary_recipe("parity", scheme={"num_position_ids": size}, evaluation=evaluation)
        for factor, size in num_ids.items()
    }


def context_length() -> dict[str, Experiment]:
    """Return language models with six encodings, and tests beyond the training context length."""
    lengths = tuple(factor * CONTEXT_LENGTH for factor in CONTEXT_FACTORS)
    rotary = vary_recipe(
        "language_model",
        training={"steps": 1000},
        train_lengths=(CONTEXT_LENGTH, CONTEXT_LENGTH),
        evaluation=evaluation_at_lengths(*lengths),
    )
    # Training uses plain rotary; the scaling applies at evaluation only.
    yarn = YaRN(factor=float(max(CONTEXT_FACTORS)), original_length=CONTEXT_LENGTH)
    return {
        "rotary": rotary,
        # One gap gives two chunks, as in the paper. The token after the longest window needs the additional ID.
        "rotary + PoSE": replace(rotary, scheme=Skipwise(num_position_ids=max(lengths) + 1, max_gaps=1)),
        "rotary + YaRN": replace(rotary, encoding=yarn),
        "ALiBi": replace(rotary, encoding=ALiBi()),
        "FIRE": replace(rotary, encoding=FIRE()),
        "NoPE": replace(rotary, encoding=NoPE()),
    }


def scheme_encoding_grid(task_name: str, pairs: Iterable[tuple[str, str]] | None = None) -> dict[str, Experiment]:
    """Return experiments with pairs of a scheme and an encoding, and the same decoder and training budget.

    By default, the pairs are those of the grid of the task in docs/which.md. Invalid pairs are left out.
    """
    task_class, max_train_length, encoding_names = GRID_TASKS[task_name]
    task = task_class()
    base_experiment = Experiment(
        task=task,
        decoder=replace(SHARP_DECODER, num_layers=2, num_heads=4),
        # Runs that fit stop early; other runs use all steps.
        training=until_fit_settings(MAX_STEPS),
        train_lengths=(1, max_train_length),
        evaluation=replace(
            evaluation_at_lengths(
                *(factor * max_train_length for factor in LENGTH_FACTORS), num=(128, 128, 128, 64, 4)
            ),
            stop_at_zero=True,
        ),
    )
    example = task.sample(length=max_train_length, size=1, rng=random_stream(0, "tokens of the longest example"))
    experiments = {}
    for scheme_name, encoding_name in product(SCHEME_NAMES, encoding_names) if pairs is None else pairs:
        scheme = _build_scheme(scheme_name)
        encoding = _build_encoding(encoding_name, scheme.num_position_ids or example.tokens.shape[1])
        # Without an encoding, IDs matter only to a head that predicts them.
        ignores_ids = encoding_name == "nope" and scheme_name not in ("sequential", "predicted")
        if not ignores_ids and (encoding.real_valued or not scheme.real_valued):
            experiments[f"{scheme_name}/{encoding_name}"] = replace(base_experiment, scheme=scheme, encoding=encoding)
    return experiments


def _build_scheme(name: str) -> PositionScheme:
    settings = {"num_position_ids": NUM_POSITION_IDS, "max_gaps": MAX_GAPS}
    setting_names = {setting_field.name for setting_field in fields(SCHEMES[name])}  # type: ignore[arg-type]
    return SCHEMES[name](**{setting: value for setting, value in settings.items() if setting in setting_names})


def _build_encoding(name: str, num_train_ids: int) -> EncodingSettings:
    if name == "learned":
        return Learned(num_position_ids=NUM_POSITION_IDS)
    return YaRN(factor=YARN_FACTOR, original_length=num_train_ids) if name == "yarn" else ENCODINGS[name]()


COMPARISONS: dict[str, Recipe[dict[str, Experiment]]] = {
    "demo": Recipe(
        "Comparison of PPC with common encodings on copying; all fit their training lengths of up to 10.", demo
    ),
    "parity_id_range": Recipe(
        "Comparison of parity recipes whose training IDs reach 0.1, 1 and 4 times the evaluation IDs.", parity_id_range
    ),
    "which_parity": Recipe(
        "Grid of five schemes and eight encodings on parity with a scratchpad.", partial(scheme_encoding_grid, "parity")
    ),
    "which_copy": Recipe("Grid of five schemes and eight encodings on copying.", partial(scheme_encoding_grid, "copy")),
    "which_addition": Recipe(
        "Grid of five schemes and four encodings on addition.", partial(scheme_encoding_grid, "addition")
    ),
    "context_length": Recipe(
        "Comparison of six encodings by perplexity at up to eight times the training context length.", context_length
    ),
}
