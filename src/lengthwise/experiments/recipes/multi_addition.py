"""Addition of several numbers, trained on 2 to 5 operands of up to 5 digits."""

from dataclasses import replace

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import MultiLevel, Predicted
from lengthwise.tasks import MultiAddition
from lengthwise.training.trainer import TrainingSettings

# IDs on each level, digits and rows: up to 60 of each and their signs; declared in every table.
ID_RANGE = 64
MAX_GAPS = 5


def multi_addition() -> Experiment:
    """PPC on two levels: which digit and which row comes next is predicted."""
    return Experiment(
        task=MultiAddition(),
        scheme=Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
        encoding=Rotary(base=100.0, fastest=3.0),
        # More rows than trained compete for attention here: the log factor keeps it sharp, and a flat start would be as
        # right on 5 rows and fail on 10 (benchmarks/multi_addition.md).
        decoder=DecoderSettings(num_layers=1, d_model=128, num_heads=4, length_scaling="log", temperature=3.0),
        training=TrainingSettings(steps=3000, weight_decay=0.01),
        train_lengths=(1, 5),
        evaluation=EvaluationSettings(lengths=(5, 10, 15), num_examples=(256,), variants=("5 operands", "10 operands")),
    )


def multi_addition_given() -> Experiment:
    """The same with all IDs given."""
    return replace(multi_addition(), scheme=MultiLevel(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS))
