"""Claim on arithmetic: addition, multi-operand addition, multiplication and sorting beyond the training length."""

from dataclasses import replace

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproductions.reproduction import Claim, SizePreset
from lengthwise.positions import Predicted
from lengthwise.tasks import Multiplication

# Lengths are digits; for sort, items.
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
# 10,000 digits, about 50,000 tokens.
LONG_TESTS = replace(TESTS["addition"], lengths=(10, 100, 1000, 10_000), num_examples=(512, 512, 64, 4))
LONG_IDS = 12_288
THREE_DIGIT_TESTS = EvaluationSettings(
    lengths=(10, 40, 100), num_examples=(512, 256, 64), variants=("2 digits", "3 digits", "5 digits", "10 digits")
)
# Recipe by label.
LABELS = {
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
    recipes = {label: recipe(name) for label, name in LABELS.items()}
    experiments = {label: replace(each, evaluation=TESTS[each.task.name]) for label, each in recipes.items()}
    long = replace(experiments["addition, carries written, PPC"], evaluation=LONG_TESTS)
    assert isinstance(long.scheme, Predicted)
    long = replace(long, scheme=replace(long.scheme, num_position_ids=LONG_IDS))
    # Running sums of 90 or more occur only from the third partial product on, so two digits never train them.
    three_digits = replace(experiments["product, PPC"], task=Multiplication(digits=3), evaluation=THREE_DIGIT_TESTS)
    return experiments | {
        "addition, carries written, PPC, IDs to 12,288": long,
        "product by three digits, PPC": three_digits,
    }


ARITHMETIC = Claim(
    name="arithmetic",
    summary="addition to 100 times the digits, more operands, multiplication to 20 times, sorting to 6 times",
    paper="extends section 5.2; tasks after Cho et al. 2024 (arXiv 2405.20671) and 2025 (arXiv 2410.15787)",
    experiments=_experiments,
    laptop=SizePreset(
        num_seeds=1, labels=tuple(label for label in LABELS if label.endswith("PPC") and "carries" not in label)
    ),
)
