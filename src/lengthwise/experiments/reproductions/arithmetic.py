"""Claims about arithmetic: sums, sums of several numbers, products and sorting, each far beyond the training length."""

from dataclasses import replace

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproductions.claim import Claim, Size
from lengthwise.positions import Predicted
from lengthwise.tasks import Multiplication

# Lengths are digits of a number, of sort items of a list.
TESTS = {
    "addition": EvaluationSettings(
        lengths=(10, 40, 100, 1000), num_examples=(512, 512, 512, 64), variants=("uniform", "carry", "unequal")
    ),
    "multi_addition": EvaluationSettings(
        lengths=(5, 10, 20, 30), num_examples=(256, 256, 256, 64), variants=("5 operands", "10 operands", "20 operands")
    ),
    "multiplication": EvaluationSettings(
        lengths=(10, 40, 100, 200), num_examples=(512, 512, 256, 64), variants=("2 digits", "3 digits")
    ),
    "sort": EvaluationSettings(lengths=(10, 40, 64), num_examples=(512,)),
}
# Ten times as far, which is some 50,000 tokens.
FURTHER = replace(TESTS["addition"], lengths=(10, 100, 1000, 10_000), num_examples=(512, 512, 64, 4))
FURTHER_IDS = 12_288
MORE_ROWS = EvaluationSettings(
    lengths=(10, 40, 100), num_examples=(512, 256, 64), variants=("2 digits", "3 digits", "5 digits", "10 digits")
)
# Rows: of the task's recipe, and of what else is shown beside it.
ROWS = {
    "addition, PPC": "addition",
    "addition, IDs given": "addition_coupled",
    "addition, carries written, PPC": "addition_carry",
    "several numbers, PPC": "multi_addition",
    "several numbers, IDs given": "multi_addition_given",
    "product, PPC": "multiplication",
    "product, IDs given": "multiplication_given",
    "sort, PPC": "sort",
    "sort, IDs given": "sort_given",
}


def _experiments() -> dict[str, Experiment]:
    made = {label: recipe(name) for label, name in ROWS.items()}
    rows = {label: replace(each, evaluation=TESTS[each.task.name]) for label, each in made.items()}
    further = replace(rows["addition, carries written, PPC"], evaluation=FURTHER)
    assert isinstance(further.scheme, Predicted)
    further = replace(further, scheme=replace(further.scheme, num_position_ids=FURTHER_IDS))
    # From the third row on a row can read a sum of 90 or more: two rows never show that.
    of_three = replace(rows["product, PPC"], task=Multiplication(digits=3), evaluation=MORE_ROWS)
    return rows | {"addition, carries written, PPC, IDs to 12,288": further, "product by three digits, PPC": of_three}


ARITHMETIC = Claim(
    name="arithmetic",
    summary="sums to 100 times the digits, sums of more numbers, products to 20 times, sorted lists to 6 times",
    paper="goes on from section 5.2; tasks after Cho et al. 2024 (arXiv 2405.20671) and 2025 (arXiv 2410.15787)",
    experiments=_experiments,
    laptop=Size(num_seeds=1, rows=tuple(label for label in ROWS if label.endswith("PPC") and "carries" not in label)),
)
