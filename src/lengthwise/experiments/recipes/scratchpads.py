"""Recipes for parity, copy, reverse and variable assignment, and the demo: PPC and common encodings on copying."""

from dataclasses import replace

from lengthwise.encodings import KERPLEPower
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.fitted_encodings import (
    COPY_ENCODINGS,
    SHARP_ROTARY,
    compare_with_encodings,
    with_rule,
)
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, Discovered, Predicted
from lengthwise.tasks import Copy, Parity, Reverse, VariableAssignment
from lengthwise.training.training_settings import TrainingSettings

# Enough IDs for 20,000 bits and their separator, 2,000 symbols, and 2,000 assignments with the question.
PARITY_NUM_POSITION_IDS, COPY_NUM_POSITION_IDS, ASSIGNMENT_NUM_POSITION_IDS = 20_480, 4096, 2048
LONG_NUM_POSITION_IDS = 2**20
# With many gaps, each example contains all ID distances. With three gaps, 1 of 5 seeds failed at 2,000 bits.
MAX_GAPS = 10


# Rules that were found in examples of the tasks (tests/experiments/test_recipes.py).
COPY_RULE = ("one", "rising: prompt first +1 +0")
# An answer points to the symbol after the one that it matches; 2058 is the symbol "=".
ASSIGNMENT_RULE = ("one", "rising: prompt last +1 +0 or match answer 1 before 2058 +2")


def parity() -> Experiment:
    """Return the recipe for the parity of up to 20 bits with a scratchpad and PPC."""
    return Experiment(
        task=Parity(),
        scheme=Predicted(num_position_ids=PARITY_NUM_POSITION_IDS, max_gaps=MAX_GAPS),
        # Fast angles separate neighboring IDs: 8 of 8 tuning seeds fit, 4 of 8 with the published angles.
        encoding=SHARP_ROTARY,
        decoder=DecoderSettings(num_layers=1, d_model=64, num_heads=2),
        training=TrainingSettings(steps=1000, weight_decay=0.1),
        train_lengths=(1, 20),
        evaluation=EvaluationSettings(lengths=(20, 200, 2000), num_examples=(512,)),
    )


def parity_rank() -> Experiment:
    """Return the recipe for parity with the rank head, which predicts IDs at a lower cost than the pointer head."""
    return replace(parity(), decoder=replace(parity().decoder, head="rank"))


def parity_long() -> Experiment:
    """Return the recipe for the parity of up to a million bits, trained on up to 20 (``benchmarks/million_tokens.md``).

    Scores fall with a learned power of the ID distance, at least linearly, and do not grow with the length, so a query
    reads only near IDs at every length. Rotary scores of some far IDs are close to those of near ones.
    """
    return replace(
        parity(),
        scheme=Predicted(num_position_ids=LONG_NUM_POSITION_IDS, max_gaps=MAX_GAPS),
        encoding=KERPLEPower(min_power=1.0),
        decoder=DecoderSettings(
            num_layers=1, d_model=64, num_heads=2, head="rank", length_scaling="none", temperature=1.0
        ),
        evaluation=EvaluationSettings(lengths=(20, 2000, 100_000), num_examples=(512, 64, 1)),
    )


def copy_long() -> Experiment:
    """Return the recipe for copying up to a million symbols, trained on up to 20."""
    return replace(parity_long(), task=Copy())


def parity_coupled() -> Experiment:
    """Return the recipe for parity with coupled IDs instead of predicted IDs."""
    return replace(parity(), scheme=Coupled(num_position_ids=PARITY_NUM_POSITION_IDS, max_gaps=MAX_GAPS))


def copy() -> Experiment:
    """Return the recipe for copying up to 20 symbols with PPC."""
    return replace(parity(), task=Copy(), scheme=Predicted(num_position_ids=COPY_NUM_POSITION_IDS, max_gaps=MAX_GAPS))


def reverse() -> Experiment:
    """Return the recipe for reversing up to 20 symbols with PPC."""
    return replace(copy(), task=Reverse())


