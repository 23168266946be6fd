"""Language models on text, in three sizes, and what their context length does to each encoding."""

from dataclasses import replace

from lengthwise.encodings import FIRE, ALiBi, NoPE, Rotary, YaRN
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Sequential, Skipwise
from lengthwise.tasks import Text
from lengthwise.training.trainer import TrainingSettings

# 256 far tokens, 32 near ones, and some room.
LENGTH = 320
# Where context lengths are compared: trained on one, tested up to eight times as far.
TRAINED = 256
FACTORS = (1, 2, 4, 8)


def language_model() -> Experiment:
    """A language model of middle size; name the text with --corpus."""
    return Experiment(
        task=Text(),
        scheme=Sequential(),
        encoding=Rotary(),
        # What an influence study hides has to be hidden: no embedding holds a share of the token before.
        decoder=DecoderSettings(
            num_layers=4, d_model=128, num_heads=4, length_scaling="none", segments=False, tied_output=True
        ),
        training=TrainingSettings(steps=1500, batch_size=16, learning_rate=4e-3, weight_decay=0.1, warmup_steps=100),
        train_lengths=(LENGTH, LENGTH),
        evaluation=EvaluationSettings(lengths=(LENGTH // 4, LENGTH // 2, LENGTH), num_examples=(512,)),
    )


def language_model_small() -> Experiment:
    """The same, half as wide and half as deep."""
    return _sized(num_layers=2, d_model=64, num_heads=2)


def language_model_large() -> Experiment:
    """The same, twice as wide and half as deep again."""
    return _sized(num_layers=6, d_model=256, num_heads=8)


def _sized(num_layers: int, d_model: int, num_heads: int) -> Experiment:
    middle = language_model()
    # The wider, the smaller the steps (Yang et al. 2022, arXiv 2203.03466); all see the same text as often.
    rate = middle.training.learning_rate * middle.decoder.d_model / d_model
    return replace(
        middle,
        decoder=replace(middle.decoder, num_layers=num_layers, d_model=d_model, num_heads=num_heads),
        training=replace(middle.training, learning_rate=rate),
    )


def context_length() -> dict[str, Experiment]:
    """Perplexity up to eight times the context length of training: rotary, two ways to stretch it, and others."""
    rotary = replace(
        language_model(),
        training=replace(language_model().training, steps=1000),
        train_lengths=(TRAINED, TRAINED),
        evaluation=EvaluationSettings(lengths=tuple(factor * TRAINED for factor in FACTORS), num_examples=(512,)),
    )
    longest = max(FACTORS) * TRAINED
    return {
        "rotary": rotary,
        # Two chunks, as published; IDs for the longest window and the token behind it, which is only predicted.
        "rotary + PoSE": replace(rotary, scheme=Skipwise(num_position_ids=longest + 1, max_gaps=1)),
        # Trained as plain rotary, stretched at evaluation.
        "rotary + YaRN": replace(rotary, encoding=YaRN(factor=float(max(FACTORS)), original_length=TRAINED)),
        "ALiBi": replace(rotary, encoding=ALiBi()),
        "FIRE": replace(rotary, encoding=FIRE()),
        "NoPE": replace(rotary, encoding=NoPE()),
    }
