"""Claims on tasks with a scratchpad (section 5.2): PPC compared with coupled IDs and common encodings."""

from dataclasses import replace

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.scratchpads import with_baselines
from lengthwise.experiments.reproductions.reproduction import Claim, SizePreset
from lengthwise.tasks import VariableAssignment

# Labels that a laptop trains in minutes.
LAPTOP_LABELS = ("predicted (PPC)", "coupled, IDs given", "NoPE", "rotary", "rotary + PoSE", "ALiBi")
# Fixed depth of the queried chain.
CHAIN_DEPTH = 4


def _parity_experiments() -> dict[str, Experiment]:
    evaluation = EvaluationSettings(
        lengths=(20, 40, 200, 2000, 20_000), num_examples=(512, 512, 512, 64, 4), stop_at_zero=True
    )
    return with_baselines(replace(recipe("parity"), evaluation=evaluation))


def _variable_assignment_experiments() -> dict[str, Experiment]:
    evaluation = EvaluationSettings(
        lengths=(16, 32, 160, 1600),
        num_examples=(512, 512, 512, 64),
        variants=("a quarter", "half", "all"),
        stop_at_zero=True,
    )
    # An assignment has three tokens; following one adds a token.
    base = replace(recipe("variable_assignment"), evaluation=evaluation)
    experiments = with_baselines(base, steps_factor=3, ids_factor=4)
    ppc_experiment = experiments["predicted (PPC)"]
    for num_operands in (2, 3):
        task = VariableAssignment(operands=num_operands)
        # With three operands, 2,000 steps fit only a quarter of the sequences.
        training = replace(ppc_experiment.training, steps=6000, fit_every=100, cooldown_steps=500)
        experiments[f"predicted (PPC), {num_operands} operands"] = replace(ppc_experiment, task=task, training=training)
    # A fixed depth needs the same number of assignments at every length.
    task, evaluation = VariableAssignment(depth=CHAIN_DEPTH), replace(evaluation, variants=())
    for label in ("predicted (PPC)", "rotary"):
        experiments[f"{label}, depth {CHAIN_DEPTH}"] = replace(experiments[label], task=task, evaluation=evaluation)
    return experiments


PARITY = Claim(
    name="parity_scratchpad",
    summary="parity with scratchpad to 1,000 times the length: PPC, coupled IDs and seven other position methods",
    paper="section 5.2",
    experiments=_parity_experiments,
    laptop=SizePreset(num_seeds=2, labels=LAPTOP_LABELS, max_steps=2000),
)
VARIABLE_ASSIGNMENT = Claim(
    name="variable_assignment",
    summary="variable assignment with scratchpad to 100 times the length: content-dependent IDs, by chain depth",
    paper="section 5.2",
    experiments=_variable_assignment_experiments,
    laptop=SizePreset(num_seeds=1, labels=LAPTOP_LABELS, max_length=160, max_steps=1500),
)
