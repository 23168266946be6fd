"""Check that the predictions of a study with caches and masks equal plain forward passes."""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import (
    NextTokenModel,
    PredictionDeviation,
    check_deviations,
    check_exact_hiding,
    first_line,
    max_log_prob_difference,
)
from lengthwise.influence.hidden_context import Predictions, TargetWindow, WindowEvaluator, strict_log_probs

# A packed sequence has fewer queries. The compared queries include the first and last query of a pack.
NUM_QUERIES, COMPARED_QUERY_INDICES = 16, (0, 1, 7, 15)

IDS_CHANGE_PREDICTIONS = "predictions with position IDs that count from 0 differ from predictions without position IDs"
# Sizes of the window in which all queries are compared; the whole window would take minutes.
SHORT_FAR, SHORT_NEAR = 48, 16
# Largest rounding error in the whole window, in multiples of the error in the short window.
WHOLE_WINDOW_MARGIN = 4.0

LogProbs = Float[Tensor, " vocab"]
FarMask = Bool[np.ndarray, " far"]
AttentionMask = Bool[Tensor, "seq seq"]


def check_study_exactness(
    model: NextTokenModel,
    window: TargetWindow,
    *,
    modes: Sequence[str] = (),
    check_gates: bool = False,
    check_attention: bool = False,
) -> None:
    """Raise ``ModelError`` if hidden tokens have an effect, or if the queries of a study disagree with plain passes.

    A plain pass uses no cache, and the position IDs of the whole window. All queries are compared in a short part of
    the window; in the whole window, a pass with position IDs is compared with one without. The flags enable the checks
    of queries that only some studies need: ``modes`` other than strict, gradients of gates, and attention weights.
    """
    check_exact_hiding(model)
    whole, whole_tokens, window = window, torch.from_numpy(window.tokens), window.shorten(SHORT_FAR, SHORT_NEAR)
    tokens = torch.from_numpy(window.tokens)

    def deviations() -> Iterator[PredictionDeviation]:
        log_probs_without_cache, evaluator = model.log_probs_without_cache(tokens), WindowEvaluator(model, window)
        yield from _strict_deviations(model, window, log_probs_without_cache)
        ids = model.assign_position_ids(whole_tokens)
        pair = model.last_log_probs(whole_tokens, ids, 1)[0], model.log_probs_without_cache(whole_tokens)
        difference = max_log_prob_difference(*pair, whole.target)
        yield PredictionDeviation(description=IDS_CHANGE_PREDICTIONS, nats=difference / WHOLE_WINDOW_MARGIN)
        yield _prefix_deviation(evaluator)
        for mode in modes:
            if mode != "strict":
                yield _masked_deviation(evaluator, mode)
        if check_gates:
            yield _gate_deviation(evaluator, log_probs_without_cache)
        if check_attention:
            yield _attention_deviation(evaluator)

    sizes = f"near {len(whole.near)} and far {whole.num_far_tokens}"
    check_deviations(model, tokens, f"{model.name} cannot be measured exactly with {sizes}", deviations)


def _strict_deviations(
    model: NextTokenModel, window: TargetWindow, log_probs_without_cache: LogProbs
) -> Iterator[PredictionDeviation]:
    visibility_masks = _visibility_masks(window)[list(COMPARED_QUERY_INDICES)]
    log_probs = _stack_in_order(strict_log_probs(model, [(window, mask) for mask in visibility_masks]))
    yield PredictionDeviation(
        description=IDS_CHANGE_PREDICTIONS,
        nats=max_log_prob_difference(log_probs[0], log_probs_without_cache, window.target),
    )
    yield PredictionDeviation(
        description="predictions differ between omitted and hidden tokens, so a layer may count tokens",
        nats=_largest_difference(model, window, log_probs, map(partial(_strict_mask, window), visibility_masks)),
        advice="use a smaller --near and --far, or choose another model",
    )


def _prefix_deviation(evaluator: WindowEvaluator) -> PredictionDeviation:
    window = evaluator.window
    indices = np.arange(max(0, window.num_far_tokens - NUM_QUERIES), window.num_far_tokens)
    visibility_masks = np.ones((len(indices), window.num_far_tokens), bool)
    visibility_masks[np.arange(len(indices)), indices] = False
    log_probs = _stack_in_order(evaluator.log_probs(visibility_masks, "strict"))[[0, -1]]
    masks = map(partial(_strict_mask, window), visibility_masks[[0, -1]])
    return PredictionDeviation(
        description="predictions after a cached prefix differ from one pass over all tokens",
        nats=_largest_difference(evaluator.model, window, log_probs, masks),
    )


