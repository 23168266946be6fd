"""Claim on variable assignment: PPC, coupled IDs, and common encodings that fit the same training lengths."""

from dataclasses import replace

from claims.schemes import compare_with_schemes

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.tuned_encodings import ASSIGNMENT_ENCODINGS, compare_ppc_with_encodings
from lengthwise.experiments.reproduction import Claim, SizePreset
from lengthwise.tasks import VariableAssignment

# Labels that a laptop trains in minutes.
LAPTOP_LABELS = ("predicted (PPC)", "coupled, IDs given", "rotary")
# Fixed depth of the queried chain.
CHAIN_DEPTH = 4
# Number of variable names in the comparison with common encodings, at least the longest test length.
NUM_NAMES = 256


def _build_experiments() -> dict[str, Experiment]:
    evaluation = EvaluationSettings(
        lengths=(5, 6, 16, 160),
        num_examples=(512, 512, 512, 64),
        variants=("a quarter", "half", "all"),
        stop_at_zero=True,
    )
    base = recipe("variable_assignment_by_hand")
    # With fewer names, common encodings fit in minutes.
    few_names = VariableAssignment(num_names=NUM_NAMES)
    # Trained on 5 assignments, PPC is better at 160 with a log factor (README.md).
    decoder = replace(base.decoder, length_scaling="log", temperature=2.0)
    ppc_experiment = replace(base, task=few_names, train_lengths=(1, 5), evaluation=evaluation, decoder=decoder)
    experiments = compare_ppc_with_encodings(ppc_experiment, ASSIGNMENT_ENCODINGS)
    # An assignment has three tokens; following one adds a token.
    experiments |= compare_with_schemes(ppc_experiment, experiments["rotary"], ids_factor=4)
    evaluation = replace(evaluation, lengths=(16, 160, 1600), num_examples=(512, 512, 64))
    up_to_16 = replace(base, evaluation=evaluation)
    experiments["predicted (PPC), up to 16"] = up_to_16
    experiments["discovered (PPC), up to 16"] = replace(recipe("variable_assignment"), evaluation=evaluation)
    experiments["coupled, IDs given, up to 16"] = replace(recipe("variable_assignment_coupled"), evaluation=evaluation)
    for num_operands in (2, 3):
        # With three operands, 2,000 steps fit only a quarter of the sequences.
        training = replace(base.training, steps=6000, fit_every=100, cooldown_steps=500)
        task = VariableAssignment(operands=num_operands)
        experiments[f"predicted (PPC), {num_operands} operands"] = replace(up_to_16, task=task, training=training)
    # A fixed depth needs the same number of assignments at every length.
    task, evaluation = VariableAssignment(depth=CHAIN_DEPTH), replace(evaluation, variants=())
    experiments[f"predicted (PPC), depth {CHAIN_DEPTH}"] = replace(up_to_16, task=task, evaluation=evaluation)
    return experiments


CLAIM = Claim(
    summary="variable assignment with scratchpad to 100 times the length: content-dependent IDs, by chain depth",
    paper="section 5.2",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, labels=LAPTOP_LABELS, max_length=160),
)
