"""What a block's attention scores are made of, and how they grow with the length."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from lengthwise.encodings.levels import LevelEncoding
from lengthwise.model.attention import Weigh, future_mask


@dataclass(frozen=True, slots=True)
class Looking:
    """What one looks at a decoder with: keys hidden by what is added to the scores, weights watched layer by layer.

    ``added``: (1 or batch, query, key), for all heads and layers; minus infinity hides a key. ``watch`` gets every
    layer's weights (batch, heads, query, key). A length scale counts the keys that are not hidden, or as many as
    ``counted`` says: (batch, query).
    """

    added: Float[Tensor, "#batch query key"] | None = None
    watch: Callable[[Tensor], None] | None = None
    counted: Float[Tensor, "batch query"] | None = None


PLAINLY = Looking()


@dataclass(frozen=True, slots=True)
class Chunks:
    """Biases and scores chunk by chunk of the queries: a long sequence never needs them all at once."""

    encoding: LevelEncoding
    query: Float[Tensor, "batch heads query d_head"]
    key: Float[Tensor, "batch heads key d_head"]
    query_ids: Real[Tensor, "level batch query"]
    key_ids: Real[Tensor, "level batch key"]
    added: Float[Tensor, "#batch query key"] | None = None

    @property
    def has_bias(self) -> bool:
        """Whether anything is added to the scores."""
        return self.encoding.has_bias or self.added is not None

    def bias(self, start: int, stop: int, seen: int) -> Float[Tensor, "#batch heads chunk seen"]:
        """What is added to the scores of queries ``start`` to ``stop`` on the first ``seen`` keys."""
        ids = self.query_ids[:, :, start:stop], self.key_ids[:, :, :seen]
        if self.added is None:
            return self.encoding.bias(*ids)
        added = self.added[:, None, start:stop, :seen]
        return self.encoding.bias(*ids) + added if self.encoding.has_bias else added

    def scores(self, start: int, stop: int, seen: int, visible: Tensor) -> Float[Tensor, "batch heads chunk seen"]:
        """The same queries' scores, bias included."""
        ids = self.query_ids[:, :, start:stop], self.key_ids[:, :, :seen]
        made = self.encoding.scores(self.query[:, :, start:stop], self.key[:, :, :seen], *ids, visible)
        return made + self.bias(start, stop, seen) if self.has_bias else made

    def weights(self, weigh: Weigh) -> Float[Tensor, "batch heads query key"]:
        """What every query attends to, all at once: to look at, not to train with."""
        queries, keys = self.query.shape[2], self.key.shape[2]
        future = future_mask(queries, keys, self.key.device)
        return weigh(self.scores(0, queries, keys, ~future).masked_fill(future, -math.inf))


class LengthScale(nn.Module):
    """``offset + log^power`` per head; starts as the log."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(num_heads, 1, 1))
        self.power = nn.Parameter(torch.ones(num_heads, 1, 1))

    def forward(self, log: Float[Tensor, "*batch seq 1"]) -> Float[Tensor, "*batch_heads seq 1"]:
        """The factor of each query's scores."""
        return self.offset + log**self.power
