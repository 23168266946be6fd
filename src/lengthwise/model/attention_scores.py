"""Hooks of the attention of a decoder, and the learned scaling of its scores by the length."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.model.fast.near_attention import NearAttention


@dataclass(frozen=True, slots=True)
class AttentionHooks:
    """Hooks that hide keys or observe attention weights in all layers of a decoder.

    ``score_bias``, of shape (1 or batch, query, key), is added to the scores of all heads; minus infinity hides a key.
    ``on_weights`` receives the weights of each layer, of shape (batch, heads, query, key). ``visible_counts``, of shape
    (batch, query), overrides the number of visible keys in length scaling. ``near``, which needs
    ``Decoder.allows_near_attention`` and no other hook, replaces dense attention and takes less time.
    """

    score_bias: Float[Tensor, "#batch query key"] | None = None
    on_weights: Callable[[Tensor], None] | None = None
    visible_counts: Float[Tensor, "batch query"] | None = None
    near: NearAttention | None = None


NO_HOOKS = AttentionHooks()


class LogLengthScale(nn.Module):
    """Learned scale ``offset + log(n + 1)^power`` per head for n visible keys; initially ``log(n + 1)``."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(num_heads, 1, 1))
        self.power = nn.Parameter(torch.ones(num_heads, 1, 1))

    def forward(self, log_num_keys: Float[Tensor, "*batch seq 1"]) -> Float[Tensor, "*batch_heads seq 1"]:
        """Return the factor of each query's scores; ``log_num_keys`` is ``log(n + 1)``."""
        return self.offset + log_num_keys**self.power
