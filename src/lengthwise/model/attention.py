"""Causal attention over token indexes, in the form that is fastest for the sizes at hand."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

# Up to here plain matrix products beat the fused kernel on a CPU (benchmarks/speed.md).
SHORT = 64
# Scores held at once where they must be held at all: on a CPU, few enough to stay near a core's cache
# (benchmarks/encoding_speed.py); on a GPU, enough for all its cores.
CHUNK_ELEMENTS = 1 << 19
GPU_CHUNK_ELEMENTS = 1 << 24
# With more queries than one in so many keys, those that nobody asks for cost less than a mask does: the fused kernel
# needs none where there are as many of both.
MANY = 5

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
    queries, keys = query.shape[2], key.shape[2]
    on_cpu = query.device.type == "cpu"
    if keys <= SHORT and on_cpu:
        return _short(query, key, value, bias)
    if bias is None and queries in (1, keys):
        return scaled_dot_product_attention(query, key, value, is_causal=queries > 1)
    if bias is None and on_cpu and not torch.is_grad_enabled() and MANY * queries > keys:
        padded = pad(query, (0, 0, keys - queries, 0))
        return scaled_dot_product_attention(padded, key, value, is_causal=True)[:, :, keys - queries :]
    if on_cpu and torch.is_grad_enabled():
        biases = [] if bias is None else [bias(*chunk) for chunk in _chunks(key, queries)]
        attended: Tensor = _ChunkedAttention.apply(query, key, value, *biases)  # type: ignore[no-untyped-call]
        return attended
    parts = []
    for start, stop, seen in _chunks(key, queries):
        mask = _causal_scores(stop - start, seen, query.device)
        if bias is not None:
            mask = mask + bias(start, stop, seen)
        part = scaled_dot_product_attention(
            query[:, :, start:stop], key[:, :, :seen], value[:, :, :seen], attn_mask=mask.to(query.dtype)
        )
        parts.append(part)
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _chunks(value: Float[Tensor, "batch heads key d_head"], queries: int) -> Iterator[tuple[int, int, int]]:
    """Where a chunk of queries starts and stops, and how many keys its last one sees."""
    batch, heads, keys, _ = value.shape
    held = CHUNK_ELEMENTS if value.device.type == "cpu" else GPU_CHUNK_ELEMENTS
    chunk = max(1, held // (batch * heads * keys))
    for start in range(0, queries, chunk):
        stop = min(start + chunk, queries)
        yield start, stop, keys - queries + stop


def future_mask(queries: int, keys: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """What comes after the query's own token index, the last key being that of the last query."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).triu(keys - queries + 1)


def _causal_scores(queries: int, keys: int, device: torch.device) -> Float[Tensor, "query key"]:
    """0 where a key may be seen, minus infinity after the query's own token index."""
    scores = torch.zeros(queries, keys, device=device)
    return scores if queries == 1 else scores.masked_fill_(future_mask(queries, keys, device), -math.inf)


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


class _ChunkedAttention(torch.autograd.Function):
    """Attention that keeps the weights of each chunk, and adds up the gradients of keys and values in place.

    Composed of plain operations, each chunk's backward pass would fill gradients for all keys and values; the fused
    kernel has none for a bias.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *biases: Tensor) -> Tensor:
        """``biases``: one for each chunk of queries, or none at all."""
        batch, heads, queries, d_head = query.shape
        scaled = (query / math.sqrt(d_head)).flatten(0, 1)
        keys, values = key.flatten(0, 1), value.flatten(0, 1)
        attended, kept = torch.empty_like(scaled), []
        for chunk, (start, stop, seen) in enumerate(_chunks(key, queries)):
            size = stop - start
            scores = scaled[:, start:stop].bmm(keys[:, :seen].mT).float()
            if biases:
                scores.view(batch, heads, size, seen).add_(biases[chunk])
            scores[:, :, seen - size :].masked_fill_(future_mask(size, size, scores.device), -math.inf)
            weights = scores.softmax(dim=-1).to(value.dtype)
            attended[:, start:stop] = weights.bmm(values[:, :seen])
            kept.append(weights)
        ctx.save_for_backward(scaled, keys, values, attended, *kept)
        ctx.heads, ctx.bias_shapes = (batch, heads), [bias.shape for bias in biases]
        return attended.view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """``d scores = weights * (d weights - sum(weights * d weights))``, the sum being that of ``d out * out``."""
        scaled, keys, values, attended, *kept = ctx.saved_tensors
        of_attended = gradients[0].flatten(0, 1)
        mean = (of_attended.float() * attended).sum(dim=-1, keepdim=True)
        of_query = torch.empty_like(scaled)
        of_key, of_value = (torch.zeros_like(part, dtype=torch.float32) for part in (keys, values))
        of_biases: list[Tensor | None] = [None] * len(ctx.bias_shapes)
        start = 0
        for chunk, weights in enumerate(kept):
            stop, seen = start + weights.shape[1], weights.shape[2]
            own = of_attended[:, start:stop]
            of_value[:, :seen] += weights.mT.bmm(own)
            of_scores = own.bmm(values[:, :seen].mT).sub_(mean[:, start:stop]).mul_(weights)
            of_query[:, start:stop] = of_scores.bmm(keys[:, :seen])
            of_key[:, :seen] += of_scores.mT.bmm(scaled[:, start:stop])
            if ctx.bias_shapes and ctx.needs_input_grad[3 + chunk]:
                whole = of_scores.view(*ctx.heads, *of_scores.shape[1:])
                of_biases[chunk] = whole.sum_to_size(ctx.bias_shapes[chunk])
            start = stop
        of_query = of_query / math.sqrt(scaled.shape[-1])
        parts = (part.to(scaled.dtype).view(*ctx.heads, *part.shape[1:]) for part in (of_query, of_key, of_value))
        return *parts, *of_biases


def attend_by_scores(
    scores: Scores, value: Float[Tensor, "batch heads key d_head"], queries: int, weigh: Weigh
) -> Float[Tensor, "batch heads query d_head"]:
    """Attention for what needs the scores themselves: they are made chunk by chunk, masked and weighed."""
    parts = []
    for start, stop, seen in _chunks(value, queries):
        future = future_mask(stop - start, seen, value.device)
        weights = weigh(scores(start, stop, seen, ~future).masked_fill(future, -math.inf))
        parts.append(weights.to(value.dtype) @ value[:, :, :seen])
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def diluted(
    attended: Float[Tensor, "batch heads query d_head"], value: Float[Tensor, "batch heads key d_head"], most: float
) -> Float[Tensor, "batch heads query d_head"]:
    """As if so many more tokens had been there: a share of each head's attention goes to all visible keys alike.

    The shares of a batch's sequences are spread evenly from 0 to ``most``, each head's in another order. The queries
    are those of the last keys.
    """
    batch, heads, queries, _ = attended.shape
    rows, columns = torch.arange(batch, device=value.device), torch.arange(heads, device=value.device)
    share = most * ((rows[:, None] / batch + columns / heads) % 1)[:, :, None, None].to(value.dtype)
    visible = torch.arange(1, value.shape[2] + 1, device=value.device)[:, None]
    mean = (value.cumsum(dim=2) / visible)[:, :, -queries:]
    return (1 - share) * attended + share * mean
