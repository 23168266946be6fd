"""Interface of a causal language model that an influence study measures."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

# Tokens of a window, of sequences of equal length, and of the near tokens; each with its position IDs, which have one
# array per level if the model has several levels.
WindowTokens = Int[Tensor, " seq"]
WindowIDs = Real[Tensor, "*level seq"]
Batch = Int[Tensor, "batch seq"]
BatchIDs = Real[Tensor, "batch *level seq"]
Near = Int[Tensor, " near"]
NearIDs = Real[Tensor, "*level near"]
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

    def assign_ids(self, tokens: WindowTokens) -> WindowIDs:
        """Return the position IDs of all tokens of a window, hidden tokens included.

        The IDs of a token may depend on it and on earlier tokens, for example on the number of their lines. The IDs of
        most models are the token indexes.
        """
        ...

    def log_probs(self, tokens: Batch, position_ids: BatchIDs) -> LogProbs:
        """Return the log-probabilities (nats) of the token after each of several independent sequences."""
        ...

    def losses(
        self, tokens: Batch, position_ids: BatchIDs, targets: Int[Tensor, "batch t"]
    ) -> Float[Tensor, "batch t"]:
        """Return the losses (nats) of ``targets``: the tokens that follow each of the last ``t`` tokens."""
        ...

    def plain_log_probs(
        self, tokens: WindowTokens, mask: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Return the log-probabilities of the token after the sequence, from one forward pass without a cache.

        ``mask`` (query, key) is True if the query attends to the key. With a mask, the model also gets the IDs of
        ``assign_ids``. Without a mask, a model whose own IDs are token indexes gets no IDs. Checks compare all other
        methods with this method.
        """
        ...

    def rounding_tolerance(self, tokens: WindowTokens) -> float:
        """Return the largest difference (nats) in a log-probability that rounding can cause."""
        ...

    def prefill(self, tokens: WindowTokens, position_ids: WindowIDs, num_prefix: int) -> Any:
        """Return the states of the first ``num_prefix`` tokens.

        Pass the remaining tokens too, because rotary angles may depend on the largest ID of a call.
        """
        ...

    def log_probs_with_prefix(self, states: Any, tokens: Batch, position_ids: BatchIDs) -> LogProbs:
        """Return the log-probabilities (nats) of the next token after each sequence in ``tokens``.

        Each sequence follows the prefix tokens that produced ``states``.
        """
        ...

    def log_probs_with_mask(
        self, states: Any, near_tokens: Near, position_ids: NearIDs, visibility_masks: Bool[Tensor, "batch states"]
    ) -> LogProbs:
        """Return the log-probabilities of the token after ``near_tokens`` for each of ``visibility_masks``.

        A mask is True for the states to which the near tokens attend.
        """
        ...

    def gate_gradient(
        self, states: Any, near_tokens: Near, position_ids: NearIDs, log_gates: StateValues, objective: ScoreFunction
    ) -> StateValues:
        """Return the gradient of ``objective`` with respect to ``log_gates``.

        Every layer adds ``log_gates`` to the attention scores from the near tokens to the states.
        """
        ...

    def attention_weights(self, states: Any, near_tokens: Near, position_ids: NearIDs) -> StateValues:
        """Return the attention weights from the last near token to each state, averaged over layers and heads."""
        ...
