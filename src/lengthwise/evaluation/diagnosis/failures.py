"""Failed examples of a length, with the location and kind of their first errors."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from jaxtyping import Bool

from lengthwise.core.randomness import stream
from lengthwise.evaluation.exact_match import check_id_range, iter_examples
from lengthwise.evaluation.forecast.probed_model import ProbedModel
from lengthwise.evaluation.forecast.sparse_queries import Queries, build_queries
from lengthwise.evaluation.grading import first_errors, grade
from lengthwise.model.decoder import Decoder

# Maximum number of examples for free decoding after a wrong ID.
MAX_NUM_DECODED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureBatch:
    """First errors of failed examples with their kinds.

    ``tokens_correct`` marks examples in which all tokens are correct if the input has the correct IDs. ``ids_correct``
    marks examples in which all predicted IDs are correct.
    """

    errors: Queries
    kinds: tuple[str, ...]
    tokens_correct: Bool[np.ndarray, " failed"]
    ids_correct: Bool[np.ndarray, " failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCounts:
    """Number of failed examples: in total, by kind of first error, and by the tenth of the response with the error.

    ``error_propagation`` is the fraction of first ID errors that lead to a wrong token in free decoding; None without
    ID errors.
    """

    num_failures: int
    token: int
    id: int
    end_too_early: int
    end_too_late: int
    median_index: float
    by_tenth: tuple[int, ...]
    error_propagation: float | None


def collect_failures(
    model: ProbedModel, length: int, num_examples: int, report: Callable[[], None] = lambda: None
) -> tuple[list[FailureBatch], list[Queries]]:
    """Grade the examples of ``evaluate_by_length`` with teacher forcing; call ``report`` before each batch.

    Return the first errors of failed examples, and one random correct answer token of each example that has any.
    """
    model.decoder.eval()
    end_token, rng = model.task.vocabulary.index("end"), stream(model.seed, "diagnosis right answers", length)
    failures, correct_queries = [], []
    for examples, batch in iter_examples(model.task, model.scheme, length, num_examples, model.seed):
        report()
        check_id_range(model.decoder.check_ids.num_position_ids, batch, length)
        grades = grade(model.decoder, batch, end=end_token, decode="forced")
        first_column = examples.prompt_length - grades.prompt_offset.numpy()
        is_correct = (grades.scored & ~grades.token_errors & ~grades.id_errors & ~grades.end).numpy()
        answer_index = (rng.random(is_correct.shape) * is_correct).argmax(axis=1) + first_column
        queries = build_queries(model.task, examples, batch, answer_index)
        correct_queries.append(queries.select(np.flatnonzero(is_correct.any(axis=1))))
        errors = first_errors(grades)
        if not errors:
            continue
        failed, columns, kinds = (np.array(values) for values in zip(*errors, strict=True))
        answer_index = columns + first_column[failed]
        end_kinds = np.where(examples.tokens[failed, answer_index] == end_token, "end too late", "end too early")
        failures.append(
            FailureBatch(
                errors=build_queries(model.task, examples.select(failed), batch.select(failed), answer_index),
                kinds=tuple(np.where(kinds == "end", end_kinds, kinds).tolist()),
                tokens_correct=(~grades.token_errors.any(dim=1)).numpy()[failed],
                ids_correct=(~grades.id_errors.any(dim=1)).numpy()[failed],
            )
        )
    return failures, correct_queries


def count_failures(model: ProbedModel, failures: list[FailureBatch]) -> FailureCounts:
    """Count failed examples by the kind and location of their first errors; ``failures`` must not be empty."""
    kinds = Counter(chain.from_iterable(batch.kinds for batch in failures))
    errors = [batch.errors for batch in failures]
    error_indices = np.concatenate([batch.answer - batch.examples.prompt_length for batch in errors])
    num_positions = np.concatenate([batch.examples.response_end - batch.examples.prompt_length + 1 for batch in errors])
    return FailureCounts(
        num_failures=len(error_indices),
        token=kinds["token"],
        id=kinds["id"],
        end_too_early=kinds["end too early"],
        end_too_late=kinds["end too late"],
        median_index=float(np.median(error_indices)),
        by_tenth=tuple(np.bincount(10 * error_indices // num_positions, minlength=10).tolist()),
        error_propagation=_error_propagation(model, failures),
    )


def _error_propagation(model: ProbedModel, failures: list[FailureBatch]) -> float | None:
    end_token, has_wrong_token, num_remaining = model.task.vocabulary.index("end"), [], MAX_NUM_DECODED
    for failure_batch in failures:
        id_errors = np.flatnonzero(np.array(failure_batch.kinds) == "id")[:num_remaining]
        if len(id_errors):
            grades = grade(model.decoder, failure_batch.errors.batch.select(id_errors), end=end_token, decode="free")
            has_wrong_token += grades.token_errors.any(dim=1).tolist()
            num_remaining -= len(id_errors)
    return float(np.mean(has_wrong_token)) if has_wrong_token else None


@torch.no_grad()
def grade_with_known_end(decoder: Decoder, failures: FailureBatch, end: int) -> tuple[Bool[np.ndarray, " failed"], ...]:
    """Grade failed examples with end tokens at the correct indexes instead of the predicted end tokens.

    Return two masks: examples whose first error was an end error and is repaired, and examples without any error.
    """
    batch = failures.errors.batch
    hidden, _ = decoder(batch.tokens[:, :-1], batch.position_ids[:, :, :-1])
    logits, targets = decoder.token_logits(hidden), batch.tokens[:, 1:]
    logits[..., end] = -torch.inf
    is_correct = ((logits.argmax(dim=-1) == targets) | (targets == end) | ~batch.token_scored[:, 1:]).numpy()
    is_end_error = np.array([kind.startswith("end") for kind in failures.kinds])
    is_first_correct = is_correct[np.arange(len(is_end_error)), failures.errors.answer - 1]
    return is_end_error & is_first_correct, is_correct.all(axis=1) & failures.ids_correct
