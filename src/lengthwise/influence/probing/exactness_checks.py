"""Checks that hidden tokens have no effect, and that predictions with caches and masks equal plain forward passes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.core.errors import ModelError
from lengthwise.core.randomness import stream
from lengthwise.influence.probing.hidden_context import Predictions, WindowEvaluator, strict_log_probs
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.probing.window import Window

# Number of most likely tokens to compare in addition to the target; rounding has the least effect on them.
TOP_TOKENS = 10
# A packed sequence has fewer queries. The compared queries include the first and last query of a pack.
NUM_QUERIES, COMPARED_QUERY_INDICES = 16, (0, 1, 7, 15)
# Errors that a model may raise if it expects masks, caches or IDs in a different format.
CALL_ERRORS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError)

LogProbs = Float[Tensor, " vocab"]
FarMask = Bool[np.ndarray, " far"]
AttentionMask = Bool[Tensor, "seq seq"]
DEFAULT_ADVICE = "choose another model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Largest difference (``nats``) between predictions that should be equal.

    ``description`` and ``advice`` are parts of the error message for a difference above the rounding tolerance.
    """

    description: str
    nats: float
    advice: str = DEFAULT_ADVICE


# Deviations, each with its rounding tolerance in nats.
Deviations = Iterator[tuple[Deviation, float]]


def check_exactness(model: NextTokenModel) -> None:
    """Raise ``ModelError`` if hidden tokens have an effect in a short sequence with gaps between its position IDs."""
    _raise_on_deviation(model, f"{model.name} cannot be measured exactly", lambda: _short_text_deviations(model))


def check_study(
    model: NextTokenModel,
    window: Window,
    *,
    check_masked_mode: bool = False,
    check_gates: bool = False,
    check_attention: bool = False,
) -> None:
    """Raise ``ModelError`` if the queries of a study disagree with plain passes over the whole window.

    A plain pass uses no cache, and the position IDs of the whole window. The flags enable the checks of queries
    that only some studies need: masked hiding, gradients of gates, and attention weights.
    """

    def deviations() -> Deviations:
        tokens = torch.from_numpy(window.tokens)
        tolerance, plain_log_probs = model.rounding_tolerance(tokens), model.plain_log_probs(tokens)
        evaluator = WindowEvaluator(model, window)
        yield from ((deviation, tolerance) for deviation in _strict_deviations(model, window, plain_log_probs))
        yield _prefix_deviation(evaluator), tolerance
        if check_masked_mode:
            yield _masked_deviation(evaluator), tolerance
        if check_gates:
            yield _gate_deviation(evaluator, plain_log_probs), tolerance
        if check_attention:
            yield _attention_deviation(evaluator), tolerance

    sizes = f"near {len(window.near)} and far {window.num_far}"
    _raise_on_deviation(model, f"{model.name} cannot be measured exactly with {sizes}", deviations)


def _raise_on_deviation(model: NextTokenModel, problem: str, deviations: Callable[[], Deviations]) -> None:
    try:
        for deviation, tolerance in deviations():
            # The comparison is also false for NaN.
            if not deviation.nats <= tolerance:
                size = f" ({deviation.nats:.2g} nats; rounding can cause {tolerance:.2g})"
                size = size if math.isfinite(deviation.nats) else ""
                raise ModelError(f"{problem}: {deviation.description}{size}; {deviation.advice}")
    except torch.OutOfMemoryError:
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{model.name} does not accept position IDs, a mask and a cache together "
            f"({type(error).__name__}: {first_line(error)}); {DEFAULT_ADVICE}"
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error message, at most 160 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else "no message"


