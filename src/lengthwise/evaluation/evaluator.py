"""The evaluator of a task: exact match by length, or loss by context length."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lengthwise.encodings import EncodingSettings
from lengthwise.evaluation.exact_match import EvaluationSettings, LengthResult, check_lengths, results_by_length
from lengthwise.evaluation.loss_by_context import ContextLoss, check_contexts, losses_by_context
from lengthwise.positions import PositionScheme
from lengthwise.tasks import GradedByLoss, Task, graded_by_loss

Results = Iterator[LengthResult] | Iterator[ContextLoss]


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
    return LOSS if graded_by_loss(task) else EXACT_MATCH


def check_measurable(
    task: Task, scheme: PositionScheme, encoding: EncodingSettings, settings: EvaluationSettings
) -> None:
    """Raise ``SettingError`` or ``PositionRangeError`` for lengths that cannot be measured."""
    if isinstance(task, GradedByLoss):
        check_contexts(task, settings)
    check_lengths(task, scheme, encoding, settings)
