"""Which scheme and encoding extrapolates: every cell of the table with the same decoder and the same budget."""

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
from lengthwise.training.trainer import TrainingSettings

# IDs up to the longest test, in tokens; declared in every table.
ID_RANGE = 4096
MAX_GAPS = 10
# How many times longer than the longest training example a test is.
FACTORS = (1, 2, 5, 10, 100)
# The budget of a run that does not fit before.
STEPS = 2000
# How many times further than training showed YaRN scales, at evaluation alone.
YARN_FACTOR = 10.0

# The table's columns and rows.
COLUMNS = ("sequential", "skipwise", "randomized", "coupled", "predicted")
LINES = ("nope", "learned", "rotary", "yarn", "alibi", "t5", "kerple_log", "fire")
ADDITION_LINES = ("nope", "rotary", "alibi", "fire")

LONGEST: dict[str, tuple[Task, int]] = {"parity": (Parity(), 20), "copy": (Copy(), 20), "addition": (Addition(), 10)}


def which_parity() -> dict[str, Experiment]:
    """Parity with scratchpad: five schemes, eight encodings."""
    return _cells("parity", product(COLUMNS, LINES))


def which_copy() -> dict[str, Experiment]:
    """Copy: five schemes, eight encodings."""
    return _cells("copy", product(COLUMNS, LINES))


def which_addition() -> dict[str, Experiment]:
    """Addition: five schemes, four encodings."""
    return _cells("addition", product(COLUMNS, ADDITION_LINES))


def which_remaining(task: str) -> dict[str, Experiment]:
    """Every other pair of a scheme and an encoding that go together, on one of the table's tasks."""
    known = set(product(COLUMNS, ADDITION_LINES if task == "addition" else LINES))
    # On one level, multilevel is coupled.
    pairs = product([name for name in SCHEMES if name != "multilevel"], ENCODINGS)
    return _cells(task, (pair for pair in pairs if pair not in known))


def _cells(task: str, pairs: Iterable[tuple[str, str]]) -> dict[str, Experiment]:
    built, longest = LONGEST[task]
    base = Experiment(
        task=built,
        decoder=DecoderSettings(
            num_layers=2, d_model=64, num_heads=4, previous_token_mix=True, length_scaling="none", temperature=9.0
        ),
        # What fits early ends early, what does not gets the whole budget.
        training=TrainingSettings(steps=STEPS, weight_decay=0.1, fit_every=100, cooldown_steps=300),
        train_lengths=(1, longest),
        evaluation=EvaluationSettings(
            lengths=tuple(factor * longest for factor in FACTORS), num_examples=(128, 128, 128, 64, 4), until_none=True
        ),
    )
    tokens = built.sample(length=longest, size=1, rng=stream(0, "tokens of the longest example")).tokens.shape[1]
    cells = {}
    for scheme_name, encoding_name in pairs:
        scheme = _scheme(scheme_name)
        encoding = _encoding(encoding_name, scheme.num_position_ids or tokens)
        # Without an encoding the IDs are not read: only a head that predicts them makes a difference.
        unread = encoding_name == "nope" and scheme_name not in ("sequential", "predicted")
        if not unread and (encoding.real_valued or not scheme.real_valued):
            cells[f"{scheme_name}/{encoding_name}"] = replace(base, scheme=scheme, encoding=encoding)
    return cells


def _scheme(name: str) -> PositionScheme:
    wanted = {"num_position_ids": ID_RANGE, "max_gaps": MAX_GAPS}
    known = {part.name for part in fields(SCHEMES[name])}  # type: ignore[arg-type]
    return SCHEMES[name](**{setting: value for setting, value in wanted.items() if setting in known})


def _encoding(name: str, ids_met: int) -> EncodingSettings:
    if name == "learned":
        return Learned(num_position_ids=ID_RANGE)
    return YaRN(factor=YARN_FACTOR, original_length=ids_met) if name == "yarn" else ENCODINGS[name]()
