"""A model that asks before each pass whether to go on: long work stops within one pass of it."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.influence.probing.next_token_model import NextTokenModel


class StopAskedError(Exception):
    """Somebody asked to stop before the next pass."""


class Stoppable:
    """The model itself, but each pass raises ``StopAskedError`` instead once ``stop`` says so."""

    def __init__(self, model: NextTokenModel, stop: Callable[[], bool]) -> None:
        self._model, self._stop = model, stop
        self.name, self.dtype, self.num_parameters = model.name, model.dtype, model.num_parameters
        self.weights_digest = model.weights_digest
        self.vocabulary_size, self.num_positions = model.vocabulary_size, model.num_positions
        self.trained_distance, self.forward_tokens = model.trained_distance, model.forward_tokens

    @property
    def _going_on(self) -> NextTokenModel:
        if self._stop():
            raise StopAskedError
        return self._model

    def log_probs(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """As the model's."""
        return self._going_on.log_probs(tokens, position_ids)

    def losses(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"], targets: Int[Tensor, "rows last"]
    ) -> Float[Tensor, "rows last"]:
        """As the model's."""
        return self._going_on.losses(tokens, position_ids, targets)

    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], seen: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """As the model's."""
        return self._going_on.plain_log_probs(tokens, seen)

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """As the model's."""
        return self._going_on.rounding_tolerance(tokens)

    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_read: int) -> Any:
        """As the model's."""
        return self._going_on.prefill(tokens, position_ids, num_read)

    def log_probs_with_prefix(
        self, states: Any, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """As the model's."""
        return self._going_on.log_probs_with_prefix(states, tokens, position_ids)

    def log_probs_with_mask(
        self,
        states: Any,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        visible: Bool[Tensor, "rows read"],
    ) -> Float[Tensor, "rows vocab"]:
        """As the model's."""
        return self._going_on.log_probs_with_mask(states, near, position_ids, visible)

    def gate_gradient(
        self,
        states: Any,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        log_gates: Float[Tensor, " read"],
        objective: Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]],
    ) -> Float[Tensor, " read"]:
        """As the model's."""
        return self._going_on.gate_gradient(states, near, position_ids, log_gates, objective)

    def attention_weights(
        self, states: Any, near: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " read"]:
        """As the model's."""
        return self._going_on.attention_weights(states, near, position_ids)
