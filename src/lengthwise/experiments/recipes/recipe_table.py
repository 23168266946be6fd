"""Table of recipes: experiments with tested settings by name, and the default recipe of each task.

A recipe is a function without arguments, so that only the recipe in use is built. A variant states its differences to
another recipe.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from lengthwise.encodings import NAPE, EncodingSettings, KERPLEPower, NoPE, Rotary
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.recipes.tuned_encodings import (
    SHARP_DECODER,
    SHARP_ROTARY,
    SMALL,
    SMALL_WITH_PREVIOUS_TOKEN,
    until_fit_settings,
    with_found_coupling,
)
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import Coupled, MultiLevel, Predicted, Sequential
from lengthwise.tasks import (
    Addition,
    Copy,
    MultiAddition,
    Multiplication,
    MultiQueryRecall,
    Parity,
    PlantedCorrelations,
    Recall,
    Reverse,
    Sort,
    SparseParity,
    Task,
    Text,
    VariableAssignment,
)
from lengthwise.training.training_settings import TrainingSettings

Result_co = TypeVar("Result_co", covariant=True)

# With many gaps, each example contains all ID distances. With three gaps, 1 of 5 seeds of parity failed at 2,000 bits.
# For addition, each example contains ten ID distances instead of three; long sums contain all of them.
MAX_GAPS = 10
# Number of gaps per level, of tasks with two levels.
LEVEL_GAPS = 5
# Enough IDs for 20,000 bits and their separator.
PARITY_NUM_POSITION_IDS = 20_480
# Numbers of flagged bits in the test variants of sparse parity; some exceed the numbers in training.
TEST_BITS = (1, 2, 4, 6, 8, 10, 12, 16)
# Context length of training on text, enough for 256 far tokens and 32 near tokens.
TEXT_LENGTH = 320
CARRY_VARIANTS = ("uniform", "carry", "unequal")

# Rules that were found in examples of the tasks (tests/experiments/test_recipes.py). For addition, one pointer follows
# the first number, and one the second. An answer of variable assignment points to the symbol after the one that it
# matches; 2058 is the symbol "=".
COPY_RULE = ("one", "rising: prompt first +1 +0")
ADDITION_RULE = (*COPY_RULE, "rising: prompt #10.0 +1 +1")
ASSIGNMENT_RULE = ("one", "rising: prompt last +1 +0 or match answer 1 before 2058 +2")

# Decoder of tasks in which a step attends to several tokens: scores that grow with the length would change their
# weights. With one wide head, sums of 1,000 digits are exact (benchmarks/claims/addition/README.md). For variable
# assignment with a log factor, 1 of 5 seeds had 0.63 at 1,600 assignments (benchmarks/claims/variable_assignment).
ONE_WIDE_HEAD = replace(SHARP_DECODER, d_model=128, num_heads=1)
# Scores that fall with a learned power of the ID distance, at least linearly, and do not grow with the length, so that
# a query reads only near IDs at every length. Rotary scores of some far IDs are close to those of near ones.
NEAR_IDS: dict[str, Any] = {
    "encoding": KERPLEPower(min_power=1.0),
    "decoder": DecoderSettings(head="rank", length_scaling="none", temperature=1.0),
}


@dataclass(frozen=True, slots=True)
class Recipe(Generic[Result_co]):
    """Function that returns an experiment, or the experiments of a comparison by label, with a summary."""

    summary: str
    build: Callable[[], Result_co]

    def __call__(self) -> Result_co:
        """Return a new experiment, or new experiments."""
        return self.build()


def ppc_experiment(
    task: Task,
    num_position_ids: int,
    max_gaps: int = MAX_GAPS,
    *,
    encoding: EncodingSettings = SHARP_ROTARY,
    **parts: Any,
) -> Experiment:
    """Return an experiment with predicted IDs.

    The fast angles separate neighboring IDs: 8 of 8 tuning seeds of parity fit, 4 of 8 with the published angles.
    """
    scheme = Predicted(num_position_ids=num_position_ids, max_gaps=max_gaps)
    return Experiment(task=task, scheme=scheme, encoding=encoding, **parts)


def evaluation_at_lengths(
    *lengths: int, num: int | tuple[int, ...] = 512, variants: tuple[str, ...] = ()
) -> EvaluationSettings:
    """Return the evaluation at these lengths, with one number of examples or one for each length."""
    return EvaluationSettings(
        lengths=lengths, num_examples=num if isinstance(num, tuple) else (num,), variants=variants
    )


def vary_recipe(name: str, **changes: Any) -> Experiment:
    """Return a recipe with other parts; a dict has the changed settings of a part."""
    base = RECIPES[name]()
    new_parts = {
        part: replace(getattr(base, part), **change) if isinstance(change, dict) else change
        for part, change in changes.items()
    }
    return replace(base, **new_parts)


def without_id_prediction(name: str, scheme_class: type[Coupled | MultiLevel] = Coupled) -> Experiment:
    """Return a recipe of PPC with the same IDs, given instead of predicted."""
    scheme: Any = RECIPES[name]().scheme
    return vary_recipe(name, scheme=scheme_class(num_position_ids=scheme.num_position_ids, max_gaps=scheme.max_gaps))


def sparse_parity_up_to(
    max_bits: int, *, coding: str = "flags", window: int | None = None, test_bits: tuple[int, ...] = TEST_BITS
) -> Experiment:
    """Return the recipe for sparse parity in stages, with one more flagged bit per stage, up to ``max_bits``.

    A stage ends when its loss is low. ``test_bits`` contains the numbers of flagged bits, one per test variant.
    """
    variants = tuple(f"flagged-{num_bits}" for num_bits in test_bits)
    return vary_recipe(
        "sparse_parity",
        task=SparseParity(most=max_bits, coding=coding, window=window, tested=test_bits),
        # Without dilution, attention to flagged bits fades beyond 4 times the training length for one seed in three.
        decoder={"d_model": 128, "num_heads": 4, "dilution": 0.5},
        # The last stage has a small share of the examples, so its loss is more informative than exact match.
        training=replace(
            until_fit_settings(4000),
            learning_rate=2e-3,
            stage_threshold=0.02,
            fit_every=50,
            fit_threshold=0.998,
            cooldown_steps=800,
        ),
        evaluation=evaluation_at_lengths(50, 100, 200, 500, 5000, num=(512, 512, 512, 512, 16), variants=variants),
    )


def resize_language_model(num_layers: int, d_model: int, num_heads: int) -> Experiment:
    """Return a language model of another size, which trains on the same number of tokens."""
    medium = RECIPES["language_model"]()
    # The learning rate is inversely proportional to the width (Yang et al. 2022, arXiv 2203.03466).
    learning_rate = medium.training.learning_rate * medium.decoder.d_model / d_model
    return vary_recipe(
        "language_model",
        decoder={"num_layers": num_layers, "d_model": d_model, "num_heads": num_heads},
        training={"learning_rate": learning_rate},
    )


RECIPES: dict[str, Recipe[Experiment]] = {
    "parity": Recipe(
        "The parity of up to 20 bits with a scratchpad and PPC.",
        lambda: ppc_experiment(
            Parity(),
            PARITY_NUM_POSITION_IDS,
            training=TrainingSettings(steps=1000, weight_decay=0.1),
            train_lengths=(1, 20),
            evaluation=evaluation_at_lengths(20, 200, 2000),
        ),
    ),
    "parity_rank": Recipe(
        "Parity with the rank head, which predicts IDs at a lower cost than the pointer head.",
        lambda: vary_recipe("parity", decoder={"head": "rank"}),
    ),
    "parity_long": Recipe(
        "The parity of up to a million bits, trained on up to 20 (``benchmarks/million_tokens.md``).",
        lambda: vary_recipe(
            "parity",
            scheme={"num_position_ids": 2**20},
            evaluation=evaluation_at_lengths(20, 2000, 100_000, num=(512, 64, 1)),
            **NEAR_IDS,
        ),
    ),
    "parity_coupled": Recipe(
        "Parity with coupled IDs instead of predicted IDs.", lambda: without_id_prediction("parity")
    ),
    # Enough IDs for 2,000 symbols.
    "copy": Recipe(
        "Copying up to 20 symbols with PPC.",
        lambda: vary_recipe("parity", task=Copy(), scheme={"num_position_ids": 4096}),
    ),
    "copy_long": Recipe(
        "Copying up to a million symbols, trained on up to 20.", lambda: vary_recipe("parity_long", task=Copy())
    ),
    "reverse": Recipe("Reversing up to 20 symbols with PPC.", lambda: vary_recipe("copy", task=Reverse())),
    # The coupling was found in examples of the task: an answer has the ID of the token after the one that it matches.
    "variable_assignment": Recipe(
        "Following a variable through up to 16 assignments with a scratchpad and PPC.",
        lambda: with_found_coupling(RECIPES["variable_assignment_by_hand"](), ASSIGNMENT_RULE, num_position_ids=8192),
    ),
    # Enough IDs for 2,000 assignments with the question.
    "variable_assignment_by_hand": Recipe(
        "Variable assignment with PPC on the coupling of the task: two tokens share one ID.",
        lambda: ppc_experiment(
            VariableAssignment(),
            2048,
            decoder=replace(ONE_WIDE_HEAD, tied_output=True),
            training=TrainingSettings(steps=1500),
            train_lengths=(1, 16),
            evaluation=evaluation_at_lengths(16, 160, 1600, num=(512, 512, 64)),
        ),
    ),
    "variable_assignment_coupled": Recipe(
        "Variable assignment with coupled IDs instead of predicted IDs.",
        lambda: without_id_prediction("variable_assignment_by_hand"),
    ),
    # The coupling was found in examples of the task: the prompt counts 1, 2, 3, and an answer has two IDs.
    "addition": Recipe(
        "Adding two numbers of up to 10 digits with PPC, without writing carries.",
        lambda: with_found_coupling(RECIPES["addition_by_hand"](), ADDITION_RULE, num_position_ids=4096),
    ),
    # Enough IDs for more than 1,000 digits.
    "addition_by_hand": Recipe(
        "Addition with PPC on the coupling of the task: the digits of a place share one ID.",
        lambda: ppc_experiment(
            Addition(),
            2048,
            decoder=ONE_WIDE_HEAD,
            training=TrainingSettings(steps=2000, batch_size=128, weight_decay=0.1),
            train_lengths=(1, 10),
            evaluation=evaluation_at_lengths(10, 100, num=256, variants=CARRY_VARIANTS),
        ),
    ),
    "addition_coupled": Recipe(
        "Adding two numbers with coupled IDs instead of predicted IDs.",
        lambda: without_id_prediction("addition_by_hand"),
    ),
    "addition_carry": Recipe(
        "Adding two numbers with PPC, with the carry written next to each digit.",
        lambda: vary_recipe("addition_by_hand", task=Addition(scratchpad="carry")),
    ),
    # As for parity of a million tokens, a token reads only one other token, at ID distance 0. With rotary scores, far
    # digits change the tokens of long sums.
    "addition_trace": Recipe(
        "Adding two numbers of up to 5 digits with PPC and a trace of each digit read.",
        lambda: vary_recipe(
            "addition_by_hand",
            task=Addition(scratchpad="trace"),
            training=TrainingSettings(steps=1500, weight_decay=0.1),
            train_lengths=(1, 5),
            evaluation=evaluation_at_lengths(5, 100, num=256, variants=CARRY_VARIANTS),
            **NEAR_IDS,
        ),
    ),
    # Enough IDs per level (digits and operands) for 60 of each and their signs. Additional operands compete for
    # attention, and the log factor keeps attention sharp. Flatter attention would fit 5 operands equally well and fail
    # on 10 (benchmarks/multi_addition.md).
    "multi_addition": Recipe(
        "Adding 2 to 5 numbers of up to 5 digits with PPC on two ID levels (digit and operand).",
        lambda: ppc_experiment(
            MultiAddition(),
            64,
            LEVEL_GAPS,
            decoder=DecoderSettings(d_model=128, num_heads=4),
            training=TrainingSettings(steps=3000),
            train_lengths=(1, 5),
            evaluation=evaluation_at_lengths(5, 10, 15, num=256, variants=("5 operands", "10 operands")),
        ),
    ),
    "multi_addition_given": Recipe(
        "Adding 2 to 5 numbers with coupled IDs on two levels instead of predicted IDs.",
        lambda: without_id_prediction("multi_addition", MultiLevel),
    ),
    # Enough IDs per level (digits and partial products) for 250 digits.
    "multiplication": Recipe(
        "Multiplying up to 10 digits by 2 digits with PPC on two ID levels.",
        lambda: ppc_experiment(
            Multiplication(),
            256,
            LEVEL_GAPS,
            decoder=DecoderSettings(d_model=128, num_heads=4),
            training=TrainingSettings(steps=2500),
            train_lengths=(1, 10),
            evaluation=evaluation_at_lengths(10, 40, 100, num=256),
        ),
    ),
    # Enough IDs per level for 1,000 digits with a trace. Scores by distance, as for sums, hide the digits of the second
    # factor, which are far on the level of places.
    "multiplication_trace": Recipe(
        "Multiplying up to 10 digits by 2 digits with PPC and a trace of three tokens per step.",
        lambda: vary_recipe(
            "multiplication",
            task=Multiplication(trace=True, nines_share=0.3),
            scheme={"num_position_ids": 2048},
            decoder=DecoderSettings(),
            training=TrainingSettings(steps=1200),
            evaluation=evaluation_at_lengths(10, 100, num=(256, 64), variants=("1 digits", "2 digits")),
        ),
    ),
    "multiplication_given": Recipe(
        "Multiplication with coupled IDs on two levels instead of predicted IDs.",
        lambda: without_id_prediction("multiplication", MultiLevel),
    ),
    # Enough IDs for lists much longer than the number of distinct values. The search head is the only one that can
    # compare two values. Two values adjacent in a long sorted list rarely occur together in a short list, so that
    # training needs many lists.
    "sort": Recipe(
        "Sorting up to 10 items with PPC: the search head finds the next item to copy.",
        lambda: ppc_experiment(
            Sort(),
            512,
            decoder=DecoderSettings(head="search"),
            training=TrainingSettings(steps=2000, batch_size=256),
            train_lengths=(1, 10),
            evaluation=evaluation_at_lengths(10, 20, 40, 64, num=256),
        ),
    ),
    "sort_narrow": Recipe(
        "Sorting up to 20 of 128 values with PPC; half of the training lists are narrow.",
        lambda: vary_recipe(
            "sort",
            task=Sort(num_values=128, narrow_share=0.5),
            decoder={"d_model": 128},
            training=TrainingSettings(steps=3500, batch_size=128),
            train_lengths=(1, 20),
            evaluation=evaluation_at_lengths(20, 100, num=256),
        ),
    ),
    "sort_given": Recipe(
        "Sorting with coupled IDs, which contain the sorted order; the decoder only copies items.",
        lambda: without_id_prediction("sort"),
    ),
    "planted": Recipe(
        "A planted law (two marked tokens determine the label) without position information.",
        lambda: Experiment(
            task=PlantedCorrelations(),
            scheme=Sequential(),
            encoding=NoPE(),
            training=TrainingSettings(steps=2000),
            train_lengths=(2, 16),
            evaluation=evaluation_at_lengths(16, 32, 64, 160),
        ),
    ),
    "sparse_parity": Recipe(
        "The parity of up to three flagged bits among 20 to 50 bits.",
        lambda: Experiment(
            task=SparseParity(most=3),
            scheme=Sequential(),
            encoding=NoPE(),
            decoder=replace(SMALL, num_heads=2),
            training=until_fit_settings(1500),
            train_lengths=(20, 50),
            evaluation=evaluation_at_lengths(50, 100, 200, 500),
        ),
    ),
    "sparse_parity_8": Recipe(
        "The parity of up to eight flagged bits among 20 to 50 bits, learned in stages.",
        lambda: sparse_parity_up_to(8),
    ),
    "recall": Recipe(
        "Recalling the value of one of four keys in a text of up to 32 items.",
        lambda: Experiment(
            task=Recall(),
            scheme=Sequential(),
            encoding=NoPE(),
            decoder=replace(SMALL_WITH_PREVIOUS_TOKEN, num_heads=2),
            training=until_fit_settings(3000),
            train_lengths=(4, 32),
            evaluation=evaluation_at_lengths(32, 64, 128, 512),
        ),
    ),
    # The lengths are those of the paper. The model is much smaller, and has not fitted yet
    # (benchmarks/claims/recall_attention/README.md).
    "multi_query_recall": Recipe(
        "Recalling the values of four keys in texts of 32 to 64 tokens, full of pairs (MQMTAR).",
        lambda: vary_recipe(
            "recall",
            task=MultiQueryRecall(),
            encoding=NAPE(),
            training={"steps": 20_000},
            train_lengths=(32, 64),
            evaluation=evaluation_at_lengths(64, 128, 256, 1024, num=256),
        ),
    ),
    # Influence studies hide tokens, so no embedding may contain information about the previous token.
    "language_model": Recipe(
        "A language model of medium size; ``--corpus`` sets the training text.",
        lambda: Experiment(
            task=Text(),
            scheme=Sequential(),
            encoding=Rotary(),
            decoder=DecoderSettings(
                num_layers=4, d_model=128, num_heads=4, length_scaling="none", segments=False, tied_output=True
            ),
            training=TrainingSettings(
                steps=1500, batch_size=16, learning_rate=4e-3, weight_decay=0.1, warmup_steps=100
            ),
            train_lengths=(TEXT_LENGTH, TEXT_LENGTH),
            evaluation=evaluation_at_lengths(TEXT_LENGTH // 4, TEXT_LENGTH // 2, TEXT_LENGTH),
        ),
    ),
    "language_model_small": Recipe(
        "A language model with half the width and half the layers of ``language_model``.",
        lambda: resize_language_model(num_layers=2, d_model=64, num_heads=2),
    ),
    "language_model_large": Recipe(
        "A language model with twice the width and 1.5 times the layers of ``language_model``.",
        lambda: resize_language_model(num_layers=6, d_model=256, num_heads=8),
    ),
}
# Names of the default recipe of a task, and of the recipes with other schemes, by the name of the task.
DEFAULT_RECIPES: dict[str, tuple[str, Mapping[str, str]]] = {
    "parity": ("parity", {"coupled": "parity_coupled"}),
    "copy": ("copy", {}),
    "reverse": ("reverse", {}),
    "variable_assignment": (
        "variable_assignment_by_hand",
        {"coupled": "variable_assignment_coupled", "discovered": "variable_assignment"},
    ),
    "addition": ("addition_by_hand", {"coupled": "addition_coupled", "discovered": "addition"}),
    "multi_addition": ("multi_addition", {"multilevel": "multi_addition_given"}),
    "multiplication": ("multiplication", {"multilevel": "multiplication_given"}),
    "sort": ("sort", {"coupled": "sort_given"}),
    "planted": ("planted", {}),
    "sparse_parity": ("sparse_parity", {}),
    "recall": ("recall", {}),
    "multi_query_recall": ("multi_query_recall", {}),
    "text": ("language_model", {}),
}