def variable_assignment() -> Experiment:
    """Return the recipe for following a variable through up to 16 assignments with a scratchpad and PPC.

    The coupling was found in examples of the task: an answer has the ID of the token after the one that it matches.
    """
    return with_rule(variable_assignment_by_hand(), ASSIGNMENT_RULE, num_position_ids=4 * ASSIGNMENT_NUM_POSITION_IDS)


def variable_assignment_by_hand() -> Experiment:
    """Return the recipe for variable assignment with PPC on the coupling of the task: two tokens share one ID."""
    return Experiment(
        task=VariableAssignment(),
        scheme=Predicted(num_position_ids=ASSIGNMENT_NUM_POSITION_IDS, max_gaps=MAX_GAPS),
        encoding=SHARP_ROTARY,
        # As for addition, one wide head and scores that do not grow with the length; with a log factor, 1 of 5 seeds
        # had 0.63 at 1,600 assignments (benchmarks/claims/variable_assignment/README.md).
        decoder=DecoderSettings(
            num_layers=1,
            d_model=128,
            num_heads=1,
            previous_token_mix=True,
            tied_output=True,
            length_scaling="none",
            temperature=9.0,
        ),
        training=TrainingSettings(steps=1500),
        train_lengths=(1, 16),
        evaluation=EvaluationSettings(lengths=(16, 160, 1600), num_examples=(512, 512, 64)),
    )


def variable_assignment_coupled() -> Experiment:
    """Return the recipe for variable assignment with coupled IDs instead of predicted IDs."""
    scheme = Coupled(num_position_ids=ASSIGNMENT_NUM_POSITION_IDS, max_gaps=MAX_GAPS)
    return replace(variable_assignment_by_hand(), scheme=scheme)


def demo() -> dict[str, Experiment]:
    """Return the comparison of PPC with common encodings on copying; all fit their training lengths of up to 10.

    The encodings have the best settings of ``benchmarks/fit_sweep.py``. PPC was tuned further, also at long lengths
    (``benchmarks/demo.md``). Its coupling was found in examples of the task.
    """
    scheme = Discovered(rule=COPY_RULE, num_position_ids=PARITY_NUM_POSITION_IDS, max_gaps=MAX_GAPS)
    evaluation = EvaluationSettings(
        lengths=(5, 10, 12, 20, 50, 200, 2000, 20_000),
        num_examples=(512, 512, 512, 512, 512, 128, 16, 1),
        stop_at_zero=True,
    )
    ppc_experiment = replace(
        parity(),
        task=Copy(),
        scheme=scheme,
        # With a head dimension of 32 or 64, 1 of 4 tuning seeds fails at 20,000 symbols; with 128, none.
        decoder=DecoderSettings(num_layers=1, d_model=128, num_heads=1),
        training=TrainingSettings(steps=1200, learning_rate=2e-3, weight_decay=0.1),
        train_lengths=(1, 10),
        evaluation=evaluation,
    )
    return compare_with_encodings(ppc_experiment, COPY_ENCODINGS)


def parity_id_range() -> dict[str, Experiment]:
    """Return the comparison of parity recipes whose training IDs reach 0.1, 1 and 4 times the evaluation IDs."""
    evaluation = EvaluationSettings(lengths=(20, 200, 2000, 20_000), num_examples=(128, 128, 32, 4))
    base = replace(parity(), evaluation=evaluation)
    num_ids = {factor: round(factor * PARITY_NUM_POSITION_IDS) for factor in (0.1, 1, 4)}
    return {
        f"IDs to {factor:g}x": replace(base, scheme=Predicted(num_position_ids=size, max_gaps=MAX_GAPS))
        for factor, size in num_ids.items()
    }


RECIPES = (
    parity,
    parity_rank,
    parity_long,
    parity_coupled,
    copy,
    copy_long,
    reverse,
    variable_assignment,
    variable_assignment_by_hand,
    variable_assignment_coupled,
)
COMPARISONS = {"demo": demo, "parity_id_range": parity_id_range}
