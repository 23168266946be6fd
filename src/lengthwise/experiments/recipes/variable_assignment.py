"""Variable assignment with a scratchpad, trained on up to 16 assignments."""

from dataclasses import replace

from lengthwise.encodings import Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, Predicted
from lengthwise.tasks import VariableAssignment
from lengthwise.training.trainer import TrainingSettings

# IDs up to 2,000 assignments and the question; declared in every table.
ID_RANGE = 2048
MAX_GAPS = 10


def variable_assignment() -> Experiment:
    """PPC: which assignment comes next depends on the content, and the decoder predicts it."""
    return Experiment(
        task=VariableAssignment(),
        scheme=Predicted(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS),
        encoding=Rotary(base=100.0, fastest=3.0),
        decoder=DecoderSettings(
            num_layers=1, d_model=128, num_heads=4, previous_token_mix=True, tied_output=True, temperature=2.0
        ),
        training=TrainingSettings(steps=1500),
        train_lengths=(1, 16),
        evaluation=EvaluationSettings(lengths=(16, 160, 1600), num_examples=(512, 512, 64)),
    )


def variable_assignment_coupled() -> Experiment:
    """The same with all IDs given."""
    return replace(variable_assignment(), scheme=Coupled(num_position_ids=ID_RANGE, max_gaps=MAX_GAPS))