def _masked_deviation(evaluator: WindowEvaluator, mode: str) -> PredictionDeviation:
    window, indices, visibility_masks = evaluator.window, [*COMPARED_QUERY_INDICES], _visibility_masks(evaluator.window)
    log_probs = _stack_in_order(evaluator.log_probs(visibility_masks, mode))[indices]
    num_queries = len(window.near) if mode == "masked" else 1
    masks = map(partial(_masked_mask, window, num_queries), visibility_masks[indices])
    return PredictionDeviation(
        description="predictions after cached far tokens differ from one pass over all tokens",
        nats=_largest_difference(evaluator.model, window, log_probs, masks),
        advice="use --mode strict",
    )


def _visibility_masks(window: TargetWindow) -> Bool[np.ndarray, "queries far"]:
    """Return visibility masks: all far tokens, no far tokens, and random subsets of increasing size."""
    masks = (
        random_stream(0, "exactness").random((NUM_QUERIES, window.num_far_tokens))
        < np.linspace(0, 1, NUM_QUERIES)[:, None]
    )
    masks[0], masks[1] = True, False
    return masks


def _gate_deviation(evaluator: WindowEvaluator, log_probs_without_cache: LogProbs) -> PredictionDeviation:
    target, states, predictions = evaluator.window.target, evaluator.states, []
    gates = torch.zeros(evaluator.num_prefix)
    advice = "use a measure without gradients, such as greedy without --prefilter"

    def objective(log_probs: LogProbs) -> Float[Tensor, ""]:
        predictions.append(log_probs.detach())
        return -log_probs[target]

    try:
        gradient = evaluator.model.attention_gate_gradient(states, evaluator.near, evaluator.near_ids, gates, objective)
    except RuntimeError as error:
        # Autograd raises an error if a model compares its mask with zero instead of adding it to the scores.
        description = f"gates on the attention have no gradient ({first_line(error)})"
        return PredictionDeviation(description=description, nats=math.nan, advice=advice)
    is_valid = bool(gradient.any() and gradient.isfinite().all())
    return PredictionDeviation(
        description="gates on the attention have no effect, or open gates change the prediction",
        nats=max_log_prob_difference(predictions[0], log_probs_without_cache, target) if is_valid else math.nan,
        advice=advice,
    )


def _attention_deviation(evaluator: WindowEvaluator) -> PredictionDeviation:
    weights = evaluator.model.attention_weights(evaluator.states, evaluator.near, evaluator.near_ids)
    is_valid = bool((weights >= 0).all()) and 0 < float(weights.sum()) < 1.01
    return PredictionDeviation(
        description="attention weights on the far tokens are negative, or their sum is not between 0 and 1",
        nats=0.0 if is_valid else math.nan,
        advice="use a measure other than attention",
    )


def _strict_mask(window: TargetWindow, visibility_mask: FarMask) -> AttentionMask:
    """Return the attention mask (query, key) that hides far tokens from all other tokens."""
    visible_keys = torch.from_numpy(window.expand_mask(visibility_mask))
    return visible_keys.expand(len(visible_keys), -1).tril() | torch.eye(len(visible_keys), dtype=torch.bool)


def _masked_mask(window: TargetWindow, num_queries: int, visibility_mask: FarMask) -> AttentionMask:
    """Return the attention mask (query, key) that hides far tokens from the last ``num_queries`` tokens only."""
    mask = torch.ones(len(window.tokens), len(window.tokens), dtype=torch.bool).tril()
    mask[-num_queries:] &= torch.from_numpy(window.expand_mask(visibility_mask))
    return mask


def _stack_in_order(predictions: Iterator[Predictions]) -> Float[Tensor, "queries vocab"]:
    log_probs_by_query = {index: row for indices, rows in predictions for index, row in zip(indices, rows, strict=True)}
    return torch.stack([log_probs_by_query[index] for index in sorted(log_probs_by_query)])


def _largest_difference(
    model: NextTokenModel,
    window: TargetWindow,
    log_probs: Float[Tensor, "queries vocab"],
    masks: Iterable[AttentionMask],
) -> float:
    tokens, target = torch.from_numpy(window.tokens), window.target
    pairs = zip(log_probs, (model.log_probs_without_cache(tokens, mask) for mask in masks), strict=True)
    # NumPy's maximum, unlike Python's, returns NaN if any value is NaN.
    return float(np.max([max_log_prob_difference(row, expected, target) for row, expected in pairs]))
