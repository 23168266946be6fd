"""How long a study will take: the tokens that it reads, counted without the model, at the speed of the model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.influence.probing.hidden_context import strict
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.target_evaluator import TargetRows
from lengthwise.influence.targets import Target

# Questions of the pass that is timed; a backward pass in tokens read.
TIMED = 64
BACKWARD = 3


class Counting:
    """Answers everything with the same probability for all tokens, and counts the tokens that a model would read."""

    def __init__(self, model: NextTokenModel) -> None:
        self.name, self.dtype, self.num_parameters = model.name, model.dtype, model.num_parameters
        self.weights_digest = model.weights_digest
        self.vocabulary_size, self.num_positions = model.vocabulary_size, model.num_positions
        self.trained_distance, self.forward_tokens = model.trained_distance, model.forward_tokens
        self.tokens = 0

    def log_probs(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """All tokens are read."""
        self.tokens += tokens.numel()
        return self._uniform(len(tokens))

    def losses(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"], targets: Int[Tensor, "rows last"]
    ) -> Float[Tensor, "rows last"]:
        """All tokens are read."""
        self.tokens += tokens.numel()
        return torch.zeros(targets.shape)

    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], seen: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """All tokens are read."""
        self.tokens += len(tokens)
        return self._uniform(1)[0]

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """Nothing is computed."""
        return 0.0

    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_read: int) -> int:
        """All tokens are read."""
        self.tokens += len(tokens)
        return num_read

    def log_probs_with_prefix(
        self, states: Any, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """The tokens behind the states are read."""
        return self.log_probs(tokens, position_ids)

    def log_probs_with_mask(
        self,
        states: Any,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        visible: Bool[Tensor, "rows read"],
    ) -> Float[Tensor, "rows vocab"]:
        """The near tokens are read once per row."""
        self.tokens += len(near) * len(visible)
        return self._uniform(len(visible))

    def gate_gradient(
        self,
        states: Any,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        log_gates: Float[Tensor, " read"],
        objective: Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]],
    ) -> Float[Tensor, " read"]:
        """The near tokens are read, and there is a backward pass."""
        self.tokens += BACKWARD * len(near)
        return torch.zeros(len(log_gates))

    def attention_weights(
        self, states: Any, near: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " read"]:
        """The near tokens are read."""
        self.tokens += len(near)
        return torch.full((int(states),), 1 / int(states))

    def _uniform(self, rows: int) -> Float[Tensor, "rows vocab"]:
        return torch.full((1, 1), -float(np.log(self.vocabulary_size))).expand(rows, self.vocabulary_size)


def estimated_seconds(measured: TargetRows, targets: Sequence[Target]) -> tuple[float, float]:
    """Return least and most seconds: with far tokens chosen for the share ``rest`` of the targets, and for all."""
    counting = Counting(measured.model)
    passes, choices = replace(measured, model=counting).count(targets[0], lambda: counting.tokens)
    second = 1 / _tokens_per_second(measured, targets[0])
    least, most = (
        len(targets) * (passes + share * choices) * second for share in (measured.settings.background_fraction, 1.0)
    )
    return least, most


def _tokens_per_second(measured: TargetRows, target: Target) -> float:
    """Of the near tokens of as many questions as are asked together, timed with the model."""
    settings = measured.settings
    window = target.window(settings.near, settings.far, measured.start, settings.sink)
    asked = [(window, window.only([]))] * TIMED
    begun = time.perf_counter()
    for _ in strict(measured.model, asked):
        pass
    return TIMED * (len(window.start) + settings.near) / (time.perf_counter() - begun)
