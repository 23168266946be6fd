"""Recipes for addition, addition of several numbers, multiplication and sorting."""

from dataclasses import replace

from lengthwise.encodings import KERPLEPower
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.fitted_encodings import SHARP_ROTARY, with_rule
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, MultiLevel, Predicted
from lengthwise.tasks import Addition, MultiAddition, Multiplication, Sort
from lengthwise.training.training_settings import TrainingSettings

# Enough IDs for more than 1,000 digits.
ADDITION_NUM_POSITION_IDS = 2048
# With many gaps, each example contains ten ID distances instead of three. Long sums contain all of them.
ADDITION_MAX_GAPS = 10
# Number of IDs per level (digits and operands), enough for 60 of each and their signs.
MULTI_ADDITION_NUM_POSITION_IDS = 64
# Number of IDs per level (digits and partial products), enough for 250 digits.
MULTIPLICATION_NUM_POSITION_IDS = 256
LEVEL_MAX_GAPS = 5
# Number of IDs per level, enough for 1,000 digits with a trace.
TRACE_NUM_POSITION_IDS = 2048
# Enough IDs for lists much longer than the number of distinct values.
SORT_NUM_POSITION_IDS = 512
SORT_MAX_GAPS = 10
# Found in examples of the task: one pointer follows the first number, and one the second
# (tests/experiments/test_recipes.py).
ADDITION_RULE = ("one", "rising: prompt first +1 +0", "rising: prompt #10.0 +1 +1")


def addition() -> Experiment:
    """Return the recipe for adding two numbers of up to 10 digits with PPC, without writing carries.

    The coupling was found in examples of the task: the prompt counts 1, 2, 3, and an answer has two IDs.
    """
    return with_rule(addition_by_hand(), ADDITION_RULE, num_position_ids=2 * ADDITION_NUM_POSITION_IDS)


def addition_by_hand() -> Experiment:
    """Return the recipe for addition with PPC on the coupling of the task: the digits of a place share one ID."""
    return Experiment(
        task=Addition(),
        scheme=Predicted(num_position_ids=ADDITION_NUM_POSITION_IDS, max_gaps=ADDITION_MAX_GAPS),
        encoding=SHARP_ROTARY,
        # A step attends to five tokens; scores that grow with the length would change their weights. With one
        # wide head, 1,000 digits are exact (benchmarks/claims/addition/README.md).
        decoder=DecoderSettings(
            num_layers=1, d_model=128, num_heads=1, previous_token_mix=True, length_scaling="none", temperature=9.0
        ),
        training=TrainingSettings(steps=2000, batch_size=128, weight_decay=0.1),
        train_lengths=(1, 10),
        evaluation=EvaluationSettings(lengths=(10, 100), num_examples=(256,), variants=("uniform", "carry", "unequal")),
    )


def addition_coupled() -> Experiment:
    """Return the recipe for adding two numbers with coupled IDs instead of predicted IDs."""
    return replace(
        addition_by_hand(), scheme=Coupled(num_position_ids=ADDITION_NUM_POSITION_IDS, max_gaps=ADDITION_MAX_GAPS)
    )


def addition_carry() -> Experiment:
    """Return the recipe for adding two numbers with PPC, with the carry written next to each digit."""
    return replace(addition_by_hand(), task=Addition(scratchpad="carry"))


def addition_trace() -> Experiment:
    """Return the recipe for adding two numbers of up to 5 digits with PPC and a trace of each digit read."""
    return replace(
        addition_by_hand(),
        task=Addition(scratchpad="trace"),
        # As for parity of a million tokens, a token reads only one other token, at ID distance 0. With rotary scores,
        # far digits change the tokens of long sums.
        encoding=KERPLEPower(min_power=1.0),
        decoder=DecoderSettings(
            num_layers=1, d_model=64, num_heads=2, head="rank", length_scaling="none", temperature=1.0
        ),
        training=TrainingSettings(steps=1500, weight_decay=0.1),
        train_lengths=(1, 5),
        evaluation=EvaluationSettings(lengths=(5, 100), num_examples=(256,), variants=("uniform", "carry", "unequal")),
    )


