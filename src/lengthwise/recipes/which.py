"""Which scheme and encoding extrapolates: every cell of the table with the same decoder and the same budget."""

from collections.abc import Mapping
from dataclasses import replace

from lengthwise.decoder import DecoderSettings
from lengthwise.encodings import (
    FIRE,
    ALiBi,
    EncodingSettings,
    KERPLELog,
    Learned,
    NoPE,
    Rotary,
    T5Bias,
    YaRN,
)
from lengthwise.evaluation import EvaluationSettings
from lengthwise.experiment import Experiment
from lengthwise.positions import Coupled, PositionScheme, Predicted, Randomized, Sequential, Skipwise
from lengthwise.randomness import stream
from lengthwise.tasks import Addition, Copy, Parity, Task
from lengthwise.training import TrainingSettings

# IDs up to the longest test, in tokens; declared in every table.
ID_RANGE = 4096
MAX_GAPS = 10
# How many times longer than the longest training example a test is.
FACTORS = (1, 2, 5, 10, 100)

SCHEMES: Mapping[str, PositionScheme] = {
    "sequential": Sequential(),
    "skipwise": Skipwise(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
    "randomized": Randomized(num_position_ids=ID_RANGE),
    "coupled": Coupled(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
    "predicted": Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
}
ENCODINGS: Mapping[str, EncodingSettings] = {
    "nope": NoPE(),
    "learned": Learned(num_position_ids=ID_RANGE),
    "rotary": Rotary(),
    # At evaluation alone, ten times further than training showed; ``_cells`` says what that was.
    "yarn": YaRN(factor=10.0),
    "alibi": ALiBi(),
    "t5": T5Bias(),
    "kerple_log": KERPLELog(),
    "fire": FIRE(),
}


def which_parity() -> dict[str, Experiment]:
    """Parity with scratchpad: five schemes, eight encodings."""
    return _cells(Parity(), 20, ENCODINGS)


def which_copy() -> dict[str, Experiment]:
    """Copy: five schemes, eight encodings."""
    return _cells(Copy(), 20, ENCODINGS)


def which_addition() -> dict[str, Experiment]:
    """Addition: five schemes, four encodings."""
    return _cells(Addition(), 10, {name: ENCODINGS[name] for name in ("nope", "rotary", "alibi", "fire")})


def _cells(task: Task, longest: int, encodings: Mapping[str, EncodingSettings]) -> dict[str, Experiment]:
    base = Experiment(
        task=task,
        decoder=DecoderSettings(
            num_layers=2, d_model=64, num_heads=4, previous_token_mix=True, length_scaling="none", temperature=9.0
        ),
        # What fits early ends early, what does not gets the whole budget.
        training=TrainingSettings(steps=2000, weight_decay=0.1, fit_every=100, cooldown_steps=300),
        train_lengths=(1, longest),
        evaluation=EvaluationSettings(
            lengths=tuple(factor * longest for factor in FACTORS), num_examples=(128, 128, 128, 64, 4), until_none=True
        ),
    )
    tokens = task.sample(length=longest, size=1, rng=stream(0, "tokens of the longest example")).tokens.shape[1]

    def encoding_for(name: str, scheme: PositionScheme) -> EncodingSettings:
        encoding = encodings[name]
        if isinstance(encoding, YaRN):
            return replace(encoding, original_length=scheme.num_position_ids or tokens)
        return encoding

    return {
        f"{scheme}/{encoding}": replace(base, scheme=SCHEMES[scheme], encoding=encoding_for(encoding, SCHEMES[scheme]))
        for scheme in SCHEMES
        for encoding in encodings
        # Without an encoding the IDs are not read: only a head that predicts them makes a difference.
        if encoding != "nope" or scheme in ("sequential", "predicted")
    }
