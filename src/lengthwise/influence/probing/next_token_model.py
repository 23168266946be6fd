"""The contract of a model whose influences can be measured: log-probabilities of the next token, parts hidden."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class NextTokenModel(Protocol):
    """A causal model that takes position IDs, and lets single far tokens be hidden from the near ones.

    ``num_positions``: IDs stay below it; None where there is no limit. ``trained_distance``: the largest distance
    of two IDs in training; None where it is not known. ``dtype``: the name of its precision. ``weights_digest``:
    differs where weights differ. ``states`` below is whatever the model keeps of tokens it has read: only the model
    looks into it. ``forward_tokens``: about as many tokens as it reads at once.
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
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities (nats) of what follows each row; a row sees nothing but itself."""
        ...

    def losses(
        self, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"], targets: Int[Tensor, "rows last"]
    ) -> Float[Tensor, "rows last"]:
        """Minus the log-probabilities (nats) of the targets, which follow the last tokens: less memory than all."""
        ...

    def plain_log_probs(
        self, tokens: Int[Tensor, " seq"], seen: Bool[Tensor, "seq seq"] | None = None
    ) -> Float[Tensor, " vocab"]:
        """Log-probabilities after the last token by one plain pass: no cache, nothing shared, nothing left out.

        ``seen`` says which token attends to which, with IDs that count from 0; by default the model reads the text as
        it reads any other, without IDs or a mask. Every other answer is checked against this one.
        """
        ...

    def rounding_tolerance(self, tokens: Int[Tensor, " seq"]) -> float:
        """Return the largest difference (nats) of two computations of a log-probability that rounding explains."""
        ...

    def prefill(self, tokens: Int[Tensor, " seq"], position_ids: Int[Tensor, " seq"], num_read: int) -> Any:
        """The states of the first ``num_read`` tokens, made once for any number of questions about them.

        The near tokens behind them are read as well: angles may depend on the largest ID of a call.
        """
        ...

    def log_probs_with_prefix(
        self, states: Any, tokens: Int[Tensor, "rows seq"], position_ids: Int[Tensor, "rows seq"]
    ) -> Float[Tensor, "rows vocab"]:
        """As ``log_probs`` of rows that begin with the tokens of ``states``."""
        ...

    def log_probs_with_mask(
        self,
        states: Any,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        visible: Bool[Tensor, "rows read"],
    ) -> Float[Tensor, "rows vocab"]:
        """Log-probabilities after the near tokens, once for each choice of the states that these attend to."""
        ...

    def gate_gradient(
        self,
        states: Any,
        near: Int[Tensor, " near"],
        position_ids: Int[Tensor, " near"],
        log_gates: Float[Tensor, " read"],
        objective: Callable[[Float[Tensor, " vocab"]], Float[Tensor, ""]],
    ) -> Float[Tensor, " read"]:
        """The gradient of an objective of the log-probabilities by what is added to the scores of each state."""
        ...

    def attention_weights(
        self, states: Any, near: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " read"]:
        """The last near token's attention weight on each state, the mean over layers and heads."""
        ...
