"""Copies of a model that can stop before a forward pass, or count tokens without a forward pass."""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.influence.probing.next_token_model import NextTokenModel

FORWARD_METHODS = (
    "log_probs",
    "losses",
    "plain_log_probs",
    "prefill",
    "log_probs_with_prefix",
    "log_probs_with_mask",
    "gate_gradient",
    "attention_weights",
)
# Cost of a forward and backward pass, in units of a forward pass.
BACKWARD_COST = 3


class StopRequestedError(Exception):
    """Exception that ends a study before a forward pass, at the user's request."""


def stop_before_passes(model: NextTokenModel, stop: Callable[[], bool]) -> NextTokenModel:
    """Return a copy of the model that raises ``StopRequestedError`` before a forward pass if ``stop()`` is True."""

    def add_stop_check(method: Callable[..., Any]) -> Callable[..., Any]:
        def run_unless_stopped(*inputs: Any) -> Any:
            if stop():
                raise StopRequestedError
            return method(*inputs)

        return run_unless_stopped

    return _replace_methods(model, {name: add_stop_check(getattr(model, name)) for name in FORWARD_METHODS})


class TokenCounter:
    """Counter of the tokens that a model would read.

    ``model`` is a copy of the model that counts tokens and returns uniform predictions without a forward pass.
    """

    def __init__(self, model: NextTokenModel) -> None:
        self.num_tokens, self.vocabulary_size = 0, model.vocabulary_size
        methods: dict[str, Callable[..., Any]] = {
            "log_probs": lambda tokens, ids: self._uniform(tokens.numel(), len(tokens)),
            "prefill": lambda tokens, ids, num_prefix: self._count(len(tokens), num_prefix),
            "log_probs_with_prefix": lambda states, tokens, ids: self._uniform(tokens.numel(), len(tokens)),
            "log_probs_with_mask": lambda states, near, ids, masks: self._uniform(len(near) * len(masks), len(masks)),
            "gate_gradient": lambda states, near, ids, log_gates, objective: self._count(
                BACKWARD_COST * len(near), torch.zeros(len(log_gates))
            ),
            "attention_weights": lambda states, near, ids: self._count(len(near), torch.full((states,), 1 / states)),
        }
        self.model = _replace_methods(model, methods)

    def _count(self, num_tokens: int, result: Any) -> Any:
        self.num_tokens += num_tokens
        return result

    def _uniform(self, num_tokens: int, num_predictions: int) -> Float[Tensor, "batch vocab"]:
        uniform_log_prob = -torch.tensor(float(self.vocabulary_size)).log()
        return self._count(num_tokens, uniform_log_prob.expand(num_predictions, self.vocabulary_size))


def _replace_methods(model: NextTokenModel, methods: Mapping[str, Callable[..., Any]]) -> NextTokenModel:
    new_model = copy(model)
    for name, method in methods.items():
        setattr(new_model, name, method)
    return new_model
