"""The evaluator of a task (exact match by length, or loss by context length), and checks of its result rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lengthwise.core.type_checks import check_values
from lengthwise.encodings import EncodingSettings
from lengthwise.evaluation.exact_match import EvaluationSettings, check_lengths, iter_results
from lengthwise.evaluation.loss_by_context import ContextLoss, check_contexts, iter_losses
from lengthwise.evaluation.tally import LengthResult
from lengthwise.positions import PositionScheme
from lengthwise.tasks import GradedByLoss, Task

ResultIterator = Iterator[LengthResult] | Iterator[ContextLoss]
HELD_OUT_ADVICE = "use held-out records with --task FILE.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Evaluation method for decoders; ``measure`` yields one result of type ``result_type`` per length."""

    uses_loss: bool
    result_type: type[LengthResult] | type[ContextLoss]
    measure: Callable[..., ResultIterator]


EXACT_MATCH_EVALUATOR = Evaluator(uses_loss=False, result_type=LengthResult, measure=iter_results)
LOSS_EVALUATOR = Evaluator(uses_loss=True, result_type=ContextLoss, measure=iter_losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """Keys that describe the run in a result row, with the types of their values."""

    variant: str | None
    seed: int
    steps: int
    trained_distance: float
    train_s: float


def select_evaluator(task: Task) -> Evaluator:
    """Return ``LOSS_EVALUATOR`` for a task graded by loss, and ``EXACT_MATCH_EVALUATOR`` for all other tasks."""
    return LOSS_EVALUATOR if isinstance(task, GradedByLoss) else EXACT_MATCH_EVALUATOR


def check_evaluation_settings(
    task: Task, scheme: PositionScheme, encoding: EncodingSettings, settings: EvaluationSettings
) -> None:
    """Raise ``SettingError`` or ``PositionRangeError`` for lengths that cannot be evaluated."""
    if isinstance(task, GradedByLoss):
        check_contexts(task, settings)
    check_lengths(task, scheme, encoding, settings)


def check_row(row: Mapping[str, Any], evaluator: Evaluator) -> None:
    """Raise ``SettingError`` for a result row with missing keys or values of the wrong type."""
    check_values(evaluator.result_type, row)
    check_values(RunMetadata, row)


def overlapping_lengths(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the lengths, separated by commas, at which test examples also occur in the training data."""
    return ", ".join(f"{length:,}" for length in sorted({row["length"] for row in rows if row.get("seen_in_training")}))
