"""The evaluator of a task: exact match by length, or loss by context length."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lengthwise.core.type_checks import check_values
from lengthwise.encodings import EncodingSettings
from lengthwise.evaluation.exact_match import EvaluationSettings, LengthResult, check_lengths, results_by_length
from lengthwise.evaluation.loss_by_context import ContextLoss, check_contexts, losses_by_context
from lengthwise.positions import PositionScheme
from lengthwise.tasks import GradedByLoss, Task

Results = Iterator[LengthResult] | Iterator[ContextLoss]
HELD_OUT = "name rows that were held out, with --task FILE.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """A way to evaluate a decoder: ``measure`` yields one ``result_type`` per length, ``by_loss`` says which kind."""

    by_loss: bool
    result_type: type[LengthResult] | type[ContextLoss]
    measure: Callable[..., Results]


EXACT_MATCH = Evaluator(by_loss=False, result_type=LengthResult, measure=results_by_length)
LOSS = Evaluator(by_loss=True, result_type=ContextLoss, measure=losses_by_context)


def evaluator_of(task: Task) -> Evaluator:
    """Return the evaluator that a task needs."""
    return LOSS if isinstance(task, GradedByLoss) else EXACT_MATCH


def check_measurable(
    task: Task, scheme: PositionScheme, encoding: EncodingSettings, settings: EvaluationSettings
) -> None:
    """Raise ``SettingError`` or ``PositionRangeError`` for lengths that cannot be measured."""
    if isinstance(task, GradedByLoss):
        check_contexts(task, settings)
    check_lengths(task, scheme, encoding, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a row says about its run, beside what was measured."""

    variant: str | None
    seed: int
    steps: int
    trained_distance: float
    train_s: float


def check_row(row: Mapping[str, Any], evaluator: Evaluator) -> None:
    """``SettingError`` unless a row holds numbers where an evaluation has written them."""
    check_values(evaluator.result_type, row)
    check_values(RunFacts, row)


def seen_lengths(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the lengths of rows of which some examples were trained on, with commas between them."""
    return ", ".join(f"{length:,}" for length in sorted({row["length"] for row in rows if row.get("seen_in_training")}))
