"""Claim on addition: PPC, coupled IDs, and common encodings that fit the same training lengths."""

from dataclasses import replace

from claims.schemes import compare_with_schemes

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.tuned_encodings import ADDITION_ENCODINGS, compare_ppc_with_encodings
from lengthwise.experiments.reproduction import Claim, SizePreset

# Labels that a laptop trains in minutes.
LAPTOP_LABELS = ("predicted (PPC)", "coupled, IDs given", "rotary")


def _build_experiments() -> dict[str, Experiment]:
    evaluation = EvaluationSettings(
        lengths=(3, 4, 10, 100, 1000),
        num_examples=(512, 512, 512, 512, 64),
        variants=("uniform", "carry", "unequal"),
        stop_at_zero=True,
    )
    ppc_experiment = replace(recipe("addition_by_hand"), train_lengths=(1, 3), evaluation=evaluation)
    experiments = compare_ppc_with_encodings(ppc_experiment, ADDITION_ENCODINGS)
    # Two operands and a sum have three tokens for each digit.
    experiments |= compare_with_schemes(ppc_experiment, experiments["rotary"], ids_factor=3)
    evaluation = replace(evaluation, lengths=(10, 100, 1000), num_examples=(512, 512, 64))
    longer = replace(ppc_experiment, train_lengths=(1, 10), evaluation=evaluation)
    experiments["predicted (PPC), up to 10 digits"] = longer
    return experiments | {"discovered (PPC), up to 10 digits": replace(recipe("addition"), evaluation=evaluation)}


CLAIM = Claim(
    summary="addition to 300 times the length: PPC, coupled IDs and other position methods that fit",
    paper="extends section 5.2; task of Cho et al. 2024 (arXiv 2405.20671)",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, labels=LAPTOP_LABELS),
)
