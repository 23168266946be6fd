"""Failed examples of a length: first errors, attention on the needed tokens, and IDs and distances beyond training."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.exact_match import check_id_range, iter_examples
from lengthwise.evaluation.forecast.probed_model import (
    AnswerQueries,
    ProbedModel,
    build_queries,
    sample_answers,
    take_first,
)
from lengthwise.evaluation.grading import first_errors, grade
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.training.batch import Batch

# Maximum number of examples for free decoding after a wrong ID.
MAX_NUM_DECODED = 16
# Maximum number of answers per mean.
NUM_ANSWERS = 64
# Number of training examples that determine the distances between answers and their needed tokens.
NUM_DISTANCE_EXAMPLES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureBatch:
    """First errors of failed examples with their kinds.

    ``tokens_correct`` marks examples in which all tokens are correct if the input has the correct IDs. ``ids_correct``
    marks examples in which all predicted IDs are correct.
    """

    errors: AnswerQueries
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
) -> tuple[list[FailureBatch], list[AnswerQueries]]:
    """Grade the examples of ``evaluate_by_length`` with teacher forcing; call ``report`` before each batch.

    Return the first errors of failed examples, and one random correct answer token of each example that has any.
    """
    model.decoder.eval()
    end_token, rng = model.task.vocabulary.index("end"), random_stream(model.seed, "diagnosis right answers", length)
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
                errors=build_queries(model.task, examples.select(failed), batch.select_examples(failed), answer_index),
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
            batch = failure_batch.errors.batch.select_examples(id_errors)
            grades = grade(model.decoder, batch, end=end_token, decode="free")
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


def mean_needed_attention(
    model: ProbedModel, length: int, num_answers: int, report: Callable[[], None]
) -> Float[np.ndarray, "layers heads"]:
    """Return each head's mean attention on the needed tokens of sampled answers; 0 for a task without depends_on.

    ``report`` is called before each batch of answers.
    """
    rng = random_stream(model.seed, "diagnosis attention", length)
    masses = []
    for examples, batch in iter_examples(model.task, model.scheme, length, num_answers, model.seed):
        report()
        if examples.depends_on is not None:
            answer = sample_answers(model.task, batch, rng)
            masses += measure_needed_attention(model.decoder, batch, answer, examples.depends_on)
    return _mean_by_head(model, masses)


def needed_attention_at_errors(model: ProbedModel, errors: list[AnswerQueries]) -> Float[np.ndarray, "layers heads"]:
    """Return each head's mean attention on the needed tokens of the first errors; 0 for a task without depends_on."""
    masses = []
    for queries in take_first(errors, NUM_ANSWERS):
        if (depends_on := queries.examples.depends_on) is not None:
            masses += measure_needed_attention(model.decoder, queries.batch, queries.answer, depends_on)
    return _mean_by_head(model, masses)


@torch.no_grad()
def measure_needed_attention(
    decoder: Decoder, batch: Batch, answer: Int[np.ndarray, " batch"], depends_on: Int[np.ndarray, "batch seq k"]
) -> list[Float[np.ndarray, "layers heads"]]:
    """Return the attention of one answer per example on its needed tokens; ``answer`` contains token indexes.

    The needed tokens exclude the token before the answer, because the decoder reads it without attention. The result
    omits answers whose needed tokens are only this token.
    """
    masses: list[Float[np.ndarray, "layers heads"]] = []
    for example, query_index in enumerate((answer - 1).tolist()):
        keys = np.unique(depends_on[example, query_index + 1])
        keys = keys[(keys >= 0) & (keys != query_index)]
        if not len(keys):
            continue
        by_layer: list[Float[np.ndarray, " heads"]] = []

        def record_mass(weights: Tensor, keys: np.ndarray = keys, by_layer: list[np.ndarray] = by_layer) -> None:
            by_layer.append(weights[0, :, 0, keys].sum(dim=-1).numpy())

        tokens, ids = batch.tokens[example : example + 1], batch.position_ids[:, example : example + 1]
        # With a cache, only the weights of the last token are computed, so long sequences fit into memory.
        _, cache = decoder(tokens[:, :query_index], ids[:, :, :query_index]) if query_index else (None, None)
        query_slice = slice(query_index, query_index + 1)
        decoder(tokens[:, query_slice], ids[:, :, query_slice], cache, hooks=AttentionHooks(on_weights=record_mass))
        masses.append(np.stack(by_layer))
    return masses


