"""Claim on parity with scratchpad: PPC, coupled IDs, and common encodings that fit the same training lengths."""

from dataclasses import replace

from claims.schemes import compare_with_schemes

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.tuned_encodings import PARITY_ENCODINGS, compare_ppc_with_encodings
from lengthwise.experiments.reproduction import Claim, SizePreset

# Labels that a laptop trains in minutes.
LAPTOP_LABELS = ("predicted (PPC)", "coupled, IDs given", "rotary")


def _build_experiments() -> dict[str, Experiment]:
    evaluation = EvaluationSettings(
        lengths=(10, 12, 20, 100, 2000, 20_000), num_examples=(512, 512, 512, 512, 64, 4), stop_at_zero=True
    )
    ppc_experiment = replace(recipe("parity"), train_lengths=(1, 10), evaluation=evaluation)
    experiments = compare_ppc_with_encodings(ppc_experiment, PARITY_ENCODINGS)
    return experiments | compare_with_schemes(ppc_experiment, experiments["rotary"], ids_factor=2)


CLAIM = Claim(
    summary="parity with scratchpad to 2,000 times the length: PPC, coupled IDs and other position methods that fit",
    paper="section 5.2",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=2, labels=LAPTOP_LABELS),
)
