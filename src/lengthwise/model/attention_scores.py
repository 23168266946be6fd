"""Attention scores of one decoder layer, with the position encoding, additive biases and length scaling."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from lengthwise.encodings.multi_level import MultiLevelEncoding
from lengthwise.model.attention import WeightFunction, future_mask
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


@dataclass(frozen=True, slots=True)
class ChunkedScores:
    """Attention scores and biases, computed for one chunk of queries at a time to save memory."""

    encoding: MultiLevelEncoding
    query: Float[Tensor, "batch heads query d_head"]
    key: Float[Tensor, "batch heads key d_head"]
    query_ids: Real[Tensor, "level batch query"]
    key_ids: Real[Tensor, "level batch key"]
    score_bias: Float[Tensor, "#batch query key"] | None = None

    @property
    def has_bias(self) -> bool:
        """True if the encoding or a hook adds a bias to the scores."""
        return self.encoding.has_bias or self.score_bias is not None

    def bias(self, start: int, stop: int, num_keys: int) -> Float[Tensor, "#batch heads chunk key"]:
        """Return the additive scores of queries ``start`` to ``stop`` for the first ``num_keys`` keys."""
        chunk_ids = self.query_ids[:, :, start:stop], self.key_ids[:, :, :num_keys]
        if self.score_bias is None:
            return self.encoding.bias(*chunk_ids)
        score_bias = self.score_bias[:, None, start:stop, :num_keys]
        return self.encoding.bias(*chunk_ids) + score_bias if self.encoding.has_bias else score_bias

    def scores(self, start: int, stop: int, num_keys: int, visible: Tensor) -> Float[Tensor, "batch heads chunk key"]:
        """Return the scores of queries ``start`` to ``stop`` for the first ``num_keys`` keys, including the bias."""
        chunk_ids = self.query_ids[:, :, start:stop], self.key_ids[:, :, :num_keys]
        scores = self.encoding.scores(self.query[:, :, start:stop], self.key[:, :, :num_keys], *chunk_ids, visible)
        return scores + self.bias(start, stop, num_keys) if self.has_bias else scores

    def weights(self, weight_function: WeightFunction) -> Float[Tensor, "batch heads query key"]:
        """Return the attention weights of all queries in one tensor, for inspection."""
        num_queries, num_keys = self.query.shape[2], self.key.shape[2]
        is_future = future_mask(num_queries, num_keys, self.key.device)
        return weight_function(self.scores(0, num_queries, num_keys, ~is_future).masked_fill(is_future, -math.inf))


class LogLengthScale(nn.Module):
    """Learned scale ``offset + log(n + 1)^power`` per head for n visible keys; initially ``log(n + 1)``."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(num_heads, 1, 1))
        self.power = nn.Parameter(torch.ones(num_heads, 1, 1))

    def forward(self, log_num_keys: Float[Tensor, "*batch seq 1"]) -> Float[Tensor, "*batch_heads seq 1"]:
        """Return the factor of each query's scores; ``log_num_keys`` is ``log(n + 1)``."""
        return self.offset + log_num_keys**self.power