def multi_addition() -> Experiment:
    """Return the recipe for adding 2 to 5 numbers of up to 5 digits with PPC on two ID levels (digit and operand)."""
    return Experiment(
        task=MultiAddition(),
        scheme=Predicted(num_position_ids=MULTI_ADDITION_NUM_POSITION_IDS, max_gaps=LEVEL_MAX_GAPS),
        encoding=SHARP_ROTARY,
        # Additional operands compete for attention, and the log factor keeps attention sharp. Flatter attention would
        # fit 5 operands equally well and fail on 10 (benchmarks/multi_addition.md).
        decoder=DecoderSettings(num_layers=1, d_model=128, num_heads=4, length_scaling="log", temperature=3.0),
        training=TrainingSettings(steps=3000, weight_decay=0.01),
        train_lengths=(1, 5),
        evaluation=EvaluationSettings(lengths=(5, 10, 15), num_examples=(256,), variants=("5 operands", "10 operands")),
    )


def multi_addition_given() -> Experiment:
    """Return the recipe for adding 2 to 5 numbers with coupled IDs on two levels instead of predicted IDs."""
    scheme = MultiLevel(num_position_ids=MULTI_ADDITION_NUM_POSITION_IDS, max_gaps=LEVEL_MAX_GAPS)
    return replace(multi_addition(), scheme=scheme)


def multiplication() -> Experiment:
    """Return the recipe for multiplying up to 10 digits by 2 digits with PPC on two ID levels."""
    return Experiment(
        task=Multiplication(),
        scheme=Predicted(num_position_ids=MULTIPLICATION_NUM_POSITION_IDS, max_gaps=LEVEL_MAX_GAPS),
        encoding=SHARP_ROTARY,
        decoder=DecoderSettings(num_layers=1, d_model=128, num_heads=4, length_scaling="log", temperature=3.0),
        training=TrainingSettings(steps=2500, weight_decay=0.01),
        train_lengths=(1, 10),
        evaluation=EvaluationSettings(lengths=(10, 40, 100), num_examples=(256,)),
    )


def multiplication_trace() -> Experiment:
    """Return the recipe for multiplying up to 10 digits by 2 digits with PPC and a trace of three tokens per step."""
    return replace(
        multiplication(),
        task=Multiplication(trace=True, nines_share=0.3),
        scheme=Predicted(num_position_ids=TRACE_NUM_POSITION_IDS, max_gaps=LEVEL_MAX_GAPS),
        # Scores by distance, as for sums, hide the digits of the second factor, which are far on the level of places.
        decoder=DecoderSettings(num_layers=1, d_model=64, num_heads=2),
        training=TrainingSettings(steps=1200),
        evaluation=EvaluationSettings(lengths=(10, 100), num_examples=(256, 64), variants=("1 digits", "2 digits")),
    )


def multiplication_given() -> Experiment:
    """Return the recipe for multiplication with coupled IDs on two levels instead of predicted IDs."""
    scheme = MultiLevel(num_position_ids=MULTIPLICATION_NUM_POSITION_IDS, max_gaps=LEVEL_MAX_GAPS)
    return replace(multiplication(), scheme=scheme)


def sort() -> Experiment:
    """Return the recipe for sorting up to 10 items with PPC: the search head finds the next item to copy."""
    return Experiment(
        task=Sort(),
        scheme=Predicted(num_position_ids=SORT_NUM_POSITION_IDS, max_gaps=SORT_MAX_GAPS),
        encoding=SHARP_ROTARY,
        # The search head is the only one that can compare two values.
        decoder=DecoderSettings(num_layers=1, d_model=64, num_heads=2, head="search"),
        # Two values adjacent in a long sorted list rarely occur together in a short list: training needs many lists.
        training=TrainingSettings(steps=2000, batch_size=256, weight_decay=0.01),
        train_lengths=(1, 10),
        evaluation=EvaluationSettings(lengths=(10, 20, 40, 64), num_examples=(256,)),
    )


def sort_narrow() -> Experiment:
    """Return the recipe for sorting up to 20 of 128 values with PPC; half of the training lists are narrow."""
    return replace(
        sort(),
        task=Sort(num_values=128, narrow_share=0.5),
        decoder=DecoderSettings(num_layers=1, d_model=128, num_heads=2, head="search"),
        training=TrainingSettings(steps=3500, batch_size=128),
        train_lengths=(1, 20),
        evaluation=EvaluationSettings(lengths=(20, 100), num_examples=(256,)),
    )


def sort_given() -> Experiment:
    """Return the recipe for sorting with coupled IDs, which contain the sorted order; the decoder only copies items."""
    return replace(sort(), scheme=Coupled(num_position_ids=SORT_NUM_POSITION_IDS, max_gaps=SORT_MAX_GAPS))


RECIPES = (
    addition,
    addition_by_hand,
    addition_coupled,
    addition_carry,
    addition_trace,
    multi_addition,
    multi_addition_given,
    multiplication,
    multiplication_trace,
    multiplication_given,
    sort,
    sort_narrow,
    sort_given,
)