def _short_text_deviations(model: NextTokenModel) -> Deviations:
    tokens = torch.arange(1, 9) % model.vocabulary_size
    # All levels have the same IDs.
    ids = torch.tensor([0, 1, 2, 3, 5, 6, 8, 9]).expand(model.assign_ids(tokens).shape)
    tolerance = model.rounding_tolerance(tokens)
    near_slice = slice(5, 8)
    states = model.prefill(tokens, ids, 5)

    def predict_in_one_pass(indices: list[int]) -> Tensor:
        return model.log_probs(tokens[None, indices], ids[None, ..., indices])[0]

    def predict_with_mask(visibility_masks: Tensor) -> Tensor:
        return model.log_probs_with_mask(states, tokens[near_slice], ids[..., near_slice], visibility_masks)

    all_visible_mask, none_visible_mask = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.bool)
    first_two_visible_mask = torch.tensor([[True, True, False, False, False]])
    batch = predict_with_mask(torch.cat([all_visible_mask, none_visible_mask, first_two_visible_mask]))
    # Other hidden tokens between the visible tokens and the near tokens.
    other_tokens = tokens.clone()
    other_tokens[2:5] = (tokens[2:5] + 1) % model.vocabulary_size
    other_states = model.prefill(other_tokens, ids, 5)
    other = model.log_probs_with_mask(other_states, tokens[near_slice], ids[..., near_slice], first_two_visible_mask)
    for description, log_probs, expected_log_probs in (
        ("hidden tokens change the prediction", batch[1], predict_in_one_pass([5, 6, 7])),
        ("hidden tokens change the prediction", batch[2], other[0]),
        ("predictions after cached tokens differ from one pass", batch[0], predict_in_one_pass(list(range(8)))),
        ("queries of one batch change each other", batch[2], predict_with_mask(first_two_visible_mask)[0]),
    ):
        yield Deviation(description=description, nats=max_difference(log_probs, expected_log_probs)), tolerance


def _visibility_masks(window: Window) -> Bool[np.ndarray, "queries far"]:
    """Return visibility masks: all far tokens, no far tokens, and random subsets of increasing size."""
    masks = stream(0, "exactness").random((NUM_QUERIES, window.num_far)) < np.linspace(0, 1, NUM_QUERIES)[:, None]
    masks[0], masks[1] = True, False
    return masks


def _strict_deviations(model: NextTokenModel, window: Window, plain_log_probs: LogProbs) -> Iterator[Deviation]:
    visibility_masks = _visibility_masks(window)[list(COMPARED_QUERY_INDICES)]
    log_probs = _stack_in_order(strict_log_probs(model, [(window, mask) for mask in visibility_masks]))
    attention_masks = [_strict_attention_mask(window, mask) for mask in visibility_masks]
    yield Deviation(
        description="predictions with position IDs that count from 0 differ from predictions without position IDs",
        nats=max_difference(log_probs[0], plain_log_probs, window.target),
    )
    yield Deviation(
        description="predictions differ between omitted and hidden tokens, so a layer may count tokens",
        nats=_largest_difference(model, window, log_probs, attention_masks),
        advice="use a smaller --near and --far, or choose another model",
    )


def _prefix_deviation(evaluator: WindowEvaluator) -> Deviation:
    window = evaluator.window
    indices = np.arange(max(0, window.num_far - NUM_QUERIES), window.num_far)
    visibility_masks = np.ones((len(indices), window.num_far), bool)
    visibility_masks[np.arange(len(indices)), indices] = False
    log_probs = _stack_in_order(evaluator.log_probs(visibility_masks, "strict"))[[0, -1]]
    attention_masks = [_strict_attention_mask(window, mask) for mask in visibility_masks[[0, -1]]]
    return Deviation(
        description="predictions after a cached prefix differ from one pass over all tokens",
        nats=_largest_difference(evaluator.model, window, log_probs, attention_masks),
    )


def _masked_deviation(evaluator: WindowEvaluator) -> Deviation:
    window, indices, visibility_masks = evaluator.window, [*COMPARED_QUERY_INDICES], _visibility_masks(evaluator.window)
    log_probs = _stack_in_order(evaluator.log_probs(visibility_masks, "masked"))[indices]
    attention_masks = [_masked_attention_mask(window, mask) for mask in visibility_masks[indices]]
    return Deviation(
        description="predictions after cached far tokens differ from one pass over all tokens",
        nats=_largest_difference(evaluator.model, window, log_probs, attention_masks),
        advice="use --mode strict",
    )


