"""Copy and reverse, trained on up to 20 symbols."""

from dataclasses import replace

from lengthwise.decoder import DecoderSettings
from lengthwise.encodings import Rotary
from lengthwise.evaluation import EvaluationSettings
from lengthwise.experiment import Experiment
from lengthwise.positions import Predicted
from lengthwise.tasks import Copy, Reverse
from lengthwise.training import TrainingSettings

# IDs up to 2,000 symbols and some room; declared in every table.
ID_RANGE = 4096


def copy() -> Experiment:
    """PPC on copying."""
    return Experiment(
        task=Copy(),
        scheme=Predicted(num_position_ids=ID_RANGE),
        encoding=Rotary(),
        decoder=DecoderSettings(num_layers=1, d_model=64, num_heads=2),
        training=TrainingSettings(steps=1000),
        train_lengths=(1, 20),
        evaluation=EvaluationSettings(lengths=(20, 200, 2000), num_examples=(512,)),
    )


def reverse() -> Experiment:
    """PPC on writing backwards."""
    return replace(copy(), task=Reverse())
