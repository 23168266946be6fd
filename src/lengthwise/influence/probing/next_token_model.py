"""Interface of a causal language model that an influence study measures."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor

# Tokens or position IDs of sequences of equal length, and of the near tokens.
Batch = Int[Tensor, "batch seq"]
Near = Int[Tensor, " near"]
LogProbs = Float[Tensor, "batch vocab"]
StateValues = Float[Tensor, " states"]
# Function of the log-probabilities of one prediction, such as its loss.
ScoreFunction = Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]]


@runtime_checkable
class NextTokenModel(Protocol):
    """Causal model that takes position IDs and can hide single far tokens from the near tokens.

    ``num_positions`` is the exclusive upper bound of IDs, or None without a bound. ``trained_distance`` is the largest
    ID distance in training, or None if it is unknown. ``dtype`` is the name of the precision. ``weights_digest``
    identifies the weights. ``forward_tokens`` is the approximate number of tokens per forward pass. ``states`` is the
    cache that ``prefill`` returns; only the model uses its contents.
    """

    name: str
    vocabulary_size: int
    num_positions: int | None
    trained_distance: int | float | None
    num_parameters: int
    weights_digest: str
    dtype: str
    forward_tokens: int

    def log_probs(self, tokens: Batch, position_ids: Batch) -> LogProbs:
        """Return the log-probabilities (nats) of the token after each of several independent sequences."""
        ...

    def losses(self, tokens: Batch, position_ids: Batch, targets: Int[Tensor, "batch t"]) -> Float[Tensor, "batch t"]:
        """Return the losses (nats) of ``targets``: the tokens that follow each of the last ``t`` tokens."""
        ...

    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], mask: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Return the log-probabilities of the token after the sequence, from one forward pass without a cache.

        ``mask`` (query, key) is True if the query attends to the key. With a mask, the model also gets position IDs
        that count from 0. Without a mask, it gets no IDs. Checks compare all other methods with this method.
        """
        ...

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """Return the largest difference (nats) in a log-probability that rounding can cause."""
        ...

    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_prefix: int) -> Any:
        """Return the states of the first ``num_prefix`` tokens.

        Pass the remaining tokens too, because rotary angles may depend on the largest ID of a call.
        """
        ...

    def log_probs_with_prefix(self, states: Any, tokens: Batch, position_ids: Batch) -> LogProbs:
        """Return the log-probabilities (nats) of the next token after each sequence in ``tokens``.

        Each sequence follows the prefix tokens that produced ``states``.
        """
        ...

    def log_probs_with_mask(
        self, states: Any, near_tokens: Near, position_ids: Near, visibility_masks: Bool[Tensor, "batch states"]
    ) -> LogProbs:
        """Return the log-probabilities of the token after ``near_tokens`` for each of ``visibility_masks``.

        A mask is True for the states to which the near tokens attend.
        """
        ...

    def gate_gradient(
        self, states: Any, near_tokens: Near, position_ids: Near, log_gates: StateValues, objective: ScoreFunction
    ) -> StateValues:
        """Return the gradient of ``objective`` with respect to ``log_gates``.

        Every layer adds ``log_gates`` to the attention scores from the near tokens to the states.
        """
        ...

    def attention_weights(self, states: Any, near_tokens: Near, position_ids: Near) -> StateValues:
        """Return the attention weights from the last near token to each state, averaged over layers and heads."""
        ...
