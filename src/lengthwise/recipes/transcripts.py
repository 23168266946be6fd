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
# As for parity: gaps nearly everywhere, fast angles.
MAX_GAPS = 10


def copy() -> Experiment:
    """PPC on copying."""
    return Experiment(
        task=Copy(),
        scheme=Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
        encoding=Rotary(base=100.0, fastest=3.0),
        decoder=DecoderSettings(num_layers=1, d_model=64, num_heads=2),
        training=TrainingSettings(steps=1000, weight_decay=0.1),
        train_lengths=(1, 20),
        evaluation=EvaluationSettings(lengths=(20, 200, 2000), num_examples=(512,)),
    )


def reverse() -> Experiment:
    """PPC on writing backwards."""
    return replace(copy(), task=Reverse())