def _gate_deviation(evaluator: WindowEvaluator, plain_log_probs: LogProbs) -> Deviation:
    target, states, predictions = evaluator.window.target, evaluator.states, []
    gates = torch.zeros(evaluator.num_prefix)
    advice = "use a measure without gradients, such as greedy without --prefilter"

    def objective(log_probs: LogProbs) -> Float[Tensor, ""]:
        predictions.append(log_probs.detach())
        return -log_probs[target]

    try:
        gradient = evaluator.model.gate_gradient(states, evaluator.near, evaluator.near_ids, gates, objective)
    except RuntimeError as error:
        # Autograd raises an error if a model compares its mask with zero instead of adding it to the scores.
        description = f"gates on the attention have no gradient ({first_line(error)})"
        return Deviation(description=description, nats=math.nan, advice=advice)
    is_valid = bool(gradient.any() and gradient.isfinite().all())
    return Deviation(
        description="gates on the attention have no effect, or open gates change the prediction",
        nats=max_difference(predictions[0], plain_log_probs, target) if is_valid else math.nan,
        advice=advice,
    )


def _attention_deviation(evaluator: WindowEvaluator) -> Deviation:
    weights = evaluator.model.attention_weights(evaluator.states, evaluator.near, evaluator.near_ids)
    is_valid = bool((weights >= 0).all()) and 0 < float(weights.sum()) < 1.01
    return Deviation(
        description="attention weights on the far tokens are negative, or their sum is not between 0 and 1",
        nats=0.0 if is_valid else math.nan,
        advice="use a measure other than attention",
    )


def _strict_attention_mask(window: Window, visibility_mask: FarMask) -> AttentionMask:
    """Return the attention mask (query, key) that hides far tokens from all other tokens."""
    visible_keys = torch.from_numpy(window.expand(visibility_mask))
    return visible_keys.expand(len(visible_keys), -1).tril() | torch.eye(len(visible_keys), dtype=torch.bool)


def _masked_attention_mask(window: Window, visibility_mask: FarMask) -> AttentionMask:
    """Return the attention mask (query, key) that hides far tokens from the near tokens only."""
    mask = torch.ones(len(window.tokens), len(window.tokens), dtype=torch.bool).tril()
    mask[-len(window.near) :] &= torch.from_numpy(window.expand(visibility_mask))
    return mask


def _stack_in_order(predictions: Iterator[Predictions]) -> Float[Tensor, "queries vocab"]:
    log_probs_by_query = {index: row for indices, rows in predictions for index, row in zip(indices, rows, strict=True)}
    return torch.stack([log_probs_by_query[index] for index in sorted(log_probs_by_query)])


def _largest_difference(
    model: NextTokenModel, window: Window, log_probs: Float[Tensor, "queries vocab"], masks: list[AttentionMask]
) -> float:
    tokens, target = torch.from_numpy(window.tokens), window.target
    pairs = zip(log_probs, (model.plain_log_probs(tokens, mask) for mask in masks), strict=True)
    # NumPy's maximum, unlike Python's, returns NaN if any value is NaN.
    return float(np.max([max_difference(row, expected, target) for row, expected in pairs]))


def max_difference(log_probs: LogProbs, expected: LogProbs, target: int | None = None) -> float:
    """Return the largest difference (nats) between two predictions, for the target and the most likely tokens."""
    tokens = expected.topk(min(TOP_TOKENS, len(expected))).indices
    if target is not None:
        tokens = torch.cat([tokens, tokens.new_tensor([target])])
    log_probs, expected = log_probs[tokens].double(), expected[tokens].double()
    # The difference of equal infinities is 0, not NaN.
    return float(torch.where(log_probs == expected, 0.0, (log_probs - expected).abs()).max())
