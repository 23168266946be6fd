"""Sort, trained on lists of up to 10 items."""

from dataclasses import replace

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, Predicted
from lengthwise.tasks import Sort
from lengthwise.training.trainer import TrainingSettings

# IDs for lists far longer than there are different values; declared in every table.
ID_RANGE = 512
MAX_GAPS = 10


def sort() -> Experiment:
    """PPC: which item is next is found by the head, the decoder copies it."""
    return Experiment(
        task=Sort(),
        scheme=Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
        encoding=Rotary(base=100.0, fastest=3.0),
        # No other head can say which of two values is the larger one.
        decoder=DecoderSettings(num_layers=1, d_model=64, num_heads=2, head="search"),
        # Two values that are neighbours in a long list are rarely both in a short one: it takes many lists.
        training=TrainingSettings(steps=2000, batch_size=256, weight_decay=0.01),
        train_lengths=(1, 10),
        evaluation=EvaluationSettings(lengths=(10, 20, 40, 64), num_examples=(256,)),
    )


def sort_given() -> Experiment:
    """The same with all IDs given, which tells the order: what is left is copying."""
    return replace(sort(), scheme=Coupled(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS))
