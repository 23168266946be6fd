"""Claims about tasks with a scratchpad (section 5.2): PPC beside given IDs and the usual encodings."""

from dataclasses import replace

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.recipes.baselines import with_baselines
from lengthwise.experiments.reproductions.claim import Claim, Size
from lengthwise.tasks import VariableAssignment

# Those that a laptop trains in minutes: what is new, what it is compared with, and what most models have.
FEW = ("predicted (PPC)", "coupled, IDs given", "NoPE", "rotary", "rotary + PoSE", "ALiBi")

# Of the chain that is asked for, where that is fixed.
DEPTH = 4


def _parity() -> dict[str, Experiment]:
    tests = EvaluationSettings(
        lengths=(20, 40, 200, 2000, 20_000), num_examples=(512, 512, 512, 64, 4), until_none=True
    )
    return with_baselines(replace(recipe("parity"), evaluation=tests))


def _variable_assignment() -> dict[str, Experiment]:
    tests = EvaluationSettings(
        lengths=(16, 32, 160, 1600),
        num_examples=(512, 512, 512, 64),
        variants=("a quarter", "half", "all"),
        until_none=True,
    )
    # Three tokens to an assignment, and one more for each that is followed.
    rows = with_baselines(replace(recipe("variable_assignment"), evaluation=tests), patience=3, spread=4)
    predicted = rows["predicted (PPC)"]
    for operands in (2, 3):
        task = VariableAssignment(operands=operands)
        # With three, 2,000 steps fit a quarter of the sequences.
        until = replace(predicted.training, steps=6000, fit_every=100, cooldown_steps=500)
        rows[f"predicted (PPC), {operands} operands"] = replace(predicted, task=task, training=until)
    # However many assignments there are, as many are needed.
    near = VariableAssignment(depth=DEPTH)
    for label in ("predicted (PPC)", "rotary"):
        rows[f"{label}, depth {DEPTH}"] = replace(rows[label], task=near, evaluation=replace(tests, variants=()))
    return rows


PARITY = Claim(
    name="parity_scratchpad",
    summary="parity with scratchpad: PPC, given IDs and seven other ways to give positions, to 1,000 times the length",
    paper="section 5.2",
    experiments=_parity,
    laptop=Size(num_seeds=2, rows=FEW, most_steps=2000),
)
VARIABLE_ASSIGNMENT = Claim(
    name="variable_assignment",
    summary="variable assignment with scratchpad: IDs depend on the content, to 100 times the length, by depth",
    paper="section 5.2",
    experiments=_variable_assignment,
    laptop=Size(num_seeds=1, rows=FEW, longest=160, most_steps=1500),
)
