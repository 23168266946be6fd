"""Causal attention in several implementations, and the functions from scores to attention weights.

``attend`` selects the fastest implementation for its input sizes.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, scaled_dot_product_attention

from lengthwise.core.errors import SettingError

# Up to this number of keys, plain matrix products are faster than the fused kernel on a CPU (benchmarks/speed.md).
MAX_KEYS_FOR_PLAIN_ATTENTION = 64
# From this number of heads in all sequences together, they are faster for one query with any number of keys, because a
# fused kernel of a GPU computes whole blocks of queries.
MIN_HEADS_FOR_PLAIN_ATTENTION = 64
# Maximum number of scores per chunk of queries, for implementations that store scores, also those of position heads. On
# a CPU, it is a few times the cache size of a core (benchmarks/encoding_speed.py); on a GPU, all cores have work.
MAX_CHUNK_SCORES = 1 << 19
GPU_MAX_CHUNK_SCORES = 1 << 24
# The fused kernel needs no mask if the numbers of queries and keys are equal. Up to this ratio of keys to queries,
# padding the queries is faster than a mask.
MAX_PADDING_RATIO = 5
WEIGHT_FUNCTIONS = ("softmax", "entmax", "top_k", "count")
# Factor of the weights of a counting head. It keeps the sum of the weights near 1 if the head counts few keys.
COUNT_SCALE = 1 / 8

# One vector per query and one vector per key.
QueryVectors = Float[Tensor, "batch heads query d_head"]
KeyVectors = Float[Tensor, "batch heads key d_head"]
Scores = Float[Tensor, "batch heads query key"]
# Function that returns the additive scores of queries ``start`` to ``stop`` for the first ``num_keys`` keys.
BiasFunction = Callable[[int, int, int], Float[Tensor, "#batch heads query key"]]
# Function that returns the scores of the same queries; the fourth argument is the mask of visible keys.
ScoreFunction = Callable[[int, int, int, Tensor], Scores]
# Function that returns attention weights from masked scores and replaces the softmax.
WeightFunction = Callable[[Scores], Scores]


def attend(query: QueryVectors, key: KeyVectors, value: KeyVectors, bias: BiasFunction | None = None) -> QueryVectors:
    """Return the output of causal softmax attention; ``query`` has the queries of the last tokens of the sequence.

    Scores are divided by ``sqrt(d_head)``; ``bias(start, stop, num_keys)`` returns additive scores. The causal mask
    depends only on the token index. Coupled IDs can repeat or decrease, so a mask from IDs would leak answers.
    """
    num_queries, num_keys = query.shape[2], key.shape[2]
    on_cpu = query.device.type == "cpu"
    has_many_heads = num_queries == 1 and len(query) * query.shape[1] >= MIN_HEADS_FOR_PLAIN_ATTENTION
    if has_many_heads or (on_cpu and num_keys <= MAX_KEYS_FOR_PLAIN_ATTENTION):
        return _attend_short(query, key, value, bias)
    if bias is None and num_queries in (1, num_keys):
        return scaled_dot_product_attention(query, key, value, is_causal=num_queries > 1)
    if bias is None and not torch.is_grad_enabled() and MAX_PADDING_RATIO * num_queries > num_keys:
        padded_query = pad(query, (0, 0, num_keys - num_queries, 0))
        return scaled_dot_product_attention(padded_query, key, value, is_causal=True)[:, :, num_keys - num_queries :]
    if on_cpu and torch.is_grad_enabled():
        biases = [] if bias is None else [bias(*chunk) for chunk in _chunks(key, num_queries)]
        return _ChunkedAttention.apply(query, key, value, *biases)  # type: ignore[no-untyped-call]
    outputs = []
    for start, stop, num_chunk_keys in _chunks(key, num_queries):
        mask = _causal_scores(stop - start, num_chunk_keys, query.device)
        if bias is not None:
            mask = mask + bias(start, stop, num_chunk_keys)
        queries, keys, values = query[:, :, start:stop], key[:, :, :num_chunk_keys], value[:, :, :num_chunk_keys]
        outputs.append(scaled_dot_product_attention(queries, keys, values, attn_mask=mask.to(query.dtype)))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def future_mask(num_queries: int, num_keys: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """Return a mask that is True for keys after the query; the last query and the last key belong to the same token."""
    return torch.ones(num_queries, num_keys, dtype=torch.bool, device=device).triu(num_keys - num_queries + 1)


def max_scores_in_memory(device: torch.device) -> int:
    """Return the maximum number of scores that are in memory at once."""
    return MAX_CHUNK_SCORES if device.type == "cpu" else GPU_MAX_CHUNK_SCORES


def _chunks(value: KeyVectors, num_queries: int) -> Iterator[tuple[int, int, int]]:
    """Yield the start and stop index of each chunk of queries, and the number of keys visible to its last query."""
    batch_size, num_heads, num_keys, _ = value.shape
    chunk_size = max(1, max_scores_in_memory(value.device) // (batch_size * num_heads * num_keys))
    for start in range(0, num_queries, chunk_size):
        stop = min(start + chunk_size, num_queries)
        yield start, stop, num_keys - num_queries + stop


def _causal_scores(num_queries: int, num_keys: int, device: torch.device) -> Float[Tensor, "query key"]:
    """Return additive scores: 0 for visible keys and minus infinity for future keys."""
    scores = torch.zeros(num_queries, num_keys, device=device)
    return scores if num_queries == 1 else scores.masked_fill_(future_mask(num_queries, num_keys, device), -math.inf)


def _attend_short(query: QueryVectors, key: KeyVectors, value: KeyVectors, bias: BiasFunction | None) -> QueryVectors:
    batch_size, num_heads, num_queries, d_head = query.shape
    num_keys = key.shape[2]
    mask = _causal_scores(num_queries, num_keys, query.device)
    if bias is not None:
        mask = (mask + bias(0, num_queries, num_keys)).expand(batch_size, num_heads, -1, -1).flatten(0, 1)
    scores = torch.baddbmm(mask.to(query.dtype), query.flatten(0, 1), key.flatten(0, 1).mT, alpha=1 / math.sqrt(d_head))
    return scores.softmax(dim=-1).bmm(value.flatten(0, 1)).view(query.shape)


class _ChunkedAttention(torch.autograd.Function):
    """Attention in chunks of queries that accumulates the gradients of keys and values in place.

    With plain autograd operations, the backward pass of each chunk would allocate gradients for all keys and values.
    The fused kernel of PyTorch cannot be used, because it does not compute the gradient of a bias.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *biases: Tensor) -> Tensor:
        """Return the attention output; ``biases`` is empty or contains one tensor per chunk of queries."""
        batch_size, num_heads, num_queries, d_head = query.shape
        scaled_query = (query / math.sqrt(d_head)).flatten(0, 1)
        keys, values = key.flatten(0, 1), value.flatten(0, 1)
        output, chunk_weights = torch.empty_like(scaled_query), []
        for chunk_index, (start, stop, num_keys) in enumerate(_chunks(key, num_queries)):
            num_chunk_queries = stop - start
            scores = scaled_query[:, start:stop].bmm(keys[:, :num_keys].mT).float()
            if biases:
                scores.view(batch_size, num_heads, num_chunk_queries, num_keys).add_(biases[chunk_index])
            is_future = future_mask(num_chunk_queries, num_chunk_queries, scores.device)
            scores[:, :, num_keys - num_chunk_queries :].masked_fill_(is_future, -math.inf)
            weights = scores.softmax(dim=-1).to(value.dtype)
            output[:, start:stop] = weights.bmm(values[:, :num_keys])
            chunk_weights.append(weights)
        ctx.save_for_backward(scaled_query, keys, values, output, *chunk_weights)
        ctx.heads, ctx.bias_shapes = (batch_size, num_heads), [bias.shape for bias in biases]
        return output.view(query.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Use ``d scores = weights * (d weights - s)``, where s is the sum of ``d output * output`` over components."""
        scaled_query, keys, values, output, *chunk_weights = ctx.saved_tensors
        d_output = gradients[0].flatten(0, 1)
        gradient_dot_output = (d_output.float() * output).sum(dim=-1, keepdim=True)
        d_query = torch.empty_like(scaled_query)
        d_key, d_value = (torch.zeros_like(tensor, dtype=torch.float32) for tensor in (keys, values))
        d_biases: list[Tensor | None] = [None] * len(ctx.bias_shapes)
        start = 0
        for chunk_index, weights in enumerate(chunk_weights):
            stop, num_keys = start + weights.shape[1], weights.shape[2]
            d_chunk = d_output[:, start:stop]
            d_value[:, :num_keys] += weights.mT.bmm(d_chunk)
            d_scores = d_chunk.bmm(values[:, :num_keys].mT).sub_(gradient_dot_output[:, start:stop]).mul_(weights)
            d_query[:, start:stop] = d_scores.bmm(keys[:, :num_keys])
            d_key[:, :num_keys] += d_scores.mT.bmm(scaled_query[:, start:stop])
            if ctx.bias_shapes and ctx.needs_input_grad[3 + chunk_index]:
                d_bias = d_scores.view(*ctx.heads, *d_scores.shape[1:])
                d_biases[chunk_index] = d_bias.sum_to_size(ctx.bias_shapes[chunk_index])
            start = stop
        d_query = d_query / math.sqrt(scaled_query.shape[-1])
        dtype = scaled_query.dtype
        return *(
            tensor.to(dtype).view(*ctx.heads, *tensor.shape[1:]) for tensor in (d_query, d_key, d_value)
        ), *d_biases


def attend_with_scores(
    scores: ScoreFunction, value: KeyVectors, num_queries: int, weight_function: WeightFunction
) -> QueryVectors:
    """Return the output of causal attention with these scores and weights, one chunk of queries at a time."""
    outputs = []
    for start, stop, num_keys in _chunks(value, num_queries):
        is_future = future_mask(stop - start, num_keys, value.device)
        weights = weight_function(scores(start, stop, num_keys, ~is_future).masked_fill(is_future, -math.inf))
        outputs.append(weights.to(value.dtype) @ value[:, :, :num_keys])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


def mix_in_uniform_attention(
    attention_output: QueryVectors, value: KeyVectors, max_share: float, places: range | None = None
) -> QueryVectors:
    """Replace a share of each head's output by the mean of all visible values, to simulate longer sequences.

    The shares of the sequences in a batch are spaced evenly from 0 to ``max_share``, with a different offset per head.
    ``attention_output`` belongs to the last tokens of each sequence. ``places`` are the indexes of the sequences in
    their whole batch, if they are only a share of it; see ``SequenceGroup``.
    """
    batch_size, num_heads, num_queries, _ = attention_output.shape
    places = range(batch_size) if places is None else places
    sequence_index = torch.arange(places.start, places.stop, places.step, device=value.device)
    head_index = torch.arange(num_heads, device=value.device)
    fractions = (sequence_index[:, None] / places.stop + head_index / num_heads) % 1
    shares = max_share * fractions[:, :, None, None].to(value.dtype)
    num_visible = torch.arange(1, value.shape[2] + 1, device=value.device)[:, None]
    mean_value = (value.cumsum(dim=2) / num_visible)[:, :, -num_queries:]
    return (1 - shares) * attention_output + shares * mean_value


def softmax(scores: Scores) -> Scores:
    """Return the softmax over keys, in float32."""
    return scores.float().softmax(dim=-1)


def top_k(scores: Scores, k: int) -> Scores:
    """Return the softmax over the k largest scores of each query (Gupta et al. 2021, arXiv 2106.06899)."""
    if k >= scores.shape[-1]:
        return softmax(scores)
    # Use indexes, not a threshold. With a threshold, rounding errors would affect the selection among equal scores.
    top_scores = scores.topk(k, dim=-1)
    return torch.zeros_like(scores, dtype=torch.float32).scatter(-1, top_scores.indices, softmax(top_scores.values))


def entmax(scores: Scores, alpha: float) -> Scores:
    """Return alpha-entmax weights, which are exactly 0 for most keys (Peters et al. 2019, arXiv 1905.05702)."""
    # The import is local, because only this option needs the library.
    from entmax import entmax15, entmax_bisect  # noqa: PLC0415

    # A constant shift does not change entmax, and large scores would make its threshold inexact.
    scores = scores.float() - scores.detach().float().amax(dim=-1, keepdim=True)
    return entmax15(scores, dim=-1) if alpha == 1.5 else entmax_bisect(scores, alpha, dim=-1)


def scaled_sigmoid(scores: Scores) -> Scores:
    """Return ``COUNT_SCALE`` times the sigmoid of each score (Ramapuram et al. 2024, arXiv 2409.04431)."""
    return COUNT_SCALE * scores.float().sigmoid()


def make_weight_function(name: str, *, k: int, alpha: float) -> WeightFunction | None:
    """Return the weight function of this name, or None for the softmax, which has a fused kernel.

    Raises ``SettingError`` for ``"entmax"`` if the entmax library is not installed.
    """
    if name == "entmax":
        try:
            import entmax as _  # noqa: F401, PLC0415
        except ImportError:
            raise SettingError(
                "weights 'entmax' need the entmax library; run pip install 'lengthwise[entmax]'"
            ) from None
        return partial(entmax, alpha=alpha)
    if name == "count":
        return scaled_sigmoid
    return partial(top_k, k=k) if name == "top_k" else None
