"""Recipes for tasks whose answers depend on a few tokens: planted laws, recall and sparse parity."""

from dataclasses import replace

from lengthwise.encodings import NAPE, NoPE
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential
from lengthwise.tasks import MultiQueryRecall, Planted, Recall, SparseParity
from lengthwise.training.training_settings import TrainingSettings

# Decoder of both recall tasks.
RECALL_DECODER = DecoderSettings(
    num_layers=2, d_model=64, num_heads=2, previous_token_mix=True, length_scaling="none", temperature=1.0
)
# Numbers of flagged bits in the test variants; some exceed the numbers in training.
TEST_BITS = (1, 2, 4, 6, 8, 10, 12, 16)


def planted() -> Experiment:
    """Return the recipe for a planted law (two marked tokens determine the label) without position information."""
    return Experiment(
        task=Planted(),
        scheme=Sequential(),
        encoding=NoPE(),
        training=TrainingSettings(steps=2000),
        train_lengths=(2, 16),
        evaluation=EvaluationSettings(lengths=(16, 32, 64, 160), num_examples=(512,)),
    )


def recall() -> Experiment:
    """Return the recipe for recalling the value of one of four keys in a text of up to 32 items."""
    return Experiment(
        task=Recall(),
        scheme=Sequential(),
        encoding=NoPE(),
        decoder=RECALL_DECODER,
        training=TrainingSettings(steps=3000, weight_decay=0.1, fit_every=100, cooldown_steps=300),
        train_lengths=(4, 32),
        evaluation=EvaluationSettings(lengths=(32, 64, 128, 512), num_examples=(512,)),
    )


def multi_query_recall() -> Experiment:
    """Return the recipe for recalling the values of four keys in texts of 32 to 64 tokens, full of pairs (MQMTAR).

    The lengths are those of the paper. The model is much smaller, and has not fitted yet
    (``benchmarks/claims/recall_attention/README.md``).
    """
    return Experiment(
        task=MultiQueryRecall(),
        scheme=Sequential(),
        encoding=NAPE(),
        decoder=RECALL_DECODER,
        training=TrainingSettings(steps=20_000, weight_decay=0.1, fit_every=100, cooldown_steps=300),
        train_lengths=(32, 64),
        evaluation=EvaluationSettings(lengths=(64, 128, 256, 1024), num_examples=(256,)),
    )


def sparse_parity() -> Experiment:
    """Return the recipe for the parity of up to three flagged bits among 20 to 50 bits."""
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
    max_bits: int, *, coding: str = "flags", window: int | None = None, test_bits: tuple[int, ...] = TEST_BITS
) -> Experiment:
    """Return the recipe for sparse parity in stages, with one more flagged bit per stage, up to ``max_bits``.

    A stage ends when its loss is low. ``test_bits`` contains the numbers of flagged bits, one per test variant.
    """
    return replace(
        sparse_parity(),
        task=SparseParity(most=max_bits, coding=coding, window=window, tested=test_bits),
        # Without dilution, attention to flagged bits fades beyond 4 times the training length for one seed in three.
        decoder=replace(sparse_parity().decoder, d_model=128, num_heads=4, dilution=0.5),
        # The last stage has a small share of the examples, so its loss is more informative than exact match.
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
            variants=tuple(f"flagged-{num_bits}" for num_bits in test_bits),
        ),
    )


def sparse_parity_8() -> Experiment:
    """Return the recipe for the parity of up to eight flagged bits among 20 to 50 bits, learned in stages."""
    return sparse_parity_up_to(8)


RECIPES = (planted, sparse_parity, sparse_parity_8, recall, multi_query_recall)
