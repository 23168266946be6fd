"""Grids of position schemes and encodings with the same decoder and training budget, as in docs/which.md."""

from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import product

from lengthwise.core.randomness import stream
from lengthwise.encodings import ENCODINGS, EncodingSettings, Learned, YaRN
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES, PositionScheme
from lengthwise.tasks import Addition, Copy, Parity, Task
from lengthwise.training.training_settings import TrainingSettings

# Number of IDs, enough for the tokens of the longest test sequence; every table states it.
NUM_POSITION_IDS = 4096
MAX_GAPS = 10
# Test lengths, as multiples of the longest training length.
LENGTH_FACTORS = (1, 2, 5, 10, 100)
# Training steps of a run that does not fit earlier.
MAX_STEPS = 2000
# Scaling factor of YaRN beyond the training IDs, at evaluation only.
YARN_FACTOR = 10.0

SCHEME_NAMES = ("sequential", "skipwise", "randomized", "coupled", "predicted")
ENCODING_NAMES = ("nope", "learned", "rotary", "yarn", "alibi", "t5", "kerple_log", "fire")
ADDITION_ENCODINGS = ("nope", "rotary", "alibi", "fire")

# Task and longest training length of each grid.
GRID_TASKS: dict[str, tuple[type[Task], int]] = {"parity": (Parity, 20), "copy": (Copy, 20), "addition": (Addition, 10)}


def parity_grid() -> dict[str, Experiment]:
    """Return the grid of five schemes and eight encodings on parity with a scratchpad."""
    return _build_grid("parity", product(SCHEME_NAMES, ENCODING_NAMES))


def copy_grid() -> dict[str, Experiment]:
    """Return the grid of five schemes and eight encodings on copying."""
    return _build_grid("copy", product(SCHEME_NAMES, ENCODING_NAMES))


def addition_grid() -> dict[str, Experiment]:
    """Return the grid of five schemes and four encodings on addition."""
    return _build_grid("addition", product(SCHEME_NAMES, ADDITION_ENCODINGS))


def remaining_pairs_grid(task: str) -> dict[str, Experiment]:
    """Return experiments for the valid pairs of a scheme and an encoding that are not in the grid of the task."""
    table_pairs = set(product(SCHEME_NAMES, ADDITION_ENCODINGS if task == "addition" else ENCODING_NAMES))
    # With one level, multilevel equals coupled.
    all_pairs = product([name for name in SCHEMES if name != "multilevel"], ENCODINGS)
    return _build_grid(task, (pair for pair in all_pairs if pair not in table_pairs))


def _build_grid(task_name: str, pairs: Iterable[tuple[str, str]]) -> dict[str, Experiment]:
    task_class, max_train_length = GRID_TASKS[task_name]
    task = task_class()
    base_experiment = Experiment(
        task=task,
        decoder=DecoderSettings(
            num_layers=2, d_model=64, num_heads=4, previous_token_mix=True, length_scaling="none", temperature=9.0
        ),
        # Runs that fit stop early; other runs use all steps.
        training=TrainingSettings(steps=MAX_STEPS, weight_decay=0.1, fit_every=100, cooldown_steps=300),
        train_lengths=(1, max_train_length),
        evaluation=EvaluationSettings(
            lengths=tuple(factor * max_train_length for factor in LENGTH_FACTORS),
            num_examples=(128, 128, 128, 64, 4),
            stop_at_zero=True,
        ),
    )
    example = task.sample(length=max_train_length, size=1, rng=stream(0, "tokens of the longest example"))
    experiments = {}
    for scheme_name, encoding_name in pairs:
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


COMPARISONS = {"which_parity": parity_grid, "which_copy": copy_grid, "which_addition": addition_grid}
