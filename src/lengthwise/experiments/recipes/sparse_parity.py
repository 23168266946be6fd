"""Sparse parity, trained on 20 to 50 bits and, step by step, on more of them flagged."""

from dataclasses import replace

from lengthwise.encodings import NoPE
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential
from lengthwise.tasks import SparseParity
from lengthwise.training.trainer import TrainingSettings

# Numbers of flagged bits that are tested one by one, also those that training did not show.
TESTED = (1, 2, 4, 6, 8, 10, 12, 16)


def sparse_parity() -> Experiment:
    """Up to three flagged bits among 20 to 50."""
    return Experiment(
        task=SparseParity(most=3),
        scheme=Sequential(),
        encoding=NoPE(),
        decoder=DecoderSettings(num_layers=2, d_model=64, num_heads=2, length_scaling="none", temperature=1.0),
        training=TrainingSettings(steps=1500, weight_decay=0.1, fit_every=100, cooldown_steps=300),
        train_lengths=(20, 50),
        evaluation=EvaluationSettings(lengths=(50, 100, 200, 500), num_examples=(512,)),
    )


def sparse_parity_up_to(
    most: int, *, coding: str = "flags", window: int | None = None, tested: tuple[int, ...] = TESTED
) -> Experiment:
    """Up to ``most`` flagged bits, one more as soon as the last is learned; numbers that are ``tested`` one by one."""
    return replace(
        sparse_parity(),
        task=SparseParity(most=most, coding=coding, window=window, tested=tested),
        # Without, attention on the flagged bits is diluted from four times the trained length on for one seed in three.
        decoder=replace(sparse_parity().decoder, d_model=128, num_heads=4, dilution=0.5),
        # The last stage is a small share of what is drawn: its loss tells more than exact match does.
        training=TrainingSettings(
            steps=4000,
            learning_rate=2e-3,
            weight_decay=0.1,
            stage_loss=0.02,
            fit_every=50,
            fit_threshold=0.998,
            cooldown_steps=800,
        ),
        evaluation=EvaluationSettings(
            lengths=(50, 100, 200, 500, 5000),
            num_examples=(512, 512, 512, 512, 16),
            variants=tuple(f"flagged-{number}" for number in tested),
        ),
    )


def sparse_parity_8() -> Experiment:
    """Up to eight flagged bits among 20 to 50, by stages."""
    return sparse_parity_up_to(8)
