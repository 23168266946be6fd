"""The contract of a model whose influences can be measured: log-probabilities of the next token, parts hidden."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor


@runtime_checkable
class NextTokenModel(Protocol):
    """A causal model that takes position IDs, and lets single far tokens be hidden from the near ones.

    ``num_positions``: IDs stay below it; None where there is no limit. ``trained_distance``: the largest distance
    of two IDs in training; None where it is not known. ``dtype``: the name of its precision. ``states`` below is
    whatever the model keeps of tokens that it has read: only the model looks into it.
    """

    name: str
    vocabulary_size: int
    num_positions: int | None
    trained_distance: int | float | None
    num_parameters: int
    dtype: str

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

    def read(self, tokens: Int[Tensor, " read"], position_ids: Int[Tensor, " read"]) -> Any:
        """The states of the tokens before the near ones, made once for any number of questions about them."""
        ...

    def log_probs_after(
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

    def attention(
        self, states: Any, near: Int[Tensor, " near"], position_ids: Int[Tensor, " near"]
    ) -> Float[Tensor, " read"]:
        """The last near token's attention weight on each state, the mean over layers and heads."""
        ...
