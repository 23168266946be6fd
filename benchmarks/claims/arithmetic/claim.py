"""Claim on arithmetic: addition, multi-operand addition, multiplication and sorting beyond the training length."""

from dataclasses import replace

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproduction import Claim, SizePreset
from lengthwise.positions import Predicted
from lengthwise.tasks import Multiplication, Sort

# A length is a number of digits, or a number of items for sort.
EVALUATIONS = {
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
# The longest test has 10,000 digits, which are about 50,000 tokens.
LONG_EVALUATION = replace(EVALUATIONS["addition"], lengths=(10, 100, 1000, 10_000), num_examples=(512, 512, 64, 4))
LONG_NUM_POSITION_IDS = 12_288
LONG_PRODUCT_EVALUATION = EvaluationSettings(
    lengths=(10, 100, 1000), num_examples=(512, 256, 16), variants=("2 digits",)
)
LONG_PRODUCT_NUM_POSITION_IDS = 2048
THREE_DIGIT_EVALUATION = EvaluationSettings(
    lengths=(10, 40, 100), num_examples=(512, 256, 64), variants=("2 digits", "3 digits", "5 digits", "10 digits")
)
# With 64 values, a list without repeats has at most 64 items.
LONG_SORT_EVALUATION = EvaluationSettings(lengths=(10, 40, 64, 100), num_examples=(512,))
# Name of the recipe by label.
RECIPE_NAMES = {
    "addition, PPC": "addition_by_hand",
    "addition, IDs given": "addition_coupled",
    "addition, carries written, PPC": "addition_carry",
    "several numbers, PPC": "multi_addition",
    "several numbers, IDs given": "multi_addition_given",
    "product, PPC": "multiplication",
    "product, IDs given": "multiplication_given",
    "sort, PPC": "sort",
    "sort, IDs given": "sort_given",
}
LAPTOP_LABELS = tuple(label for label in RECIPE_NAMES if label.endswith("PPC") and "carries" not in label)


def _build_experiments() -> dict[str, Experiment]:
    recipes = {label: recipe(name) for label, name in RECIPE_NAMES.items()}
    experiments = {
        label: replace(experiment, evaluation=EVALUATIONS[experiment.task.name])
        for label, experiment in recipes.items()
    }
    long_sums = replace(
        _with_ids(experiments["addition, carries written, PPC"], LONG_NUM_POSITION_IDS), evaluation=LONG_EVALUATION
    )
    long_products = replace(
        _with_ids(experiments["product, PPC"], LONG_PRODUCT_NUM_POSITION_IDS), evaluation=LONG_PRODUCT_EVALUATION
    )
    # Running sums of 90 or more need at least three partial products, so products by two digits never train them.
    products = replace(experiments["product, PPC"], task=Multiplication(digits=3), evaluation=THREE_DIGIT_EVALUATION)
    sort = experiments["sort, PPC"]
    long_sort = replace(
        sort,
        task=Sort(num_values=128),
        decoder=replace(sort.decoder, d_model=128),
        training=replace(sort.training, steps=8000),
        evaluation=LONG_SORT_EVALUATION,
    )
    return experiments | {
        "addition, carries written, PPC, IDs to 12,288": long_sums,
        "product, PPC, IDs to 2,048": long_products,
        "product by three digits, PPC": products,
        "sort of 128 values, PPC": long_sort,
    }


def _with_ids(experiment: Experiment, num_position_ids: int) -> Experiment:
    assert isinstance(experiment.scheme, Predicted)
    return replace(experiment, scheme=replace(experiment.scheme, num_position_ids=num_position_ids))


CLAIM = Claim(
    summary="addition up to 100 times the training length and with more operands, multiplication, and sorting",
    paper="extends section 5.2; tasks of Cho et al. 2024 (arXiv 2405.20671) and 2025 (arXiv 2410.15787)",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, labels=LAPTOP_LABELS),
)
