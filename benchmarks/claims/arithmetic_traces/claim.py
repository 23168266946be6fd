"""Claim on written traces: sums and products of 1,000 digits, and sorted lists of more than 100 items."""

from dataclasses import replace

from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes import recipe
from lengthwise.experiments.reproduction import Claim, SizePreset
from lengthwise.tasks import Addition, Multiplication, Sort

SUM_EVALUATION = EvaluationSettings(
    lengths=(5, 100, 1000), num_examples=(512, 128, 16), variants=("uniform", "carry", "unequal")
)
PRODUCT_EVALUATION = EvaluationSettings(
    lengths=(10, 100, 1000), num_examples=(512, 128, 16), variants=("1 digits", "2 digits")
)
SORT_EVALUATION = EvaluationSettings(lengths=(20, 50, 100, 128), num_examples=(512,))
SUM, PRODUCT, SORT = "sum, trace", "product, trace", "sort, narrow lists"


def _build_experiments() -> dict[str, Experiment]:
    """Return each recipe, and the same recipe without its trace, its examples with many 9s or its narrow lists."""
    sums = replace(recipe("addition_trace"), evaluation=SUM_EVALUATION)
    products = replace(recipe("multiplication_trace"), evaluation=PRODUCT_EVALUATION)
    lists = replace(recipe("sort_narrow"), evaluation=SORT_EVALUATION)
    assert isinstance(products.task, Multiplication)
    assert isinstance(lists.task, Sort)
    return {
        SUM: sums,
        "sum, written carries": replace(sums, task=Addition(scratchpad="carry")),
        PRODUCT: products,
        "product, two symbols per step": replace(products, task=replace(products.task, trace=False)),
        "product, trace, uniform digits": replace(products, task=replace(products.task, nines_share=0.0)),
        SORT: lists,
        "sort, all lists wide": replace(lists, task=replace(lists.task, narrow_share=0.0)),
    }


CLAIM = Claim(
    summary="sums and products of 1,000 digits with a written trace, and sorted lists of 128 items",
    paper="extends section 5.2; lengths of Malach et al. 2025 (arXiv 2510.14826)",
    experiments=_build_experiments,
    laptop=SizePreset(num_seeds=1, labels=(SUM, PRODUCT, SORT)),
)