def _mean_by_head(
    model: ProbedModel, masses: list[Float[np.ndarray, "layers heads"]]
) -> Float[np.ndarray, "layers heads"]:
    settings = model.decoder.settings
    if not masses:
        return np.zeros((settings.num_unrolled_blocks, settings.num_heads))
    return np.asarray(np.array(masses, dtype=np.float64).mean(axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeShift:
    """Maximum of a quantity (an ID or an ID distance) in training and in the failed examples.

    ``fraction_beyond`` is the fraction of failed examples with a value above ``train_max``.
    """

    quantity: str
    train_max: float
    test_max: float
    fraction_beyond: float


def measure_range_shifts(model: ProbedModel, errors: list[AnswerQueries]) -> Iterator[RangeShift]:
    """Yield one range shift per quantity; ``errors`` contains the first error of each failed example.

    Quantities of the needed tokens are measured only if the task declares needed tokens.
    """
    trained_distance = model.trained_distance
    assert trained_distance is not None, "a finished run has a trained distance"
    largest_ids, distances, id_spans = [], [], []
    for queries in errors:
        ids = queries.batch.position_ids.numpy().astype(np.float64)
        id_spans.append(np.ptp(ids, axis=-1).max(axis=0))
        if (depends_on := queries.examples.depends_on) is not None:
            example_indices = np.arange(len(queries.answer))
            largest_id, distance = _range_of_needed(ids, depends_on)
            largest_ids.append(largest_id[example_indices, queries.answer])
            distances.append(distance[example_indices, queries.answer])
    max_train_distance = _max_train_distance_to_needed(model) if distances else 0
    quantities = (
        ("ID of the needed tokens of an answer", model.id_range[1], largest_ids),
        ("distance of an answer to its needed tokens", max_train_distance, distances),
        ("distance between any two tokens", trained_distance, id_spans),
    )
    for quantity, train_max, values_by_batch in quantities:
        if values_by_batch:
            values, limit = np.concatenate(values_by_batch), float(train_max)
            beyond, test_max = float((values > limit).mean()), float(values.max())
            yield RangeShift(quantity=quantity, train_max=limit, test_max=test_max, fraction_beyond=beyond)


def _range_of_needed(
    ids: Float[np.ndarray, "level batch seq"], depends_on: Int[np.ndarray, "batch seq k"]
) -> tuple[Float[np.ndarray, "batch seq"], Float[np.ndarray, "batch seq"]]:
    """Return each token's largest ID of its needed tokens, and their largest distance to the previous token.

    With several levels, the distance comes from the level on which it is smallest.
    """
    query_ids = np.roll(ids, 1, axis=2)
    example_indices = np.arange(len(depends_on))[:, None, None]
    needed_ids = np.where(depends_on >= 0, ids[:, example_indices, depends_on], query_ids[..., None])
    distances = np.abs(needed_ids - query_ids[..., None]).max(axis=3).min(axis=0)
    return needed_ids.max(axis=(0, 3)), distances


def _max_train_distance_to_needed(model: ProbedModel) -> float:
    rng = random_stream(model.seed, "diagnosis training", model.max_train_length)
    examples = model.task.sample(length=model.max_train_length, size=NUM_DISTANCE_EXAMPLES, rng=rng)
    assert examples.depends_on is not None
    ids = model.scheme.assign(examples, rng, training=True).position_ids.astype(np.float64)
    return float(_range_of_needed(ids, examples.depends_on)[1][examples.is_answer].max())
