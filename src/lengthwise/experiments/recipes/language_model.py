"""Recipes for language models of three sizes, and a comparison of encodings beyond the context length of training."""

from dataclasses import replace

from lengthwise.encodings import FIRE, ALiBi, NoPE, Rotary, YaRN
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential, Skipwise
from lengthwise.tasks import Text
from lengthwise.training.training_settings import TrainingSettings

# Context length of training, enough for 256 far tokens and 32 near tokens.
TRAIN_LENGTH = 320
# Context length of training in the comparison, and test lengths as multiples of it.
COMPARISON_TRAIN_LENGTH = 256
LENGTH_FACTORS = (1, 2, 4, 8)


def language_model() -> Experiment:
    """Return the recipe for a language model of medium size; ``--corpus`` sets the training text."""
    lengths = (TRAIN_LENGTH // 4, TRAIN_LENGTH // 2, TRAIN_LENGTH)
    return Experiment(
        task=Text(),
        scheme=Sequential(),
        encoding=Rotary(),
        # Influence studies hide tokens, so no embedding may contain information about the previous token.
        decoder=DecoderSettings(
            num_layers=4, d_model=128, num_heads=4, length_scaling="none", segments=False, tied_output=True
        ),
        training=TrainingSettings(steps=1500, batch_size=16, learning_rate=4e-3, weight_decay=0.1, warmup_steps=100),
        train_lengths=(TRAIN_LENGTH, TRAIN_LENGTH),
        evaluation=EvaluationSettings(lengths=lengths, num_examples=(512,)),
    )


def language_model_small() -> Experiment:
    """Return the recipe for a language model with half the width and half the layers of ``language_model``."""
    return _resize(num_layers=2, d_model=64, num_heads=2)


def language_model_large() -> Experiment:
    """Return the recipe for a language model with twice the width and 1.5 times the layers of ``language_model``."""
    return _resize(num_layers=6, d_model=256, num_heads=8)


def _resize(num_layers: int, d_model: int, num_heads: int) -> Experiment:
    medium = language_model()
    # The learning rate is inversely proportional to the width (Yang et al. 2022, arXiv 2203.03466). All sizes train on
    # the same number of tokens.
    learning_rate = medium.training.learning_rate * medium.decoder.d_model / d_model
    return replace(
        medium,
        decoder=replace(medium.decoder, num_layers=num_layers, d_model=d_model, num_heads=num_heads),
        training=replace(medium.training, learning_rate=learning_rate),
    )


def context_length() -> dict[str, Experiment]:
    """Return a comparison of six encodings by perplexity at up to eight times the training context length."""
    lengths = tuple(factor * COMPARISON_TRAIN_LENGTH for factor in LENGTH_FACTORS)
    rotary = replace(
        language_model(),
        training=replace(language_model().training, steps=1000),
        train_lengths=(COMPARISON_TRAIN_LENGTH, COMPARISON_TRAIN_LENGTH),
        evaluation=EvaluationSettings(lengths=lengths, num_examples=(512,)),
    )
    # Training uses plain rotary; the scaling applies at evaluation only.
    yarn = YaRN(factor=float(max(LENGTH_FACTORS)), original_length=COMPARISON_TRAIN_LENGTH)
    return {
        "rotary": rotary,
        # One gap gives two chunks, as in the paper. The token after the longest window needs the additional ID.
        "rotary + PoSE": replace(rotary, scheme=Skipwise(num_position_ids=max(lengths) + 1, max_gaps=1)),
        "rotary + YaRN": replace(rotary, encoding=yarn),
        "ALiBi": replace(rotary, encoding=ALiBi()),
        "FIRE": replace(rotary, encoding=FIRE()),
        "NoPE": replace(rotary, encoding=NoPE()),
    }


RECIPES = (language_model, language_model_small, language_model_large)
COMPARISONS = {"context_length": context_length}
