"""Checks of a model before a study: hidden tokens stay hidden, and every way of asking agrees with a plain pass."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.core.errors import ModelError
from lengthwise.core.randomness import stream
from lengthwise.influence.probing.hidden_context import Masked, strict
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.probing.prefix import strict_of_one
from lengthwise.influence.probing.window import Window

# Log-probabilities compared beside the target's: those of the likeliest tokens, which rounding moves least.
LIKELIEST = 10
# Questions asked together, enough that they do not fit into one sequence, and those compared with a plain pass: the
# first and the last of a sequence among them.
QUESTIONS, COMPARED = 16, (0, 1, 7, 15)
# What a model raises that takes a mask, a cache or IDs in another way than it is called.
CALL_ERRORS = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError)

OTHER_MODEL = "choose another model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A way of asking that disagrees with a plain pass, by so many nats, and what to change."""

    what: str
    nats: float
    advice: str = OTHER_MODEL


def check_exact(model: NextTokenModel) -> None:
    """Raise ``ModelError`` if a few tokens with a jump in their IDs show that hiding does not work."""
    _check(model, f"{model.name} cannot be measured exactly", lambda: _few_tokens(model))


def check_study(
    model: NextTokenModel, window: Window, *, masked: bool = False, gated: bool = False, attended: bool = False
) -> None:
    """Raise ``ModelError`` if a study of windows of this size would measure something else than the model's loss.

    Questions are asked as in the study and compared with plain passes over the whole window, without a cache and with
    every token at its own index. The flags name what the study uses beside strict hiding: questions that share the
    states of the far tokens, gradients of gates on these, and attention weights.
    """

    def faults() -> Iterator[tuple[Fault, float]]:
        tokens = torch.from_numpy(window.tokens)
        allowed, whole = model.rounding_tolerance(tokens), model.plain_log_probs(tokens)
        yield from ((fault, allowed) for fault in _strict_faults(model, window, whole))
        yield _prefix_fault(model, window), allowed
        if masked:
            yield _masked_fault(model, window), allowed
        if gated:
            yield _gate_fault(model, window, whole), allowed
        if attended:
            yield _attention_fault(model, window), allowed

    sizes = f"near {len(window.near)} and far {window.num_far}"
    _check(model, f"{model.name} cannot be measured exactly with {sizes}", faults)


