"""Interface of a causal language model that an influence study measures."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class NextTokenModel(Protocol):
    """Causal model that takes position IDs and can hide single far tokens from the near tokens.

    ``num_positions`` is the exclusive upper bound of IDs, None if unlimited. ``trained_distance`` is the largest ID
    distance met in training, None if unknown. ``dtype`` names the precision. ``weights_digest`` identifies the weights.
    ``forward_tokens`` is the approximate number of tokens per forward pass. ``states`` is the cache that ``prefill``
    returns; only the model reads it.
    """

    name: str
    vocabulary_size: int
    num_positions: int | None
    trained_distance: int | float | None
    num_parameters: int
    weights_digest: str
    dtype: str
    forward_tokens: int

    def log_probs(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch vocab"]:
        """Return the log-probabilities (nats) of the token after each sequence, which attends only to itself."""
        ...

    def losses(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch t"]
    ) -> Float[Tensor, "batch t"]:
        """Return the losses (nats) of ``targets``, which are the next tokens at the last ``t`` token indexes."""
        ...

    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], mask: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Return the log-probabilities after the last token from one forward pass over all tokens, without a cache.

        ``mask`` (query, key) is True where a token attends; IDs then count from 0. Without it, the model gets neither
        IDs nor a mask. The results of all other methods are checked against this one.
        """
        ...

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """Return the largest difference (nats) between two computations of a log-probability that rounding explains."""
        ...

    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_read: int) -> Any:
        """Return the states of the first ``num_read`` tokens.

        The remaining tokens are passed too, because rotary angles may depend on the largest ID of a call.
        """
        ...

    def log_probs_with_prefix(
        self, states: Any, tokens: Int[Tensor, "batch seq"], position_ids: Int[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch vocab"]:
        """Return the log-probabilities after sequences that continue the tokens of ``states``."""
        ...

    def log_probs_with_mask(
        self,
        states: Any,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        visible: Bool[Tensor, "batch read"],
    ) -> Float[Tensor, "batch vocab"]:
        """Return the log-probabilities after the near tokens, which attend only to the ``visible`` states."""
        ...

    def gate_gradient(
        self,
        states: Any,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        log_gates: Float[Tensor, " read"],
        objective: Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]],
    ) -> Float[Tensor, " read"]:
        """Return the gradient of ``objective`` with respect to ``log_gates``.

        In every layer, ``log_gates`` are added to the attention scores of the near tokens on each state.
        """
        ...

    def attention_weights(
        self, states: Any, near: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " read"]:
        """Return the attention weights of the last near token on each state, averaged over layers and heads."""
        ...
