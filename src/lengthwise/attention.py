"""Causal attention over token indexes, in the form that is fastest for the sizes at hand."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# Up to here plain matrix products beat the fused kernel on a CPU (benchmarks/speed.md).
SHORT = 64
# Scores held at once where they must be held at all: few enough to stay in a core's cache.
CHUNK_ELEMENTS = 1 << 21

# Of queries ``start`` to ``stop`` on the first ``keys`` keys.
Bias = Callable[[int, int, int], Float[Tensor, "#batch heads query key"]]
# The same with the mask of what each query may see.
Scores = Callable[[int, int, int, Tensor], Float[Tensor, "batch heads query key"]]
# Scores to weights: what takes the place of the softmax.
Weigh = Callable[[Float[Tensor, "batch heads query key"]], Float[Tensor, "batch heads query key"]]


def attend(
    query: Float[Tensor, "batch heads query d_head"],
    key: Float[Tensor, "batch heads key d_head"],
    value: Float[Tensor, "batch heads key d_head"],
    bias: Bias | None = None,
) -> Float[Tensor, "batch heads query d_head"]:
    """Attention of the last ``query`` token indexes on all keys up to their own; scores over ``sqrt(d_head)``.

    ``bias(start, stop, keys)`` gives the additive scores of queries ``start`` to ``stop`` on the first ``keys`` keys.
    Causality is about token order: coupled IDs repeat and fall, so they never build this mask.
    """
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    if keys <= SHORT and query.device.type == "cpu":
        return _short(query, key, value, bias)
    if bias is None and queries == keys:
        return scaled_dot_product_attention(query, key, value, is_causal=True)
    if bias is None and queries == 1:
        return scaled_dot_product_attention(query, key, value)
    chunk = max(1, CHUNK_ELEMENTS // (batch * heads * keys))
    parts = []
    for start in range(0, queries, chunk):
        stop = min(start + chunk, queries)
        seen = keys - queries + stop
        mask = _causal_scores(stop - start, seen, query.device)
        if bias is not None:
            mask = mask + bias(start, stop, seen)
        part = scaled_dot_product_attention(
            query[:, :, start:stop], key[:, :, :seen], value[:, :, :seen], attn_mask=mask.to(query.dtype)
        )
        parts.append(part)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _short(
    query: Float[Tensor, "batch heads query d_head"],
    key: Float[Tensor, "batch heads key d_head"],
    value: Float[Tensor, "batch heads key d_head"],
    bias: Bias | None,
) -> Float[Tensor, "batch heads query d_head"]:
    batch, heads, queries, d_head = query.shape
    keys = key.shape[2]
    mask = _causal_scores(queries, keys, query.device)
    if bias is not None:
        mask = (mask + bias(0, queries, keys)).expand(batch, heads, queries, keys).flatten(0, 1)
    mask = mask.to(query.dtype)
    scores = torch.baddbmm(mask, query.flatten(0, 1), key.flatten(0, 1).mT, alpha=1 / math.sqrt(d_head))
    return scores.softmax(dim=-1).bmm(value.flatten(0, 1)).view(query.shape)


def _causal_scores(queries: int, keys: int, device: torch.device) -> Float[Tensor, "query key"]:
    """0 where a key may be seen, minus infinity after the query's own token index."""
    future: Bool[Tensor, "query key"] = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return torch.zeros(queries, keys, device=device).masked_fill(future.triu(keys - queries + 1), -math.inf)


def attend_by_scores(
    scores: Scores,
    value: Float[Tensor, "batch heads key d_head"],
    queries: int,
    weigh: Weigh,
) -> Float[Tensor, "batch heads query d_head"]:
    """Attention for what needs the scores themselves: they are made chunk by chunk, masked and weighed."""
    batch, heads, keys, _ = value.shape
    chunk = max(1, CHUNK_ELEMENTS // (batch * heads * keys))
    parts = []
    for start in range(0, queries, chunk):
        stop = min(start + chunk, queries)
        seen = keys - queries + stop
        mask = _causal_scores(stop - start, seen, value.device)
        weights = weigh(scores(start, stop, seen, mask == 0) + mask)
        parts.append(weights.to(value.dtype) @ value[:, :, :seen])
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
