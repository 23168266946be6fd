"""Checks of a model before a study: hidden tokens have no effect, and all kinds of queries agree with a plain pass."""

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

# Number of the largest log-probabilities that are compared in addition to the target's; rounding changes them least.
TOP_TOKENS = 10
# More queries than one packed sequence holds; the compared ones include the first and last query of a pack.
QUERIES, COMPARED = 16, (0, 1, 7, 15)
# Errors that a model may raise if it takes masks, caches or IDs in a different format.
CALL_ERRORS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError)

OTHER_MODEL = "choose another model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """Largest difference (nats) between one kind of query and a plain pass, with its description and advice."""

    description: str
    nats: float
    advice: str = OTHER_MODEL


def check_exact(model: NextTokenModel) -> None:
    """Raise ``ModelError`` if hiding fails on a few tokens with a jump in their position IDs."""
    _check(model, f"{model.name} cannot be measured exactly", lambda: _few_token_deviations(model))


def check_study(
    model: NextTokenModel, window: Window, *, masked: bool = False, gated: bool = False, attended: bool = False
) -> None:
    """Raise ``ModelError`` if the queries of a study disagree with plain passes over the whole window.

    A plain pass uses no cache, and every token is at its own index. The flags name the queries that the study needs
    in addition to strict hiding: masked hiding, gradients of gates, and attention weights.
    """

    def deviations() -> Iterator[tuple[Deviation, float]]:
        tokens = torch.from_numpy(window.tokens)
        tolerance, plain = model.rounding_tolerance(tokens), model.plain_log_probs(tokens)
        evaluator = WindowEvaluator(model, window)
        yield from ((deviation, tolerance) for deviation in _strict_deviations(model, window, plain))
        yield _prefix_deviation(evaluator), tolerance
        if masked:
            yield _masked_deviation(evaluator), tolerance
        if gated:
            yield _gate_deviation(evaluator, plain), tolerance
        if attended:
            yield _attention_deviation(evaluator), tolerance

    sizes = f"near {len(window.near)} and far {window.num_far}"
    _check(model, f"{model.name} cannot be measured exactly with {sizes}", deviations)


def _check(model: NextTokenModel, claim: str, deviations: Callable[[], Iterator[tuple[Deviation, float]]]) -> None:
    try:
        for each, tolerance in deviations():
            # The comparison is also false for NaN.
            if not each.nats <= tolerance:
                size = f" ({each.nats:.2g} nats; rounding explains {tolerance:.2g})" if math.isfinite(each.nats) else ""
                raise ModelError(f"{claim}: {each.description}{size}; {each.advice}")
    except torch.OutOfMemoryError:
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{model.name} cannot be called with position IDs, a mask and a cache, which influence needs "
            f"({type(error).__name__}: {first_line(error)}); {OTHER_MODEL}"
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error message, truncated."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else "no message"


def _few_token_deviations(model: NextTokenModel) -> Iterator[tuple[Deviation, float]]:
    tokens = torch.arange(1, 9) % model.vocabulary_size
    ids = torch.tensor([0, 1, 2, 3, 5, 6, 8, 9])
    tolerance = model.rounding_tolerance(tokens)
    near = slice(5, 8)
    states = model.prefill(tokens, ids, 5)

    def one_pass(indices: list[int]) -> Tensor:
        return model.log_probs(tokens[None, indices], ids[None, indices])[0]

    def after_states(visible: Tensor) -> Tensor:
        return model.log_probs_with_mask(states, tokens[near], ids[near], visible)

    every, none = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.bool)
    some = torch.tensor([[True, True, False, False, False]])
    batch = after_states(torch.cat([every, none, some]))
    for description, log_probs, expected in (
        ("hidden tokens change the prediction", batch[1], one_pass([5, 6, 7])),
        ("predictions after cached tokens differ from one pass", batch[0], one_pass(list(range(8)))),
        ("queries of one batch change each other", batch[2], after_states(some)[0]),
    ):
        yield Deviation(description=description, nats=max_difference(log_probs, expected)), tolerance


def _queries(window: Window) -> Bool[np.ndarray, "queries far"]:
    """Return visibility masks: all far tokens, none, and random subsets of growing size."""
    shares = np.linspace(0, 1, QUERIES)[:, None]
    visible = stream(0, "exactness").random((QUERIES, window.num_far)) < shares
    visible[0], visible[1] = True, False
    return visible


def _strict_deviations(model: NextTokenModel, window: Window, plain: Float[Tensor, " vocab"]) -> Iterator[Deviation]:
    visible = _queries(window)[list(COMPARED)]
    log_probs = _in_order(strict_log_probs(model, [(window, row) for row in visible]))
    yield Deviation(
        description="predictions with position IDs that count from 0 differ from predictions without position IDs",
        nats=max_difference(log_probs[0], plain, window.target),
    )
    yield Deviation(
        description="predictions differ if tokens are left out instead of hidden, as if a layer counted tokens",
        nats=_largest(model, window, log_probs, [_strict_mask(window, row) for row in visible]),
        advice="use a smaller --near and --far, or choose another model",
    )


def _prefix_deviation(evaluator: WindowEvaluator) -> Deviation:
    window = evaluator.window
    indices = np.arange(max(0, window.num_far - QUERIES), window.num_far)
    visible = np.ones((len(indices), window.num_far), bool)
    visible[np.arange(len(indices)), indices] = False
    log_probs = _in_order(evaluator.log_probs(visible, "strict"))[[0, -1]]
    masks = [_strict_mask(window, row) for row in visible[[0, -1]]]
    return Deviation(
        description="predictions after a cached prefix differ from one pass over all tokens",
        nats=_largest(evaluator.model, window, log_probs, masks),
    )


def _masked_deviation(evaluator: WindowEvaluator) -> Deviation:
    window, visible = evaluator.window, _queries(evaluator.window)
    log_probs = _in_order(evaluator.log_probs(visible, "masked"))[list(COMPARED)]
    masks = [_masked_mask(window, row) for row in visible[list(COMPARED)]]
    return Deviation(
        description="predictions after cached far tokens differ from one pass over all tokens",
        nats=_largest(evaluator.model, window, log_probs, masks),
        advice="use --mode strict",
    )


def _gate_deviation(evaluator: WindowEvaluator, plain: Float[Tensor, " vocab"]) -> Deviation:
    target, states, predictions = evaluator.window.target, evaluator.states, []
    gates = torch.zeros(evaluator.num_read)
    advice = "use a measure without gradients, such as greedy without --prefilter"

    def objective(log_probs: Float[Tensor, " vocab"]) -> Float[Tensor, ""]:
        predictions.append(log_probs.detach())
        return -log_probs[target]

    try:
        gradient = evaluator.model.gate_gradient(states, evaluator.near, evaluator.near_ids, gates, objective)
    except RuntimeError as error:
        # Autograd raises if a model compares its mask with zero instead of adding it.
        description = f"gates on the attention have no gradient ({first_line(error)})"
        return Deviation(description=description, nats=math.nan, advice=advice)
    valid = bool(gradient.any() and gradient.isfinite().all())
    return Deviation(
        description="gates on the attention have no effect, or open gates change the prediction",
        nats=max_difference(predictions[0], plain, target) if valid else math.nan,
        advice=advice,
    )


def _attention_deviation(evaluator: WindowEvaluator) -> Deviation:
    weights = evaluator.model.attention_weights(evaluator.states, evaluator.near, evaluator.near_ids)
    valid = bool((weights >= 0).all()) and 0 < float(weights.sum()) < 1.01
    return Deviation(
        description="attention weights on the far tokens are negative, or do not sum to a value between 0 and 1",
        nats=0.0 if valid else math.nan,
        advice="use a measure other than attention",
    )


def _strict_mask(window: Window, visible: Bool[np.ndarray, " far"]) -> Bool[Tensor, "seq seq"]:
    """Return the attention mask (query, key) that hides tokens from all other tokens."""
    keys = torch.from_numpy(window.expand(visible))
    return keys.expand(len(keys), -1).tril() | torch.eye(len(keys), dtype=torch.bool)


def _masked_mask(window: Window, visible: Bool[np.ndarray, " far"]) -> Bool[Tensor, "seq seq"]:
    """Return the attention mask (query, key) that hides tokens from the near tokens only."""
    mask = torch.ones(len(window.tokens), len(window.tokens), dtype=torch.bool).tril()
    mask[-len(window.near) :] &= torch.from_numpy(window.expand(visible))
    return mask


def _in_order(predictions: Iterator[Predictions]) -> Float[Tensor, "queries vocab"]:
    by_query = {index: row for indices, rows in predictions for index, row in zip(indices, rows, strict=True)}
    return torch.stack([by_query[index] for index in sorted(by_query)])


def _largest(
    model: NextTokenModel,
    window: Window,
    log_probs: Float[Tensor, "queries vocab"],
    masks: list[Bool[Tensor, "seq seq"]],
) -> float:
    tokens = torch.from_numpy(window.tokens)
    pairs = zip(log_probs, masks, strict=True)
    # NumPy's maximum, unlike Python's, returns NaN if any value is NaN.
    return float(
        np.max([max_difference(row, model.plain_log_probs(tokens, mask), window.target) for row, mask in pairs])
    )


def max_difference(one: Float[Tensor, " vocab"], other: Float[Tensor, " vocab"], target: int | None = None) -> float:
    """Return the largest difference (nats) of the log-probabilities of the target and of the most likely tokens."""
    tokens = other.topk(min(TOP_TOKENS, len(other))).indices
    if target is not None:
        tokens = torch.cat([tokens, tokens.new_tensor([target])])
    one, other = one[tokens].double(), other[tokens].double()
    # The difference of equal infinities is 0, not NaN.
    return float(torch.where(one == other, 0.0, (one - other).abs()).max())
