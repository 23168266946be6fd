"""The assumptions of the theory, measured on a trained decoder at its longest training length.

Sparsity and locality use the needed tokens that the task declares. Measuring them by hiding tokens misses some of it:
neighboring tokens can contain the information of a hidden token, or repeat it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from lengthwise.core.errors import LengthwiseError
from lengthwise.evaluation.forecast.probed_model import MAX_SCORES, AnswerQueries, ProbedModel, SubsampleAccuracy
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder
from lengthwise.theory.task_certificate import AssumptionCheck, measure_dependencies

# Maximum decrease in the probability of the correct answer if only a sufficient set of tokens is visible.
MAX_PROBABILITY_DECREASE = 0.1
# Quantile of the reported values over answers.
QUANTILE = 0.9
# Maximum number of tokens in the search.
MAX_TOKENS = 32
# Minimum accuracy at a length that counts as solved.
ACCURACY_THRESHOLD = 0.9
# Maximum change in accuracy if a half or a quarter of the tokens remain; beyond it, subsamples predict no accuracy.
MAX_ACCURACY_CHANGE = 0.1
# Maximum total variation between two distributions that count as equal.
MAX_TOTAL_VARIATION = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredTokens:
    """Number of tokens that suffice for 90% of the answers; None if more than ``MAX_TOKENS`` are necessary.

    ``k`` excludes the token before the answer. ``reach`` is the span from the first of these tokens to the token before
    the answer, in tokens. ``id_reach`` is their span in IDs, on the level with the smallest span.
    """

    k: int | None
    reach: int | None
    id_reach: float | None


@torch.no_grad()
def count_required_tokens(decoder: Decoder, queries: AnswerQueries) -> RequiredTokens:
    """Hide each token separately, sort tokens by their effect, and count how many of the first are sufficient.

    This method does not detect duplicated information, because hiding one copy has no effect.
    """
    results = [_measure_query(decoder, queries, query_index) for query_index in range(len(queries.answer))]
    known_results = [result for result in results if result is not None]
    if len(known_results) < QUANTILE * len(results):
        return RequiredTokens(k=None, reach=None, id_reach=None)
    k, reach, id_reach = (np.quantile(values, QUANTILE, method="higher") for values in zip(*known_results, strict=True))
    return RequiredTokens(k=int(k), reach=int(reach), id_reach=float(id_reach))


def _measure_query(decoder: Decoder, queries: AnswerQueries, query_index: int) -> tuple[int, int, float] | None:
    """Return how many tokens the decoder needs for the answer of a query, and the span of these tokens.

    The span includes the token before the answer. It is returned twice: in tokens, and in IDs on the level with the
    smallest span. Return None if the ``MAX_TOKENS`` tokens with the largest effect are not sufficient.
    """
    batch, answer = queries.batch.select_examples(slice(query_index, query_index + 1)), int(queries.answer[query_index])
    tokens, ids = batch.tokens[:, :answer], batch.position_ids[:, :, :answer]
    target, last_index = int(batch.tokens[0, answer]), answer - 1
    always_visible = np.isin(tokens[0].numpy(), decoder.separators)
    always_visible[last_index] = True
    candidates = np.flatnonzero(~always_visible)
    single_token_masks = np.zeros((len(candidates) + 1, answer), dtype=bool)
    single_token_masks[np.arange(len(candidates)), candidates] = True
    probabilities = _probabilities(decoder, tokens, ids, single_token_masks, target)
    ranked_tokens = candidates[np.argsort(probabilities[:-1], kind="stable")][:MAX_TOKENS]
    is_hidden = np.tile(~always_visible, (len(ranked_tokens) + 1, 1))
    for num_tokens in range(len(ranked_tokens)):
        is_hidden[num_tokens + 1 :, ranked_tokens[num_tokens]] = False
    min_probability = probabilities[-1] - MAX_PROBABILITY_DECREASE
    sufficient = _probabilities(decoder, tokens, ids, is_hidden, target) >= min_probability
    if not sufficient.any():
        return None
    num_tokens = int(sufficient.argmax())
    needed_indices = np.append(ranked_tokens[:num_tokens], last_index)
    id_spans = [float(np.ptp(level_ids[needed_indices])) for level_ids in ids[:, 0].numpy()]
    return num_tokens, int(last_index - needed_indices.min()) + 1, min(id_spans) + 1


def _probabilities(
    decoder: Decoder,
    tokens: Int[Tensor, "1 seq"],
    position_ids: Real[Tensor, "level 1 seq"],
    is_hidden: Bool[np.ndarray, "masks seq"],
    target_token: int,
) -> Float[np.ndarray, " masks"]:
    """Return the probability of a token for each mask of hidden tokens; length scaling counts hidden tokens too."""
    num_masks, num_tokens = is_hidden.shape
    masks_per_pass = max(1, MAX_SCORES // (num_tokens * num_tokens * decoder.settings.num_heads))
    probabilities = []
    for start in range(0, num_masks, masks_per_pass):
        masks = torch.from_numpy(is_hidden[start : start + masks_per_pass])
        score_bias = torch.zeros(len(masks), num_tokens, num_tokens).masked_fill(masks[:, None], -math.inf)
        # A hidden token still attends to itself, because a softmax needs at least one key.
        score_bias.diagonal(dim1=1, dim2=2).zero_()
        visible_counts = torch.arange(1.0, num_tokens + 1).expand(len(masks), -1)
        hooks = AttentionHooks(score_bias=score_bias, visible_counts=visible_counts)
        hidden, _ = decoder(tokens.expand(len(masks), -1), position_ids.expand(-1, len(masks), -1), hooks=hooks)
        probabilities.append(decoder.token_logits(hidden[:, -1:])[:, 0].softmax(dim=-1)[:, target_token].numpy())
    return np.concatenate(probabilities)


def check_training_fit(model: ProbedModel, fidelity: SubsampleAccuracy) -> AssumptionCheck:
    """Check that accuracy and, if known, exact match at the longest training length reach ``ACCURACY_THRESHOLD``."""
    accuracy, length = fidelity.whole, model.max_train_length
    result = f"{accuracy:.3f} of the answer tokens are right at length {length}, without the end token"
    if model.fitted is not None:
        accuracy, result = min(accuracy, model.fitted), f"exact match {model.fitted:.3f}; {result}"
    holds = accuracy >= ACCURACY_THRESHOLD
    return AssumptionCheck(
        name="fits the training lengths", holds=holds, found=result, counterexample="canceling errors"
    )


def measure_assumptions(
    model: ProbedModel, queries: AnswerQueries, needs: RequiredTokens, fidelity: SubsampleAccuracy, max_length: int
) -> Iterator[AssumptionCheck]:
    """Yield the assumptions in the order of docs/theory.md; ``queries`` must have the longest training length."""
    checks = (
        ("sparsity", "growing k", _check_sparsity(model, needs)),
        ("locality in IDs", "growing gap", _check_locality(model, queries)),
        ("deletion", "unbounded reach", _check_deletion(fidelity)),
        ("IDs and distances seen in training", "absolute positions", _check_id_coverage(model, max_length)),
        ("relativity", "absolute positions", _check_relativity(model, queries)),
        ("same token frequencies", "new background token", _compare_token_frequencies(model, queries, max_length)),
    )
    for name, counterexample, (holds, found) in checks:
        yield AssumptionCheck(name=name, holds=holds, found=found, counterexample=counterexample)


def _check_sparsity(model: ProbedModel, needs: RequiredTokens) -> tuple[bool, str]:
    """Return whether the assumption holds, and the measured values as text, as all following checks do."""
    k = measure_dependencies(model.task, model.max_train_length, model.seed).k
    measured_k = f"more than {MAX_TOKENS}" if needs.k is None else str(needs.k)
    return needs.k is not None and k <= MAX_TOKENS, (
        f"an answer depends on up to {k} tokens, including the previous token (declared by the task); this run "
        f"requires {measured_k} other tokens, separators excluded"
    )


def _check_deletion(fidelity: SubsampleAccuracy) -> tuple[bool, str]:
    return fidelity.max_subsampling_change <= MAX_ACCURACY_CHANGE, (
        f"accuracy {fidelity.whole:.3f}, {fidelity.half:.3f} on a half (single tokens) and {fidelity.quarter:.3f} on a "
        "quarter (blocks)"
    )


def _check_locality(model: ProbedModel, queries: AnswerQueries) -> tuple[bool, str]:
    """Measure the largest span of the needed tokens, including the token before the answer.

    With several levels, the ID span of the needed tokens is the smallest span on any level.
    """
    separators = [model.task.vocabulary.index(symbol) for symbol in model.task.separators]
    tokens, ids = queries.batch.tokens.numpy(), queries.batch.position_ids.numpy()
    token_span, id_span = 0, 0.0
    for query_index, (depends_on, last_index) in enumerate(
        zip(queries.depends_on, queries.last_index.tolist(), strict=True)
    ):
        # The needed tokens of a query include separators, which determine segments; the answer does not depend on them.
        token_indices = np.append(depends_on[~np.isin(tokens[query_index, depends_on], separators)], last_index)
        token_span = max(token_span, int(np.ptp(token_indices)) + 1)
        id_span = max(id_span, min(float(np.ptp(level_ids[query_index, token_indices])) for level_ids in ids) + 1)
    num_ids = float(np.ptp(ids, axis=-1).max()) + 1
    found = (
        f"the tokens of an answer span {id_span:g} of {num_ids:g} IDs and {token_span} tokens (declared by the task)"
    )
    return 4 * id_span <= num_ids, found


def _check_id_coverage(model: ProbedModel, max_length: int) -> tuple[bool, str]:
    if not model.decoder.uses_position_ids:
        return True, f"encoding {model.encoding.name} reads no IDs"
    ids = model.sample_answer_queries(max_length, 1).batch.position_ids
    min_id, max_id, max_distance = float(ids.min()), float(ids.max()), float((ids.amax(-1) - ids.amin(-1)).max())
    min_train_id, max_train_id = model.id_range
    result = f"IDs {min_id:g} to {max_id:g} at length {max_length}, {min_train_id:g} to {max_train_id:g} in training"
    holds = min_train_id <= min_id and max_id <= max_train_id
    if (max_train_distance := model.trained_distance) is not None:
        result += f"; distances up to {max_distance:g}, {max_train_distance:g} in training"
        holds = holds and (max_distance <= max_train_distance or model.scheme.random_at_evaluation)
    return holds, result


@torch.no_grad()
def _check_relativity(model: ProbedModel, queries: AnswerQueries) -> tuple[bool, str]:
    """Measure the mean total variation between predictions with the original IDs and with all IDs shifted."""
    batch, query_indices = queries.batch, torch.arange(len(queries.answer))
    last_index = torch.from_numpy(queries.last_index)
    id_shift = int(batch.position_ids.max() - batch.position_ids.min()) + 1
    predictions = []
    for id_offset in (0, id_shift):
        try:
            hidden, _ = model.decoder(batch.tokens, batch.position_ids + id_offset)
        except LengthwiseError as error:
            return False, str(error)
        predictions.append(model.decoder.token_logits(hidden[query_indices, last_index][:, None])[:, 0].softmax(dim=-1))
    total_variation = float((predictions[0] - predictions[1]).abs().sum(dim=-1).mean() / 2)
    found = f"predictions change by {total_variation:.3f} (total variation) if all IDs increase by {id_shift}"
    return total_variation <= MAX_TOTAL_VARIATION, found


def _compare_token_frequencies(model: ProbedModel, queries: AnswerQueries, max_length: int) -> tuple[bool, str]:
    """Compare the token frequencies before answers at the longest training length and at ``max_length``.

    The comparison does not detect a new token that is rare at ``max_length``.
    """

    def frequencies(queries: AnswerQueries) -> Float[np.ndarray, " vocab"]:
        tokens = queries.batch.tokens.numpy()
        is_before_answer = np.arange(tokens.shape[1]) < queries.answer[:, None]
        token_counts = np.bincount(tokens[is_before_answer], minlength=len(model.task.vocabulary))
        return np.asarray(token_counts / token_counts.sum())

    long_queries = model.sample_answer_queries(max_length)
    total_variation = float(np.abs(frequencies(queries) - frequencies(long_queries)).sum() / 2)
    return total_variation <= MAX_TOTAL_VARIATION, (
        f"frequencies at length {max_length} differ by {total_variation:.3f} "
        f"(total variation; allowed: {MAX_TOTAL_VARIATION})"
    )