def _check(model: NextTokenModel, claim: str, faults: Callable[[], Iterator[tuple[Fault, float]]]) -> None:
    try:
        for fault, allowed in faults():
            # Written so that NaN is a fault.
            if not fault.nats <= allowed:
                size = f" ({fault.nats:.2g} nats; rounding explains {allowed:.2g})" if math.isfinite(fault.nats) else ""
                raise ModelError(f"{claim}: {fault.what}{size}; {fault.advice}")
    except torch.OutOfMemoryError:
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{model.name} cannot be run with position IDs, a mask and a cache as influence needs it "
            f"({type(error).__name__}: {first_line(error)}); {OTHER_MODEL}"
        ) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, shortened."""
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else "no message"


def _few_tokens(model: NextTokenModel) -> Iterator[tuple[Fault, float]]:
    tokens = torch.arange(1, 9) % model.vocabulary_size
    ids = torch.tensor([0, 1, 2, 3, 5, 6, 8, 9])
    allowed = model.rounding_tolerance(tokens)
    near = slice(5, 8)
    states = model.prefill(tokens, ids, 5)

    def alone(keep: list[int]) -> Tensor:
        return model.log_probs(tokens[None, keep], ids[None, keep])[0]

    def after(visible: Tensor) -> Tensor:
        return model.log_probs_with_mask(states, tokens[near], ids[near], visible)

    every, none = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.bool)
    some = torch.tensor([[True, True, False, False, False]])
    together = after(torch.cat([every, none, some]))
    for what, found, expected in (
        ("hidden tokens are seen", together[1], alone([5, 6, 7])),
        ("states read before differ from one pass", together[0], alone(list(range(8)))),
        ("questions asked together change each other", together[2], after(some)[0]),
    ):
        yield Fault(what=what, nats=difference(found, expected)), allowed


def _questions(window: Window) -> Bool[np.ndarray, "questions far"]:
    """Everything visible, nothing, and random choices of growing size."""
    shares = np.linspace(0, 1, QUESTIONS)[:, None]
    visible = stream(0, "exactness").random((QUESTIONS, window.num_far)) < shares
    visible[0], visible[1] = True, False
    return visible


def _strict_faults(model: NextTokenModel, window: Window, whole: Float[Tensor, " vocab"]) -> Iterator[Fault]:
    compared = _questions(window)[list(COMPARED)]
    made = _in_order(strict(model, [(window, row) for row in compared]))
    yield Fault(
        what="with position IDs that count from 0 it predicts otherwise than without IDs",
        nats=difference(made[0], whole, window.target),
    )
    yield Fault(
        what="leaving tokens out differs from hiding them where they are, as if a layer counted tokens",
        nats=_largest(model, window, made, [_unread(window, row) for row in compared]),
        advice="use a smaller --near and --far, or choose another model",
    )


def _prefix_fault(model: NextTokenModel, window: Window) -> Fault:
    places = np.arange(max(0, window.num_far - QUESTIONS), window.num_far)
    visible = np.ones((len(places), window.num_far), bool)
    visible[np.arange(len(places)), places] = False
    made = _in_order(strict_of_one(model, window, visible))[[0, -1]]
    return Fault(
        what="tokens after a part that was read once differ from one pass over all",
        nats=_largest(model, window, made, [_unread(window, row) for row in visible[[0, -1]]]),
    )


def _masked_fault(model: NextTokenModel, window: Window) -> Fault:
    visible = _questions(window)
    made = _in_order(Masked(model, window).log_probs(visible))[list(COMPARED)]
    return Fault(
        what="near tokens after far ones that were read once differ from one pass over all",
        nats=_largest(model, window, made, [_unseen(window, row) for row in visible[list(COMPARED)]]),
        advice="use --mode strict",
    )


def _gate_fault(model: NextTokenModel, window: Window, whole: Float[Tensor, " vocab"]) -> Fault:
    asked, found = Masked(model, window), []
    gates = torch.zeros(len(window.start) + window.num_far)
    advice = "use a measure without gradients, such as greedy without --prefilter"

    def objective(log_probs: Float[Tensor, " vocab"]) -> Float[Tensor, ""]:
        found.append(log_probs.detach())
        return -log_probs[window.target]

    try:
        slopes = model.gate_gradient(asked.states, asked.near, asked.near_ids, gates, objective)
    except RuntimeError as error:
        # What autograd raises where a mask is compared with zero in place of being added.
        return Fault(
            what=f"gates on its attention have no gradient ({first_line(error)})", nats=math.nan, advice=advice
        )
    sloping = bool(slopes.any() and slopes.isfinite().all())
    return Fault(
        what="gates on its attention change nothing or differ from one pass when they are open",
        nats=difference(found[0], whole, window.target) if sloping else math.nan,
        advice=advice,
    )


def _attention_fault(model: NextTokenModel, window: Window) -> Fault:
    asked = Masked(model, window)
    weights = model.attention_weights(asked.states, asked.near, asked.near_ids)
    shared = float(weights.sum())
    return Fault(
        what="its attention weights are no shares",
        nats=0.0 if bool((weights >= 0).all()) and 0 < shared < 1.01 else math.nan,
        advice="use another measure than attention",
    )


def _unread(window: Window, visible: Bool[np.ndarray, " far"]) -> Bool[Tensor, "seq seq"]:
    """Who sees whom under strict hiding: nobody sees a hidden token."""
    shown = torch.from_numpy(window.shown(visible))
    return shown.expand(len(shown), -1).tril() | torch.eye(len(shown), dtype=torch.bool)


def _unseen(window: Window, visible: Bool[np.ndarray, " far"]) -> Bool[Tensor, "seq seq"]:
    """Who sees whom under masked hiding: the near tokens do not see a hidden token."""
    seen = torch.ones(len(window.tokens), len(window.tokens), dtype=torch.bool).tril()
    seen[-len(window.near) :] &= torch.from_numpy(window.shown(visible))
    return seen


def _in_order(answers: Iterator[tuple[list[int], Tensor]]) -> Float[Tensor, "questions vocab"]:
    rows = {place: row for places, made in answers for place, row in zip(places, made, strict=True)}
    return torch.stack([rows[place] for place in sorted(rows)])


def _largest(
    model: NextTokenModel, window: Window, made: Float[Tensor, "questions vocab"], seen: list[Bool[Tensor, "seq seq"]]
) -> float:
    tokens = torch.from_numpy(window.tokens)
    found = [
        difference(row, model.plain_log_probs(tokens, each), window.target)
        for row, each in zip(made, seen, strict=True)
    ]
    return float(np.max(found))


def difference(one: Float[Tensor, " vocab"], other: Float[Tensor, " vocab"], target: int | None = None) -> float:
    """Return the largest difference (nats) of the log-probabilities of the target and of the likeliest tokens."""
    tokens = other.topk(min(LIKELIEST, len(other))).indices
    if target is not None:
        tokens = torch.cat([tokens, tokens.new_tensor([target])])
    one, other = one[tokens].double(), other[tokens].double()
    # Two infinities that are alike differ by nothing.
    return float(torch.where(one == other, 0.0, (one - other).abs()).max())
