"""Planted correlations as something to train a decoder on."""

from lengthwise.encodings import NoPE
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.positions import Sequential
from lengthwise.tasks import Planted
from lengthwise.training.trainer import TrainingSettings


def planted() -> Experiment:
    """Two marked tokens near each other decide the label; what a decoder without positions makes of it."""
    return Experiment(
        task=Planted(),
        scheme=Sequential(),
        encoding=NoPE(),
        training=TrainingSettings(steps=2000),
        train_lengths=(2, 16),
        evaluation=EvaluationSettings(lengths=(16, 32, 64, 160), num_examples=(512,)),
    )
