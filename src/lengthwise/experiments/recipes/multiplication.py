"""Multiplication by a number of two digits, trained on first factors of up to 10 digits."""

from dataclasses import replace

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import MultiLevel, Predicted
from lengthwise.tasks import Multiplication
from lengthwise.training.trainer import TrainingSettings

# IDs on each level, places and rows: up to 250 digits; declared in every table.
ID_RANGE = 256
MAX_GAPS = 5


def multiplication() -> Experiment:
    """PPC on two levels: which place and which row comes next is predicted."""
    return Experiment(
        task=Multiplication(),
        scheme=Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
        encoding=Rotary(base=100.0, fastest=3.0),
        decoder=DecoderSettings(num_layers=1, d_model=128, num_heads=4, length_scaling="log", temperature=3.0),
        training=TrainingSettings(steps=2500, weight_decay=0.01),
        train_lengths=(1, 10),
        evaluation=EvaluationSettings(lengths=(10, 40, 100), num_examples=(256,)),
    )


def multiplication_given() -> Experiment:
    """The same with all IDs given."""
    return replace(multiplication(), scheme=MultiLevel(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS))
