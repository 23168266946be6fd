"""Check that the predictions of a study with caches and masks equal plain forward passes."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.core.randomness import random_stream
from lengthwise.evaluation.language_model import (
    DEFAULT_ADVICE,
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
        # Each of these masks hides one far token, so all of them share a prefix.
        one_hidden = ~np.eye(window.num_far_tokens, dtype=bool)[-NUM_QUERIES:]
        description = "predictions after a cached prefix differ from one pass over all tokens"
        yield _query_deviation(evaluator, "strict", one_hidden, [0, -1], description)
        description = "predictions after cached far tokens differ from one pass over all tokens"
        for mode in modes:
            if mode != "strict":
                masks, indices, advice = _visibility_masks(window), COMPARED_QUERY_INDICES, "use --mode strict"
                yield _query_deviation(evaluator, mode, masks, indices, description, advice)
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
        nats=_largest_difference(model, window, log_probs, "strict", visibility_masks),
        advice="use a smaller --near and --far, or choose another model",
    )


def _query_deviation(
    evaluator: WindowEvaluator,
    mode: str,
    masks: Bool[np.ndarray, "queries far"],
    compared: Sequence[int],
    description: str,
    advice: str = DEFAULT_ADVICE,
) -> PredictionDeviation:
    """Return the deviation of the ``compared`` queries of a study from plain passes."""
    compared = list(compared)
    log_probs = _stack_in_order(evaluator.log_probs(masks, mode))[compared]
    nats = _largest_difference(evaluator.model, evaluator.window, log_probs, mode, masks[compared])
    return PredictionDeviation(description=description, nats=nats, advice=advice)


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


def _attention_mask(window: TargetWindow, mode: str, visibility_mask: FarMask) -> AttentionMask:
    """Return the attention mask (query, key) that hides far tokens from the tokens that do not read them in a mode."""
    seq, visible_keys = len(window.tokens), torch.from_numpy(window.expand_mask(visibility_mask))
    num_queries = {"strict": seq, "masked": len(window.near), "decode": 1}[mode]
    mask = torch.ones(seq, seq, dtype=torch.bool).tril()
    mask[-num_queries:] &= visible_keys
    # Every token reads itself.
    return mask | torch.eye(seq, dtype=torch.bool)


def _stack_in_order(predictions: Iterator[Predictions]) -> Float[Tensor, "queries vocab"]:
    log_probs_by_query = {index: row for indices, rows in predictions for index, row in zip(indices, rows, strict=True)}
    return torch.stack([log_probs_by_query[index] for index in sorted(log_probs_by_query)])


def _largest_difference(
    model: NextTokenModel,
    window: TargetWindow,
    log_probs: Float[Tensor, "queries vocab"],
    mode: str,
    visibility_masks: Bool[np.ndarray, "queries far"],
) -> float:
    tokens, target = torch.from_numpy(window.tokens), window.target
    masks = (_attention_mask(window, mode, each) for each in visibility_masks)
    pairs = zip(log_probs, (model.log_probs_without_cache(tokens, mask) for mask in masks), strict=True)
    # NumPy's maximum, unlike Python's, returns NaN if any value is NaN.
    return float(np.max([max_log_prob_difference(row, expected, target) for row, expected in pairs]))
