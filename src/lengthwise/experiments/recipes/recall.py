"""Recall: answers that stand somewhere in a text."""

from lengthwise.encodings import NoPE
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential
from lengthwise.tasks import Recall
from lengthwise.training.trainer import TrainingSettings


def recall() -> Experiment:
    """The value of one of four keys in a text of up to 32 items; a token is mixed with the one before it."""
    return Experiment(
        task=Recall(),
        scheme=Sequential(),
        encoding=NoPE(),
        decoder=DecoderSettings(
            num_layers=2, d_model=64, num_heads=2, previous_token_mix=True, length_scaling="none", temperature=1.0
        ),
        training=TrainingSettings(steps=3000, weight_decay=0.1, fit_every=100, cooldown_steps=300),
        train_lengths=(4, 32),
        evaluation=EvaluationSettings(lengths=(32, 64, 128, 512), num_examples=(512,)),
    )
