"""Addition of two numbers, trained on up to 10 digits."""

from dataclasses import replace

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, Predicted
from lengthwise.tasks import Addition
from lengthwise.training.trainer import TrainingSettings

# IDs up to 1,000 digits and some room; declared in every table.
ID_RANGE = 2048
# Gaps nearly everywhere: each example shows ten distances instead of three, all of which a long sum has.
MAX_GAPS = 10


def addition() -> Experiment:
    """PPC in the plain format: no carries are written."""
    return Experiment(
        task=Addition(),
        scheme=Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
        # A carry depends on neighbouring digits: the angles have to tell neighbouring IDs apart sharply.
        encoding=Rotary(base=100.0, fastest=3.0),
        # A step mixes five tokens. Scores that grow with the length shift their shares, so the sharpness is fixed here.
        decoder=DecoderSettings(
            num_layers=1,
            d_model=128,
            num_heads=4,
            previous_token_mix=True,
            length_scaling="none",
            temperature=9.0,
        ),
        training=TrainingSettings(steps=2000, batch_size=128, weight_decay=0.1),
        train_lengths=(1, 10),
        evaluation=EvaluationSettings(lengths=(10, 100), num_examples=(256,), variants=("uniform", "carry", "unequal")),
    )


def addition_coupled() -> Experiment:
    """The same with all IDs given."""
    return replace(addition(), scheme=Coupled(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS))


def addition_carry() -> Experiment:
    """PPC with the carry written beside each digit."""
    return replace(addition(), task=Addition(scratchpad="carry"))
