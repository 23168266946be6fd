"""Attention to keys with near IDs, in place of dense attention, for a decoder with one layer.

Coupling makes the tokens that a prediction needs near in ID. So the time is linear in the number of tokens instead of
quadratic. A query first reads the keys within a small ID distance, then within a larger one, until the weight of all
other keys is lost in rounding. The other queries read all keys, so the result is that of dense attention.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from lengthwise.encodings.multi_level import MultiLevelEncoding
from lengthwise.model.attention import attend

# ID distances within which queries read keys, tried in this order.
WIDTHS = (16, 64, 256)
# Largest omitted share of the weight. A smaller share is lost in the rounding of float32.
MAX_OMITTED = 2.0**-25
# Addition to the logarithm of all omitted weights, for the rounding of scores.
ROUNDING = 0.01
# Maximum number of pairs of a different query and a different key, before their IDs enter. All of them are compared at
# all distances.
MAX_CONTENT_PAIRS = 4096
# Maximum number of scores in a comparison of different queries at all distances, which are in memory at once.
MAX_FAR_SCORES = 1 << 28
# Number of queries that read their near keys at once. On a GPU, it is large enough to use many cores.
NEAR_QUERIES = 256
GPU_NEAR_QUERIES = 1024
# Number of scales at which the omitted weight is computed.
NUM_SCALES = 9
# Up to this share of all queries reads all keys in small groups; more queries use dense attention.
MAX_SINGLE_SHARE = 0.1
# Maximum number of scores per product of queries at different distances with all different keys, and of single queries
# with all keys. On a GPU, it is large enough to use many cores.
SCORES_PER_CHUNK = 1 << 24
GPU_SCORES_PER_CHUNK = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class FarKeyBounds:
    """Upper bound of the weight of all keys farther than each of ``WIDTHS``, by the content and scale of a query.

    ``log_totals`` is the logarithm of the bound of the sum of ``exp(score)``. Rows are heads. ``scales`` increases.
    """

    log_totals: Float[Tensor, "row width scale content"]
    scales: Float[Tensor, "row scale"]

    def bound_omitted_weight(
        self,
        width_index: int,
        contents: Int[Tensor, " query"],
        scales: Float[Tensor, "row query"],
        log_weights: Float[Tensor, "row query"],
    ) -> Float[Tensor, " query"]:
        """Return bounds of the omitted weights; ``log_weights`` are logarithms of the sums over the keys read."""
        upper = torch.searchsorted(self.scales, scales.contiguous()).clamp(1, self.scales.shape[1] - 1)
        rows = torch.arange(len(scales), device=scales.device)[:, None]
        totals = self.log_totals[:, width_index]
        # A sum of exp(scale * score) is convex in the scale, so its maximum is at one end of an interval.
        log_total = torch.maximum(totals[rows, upper - 1, contents], totals[rows, upper, contents])
        return (log_total - log_weights + ROUNDING).exp().amax(dim=0)


def can_bound_far_keys(num_queries: int, num_keys: int, max_distance: int) -> bool:
    """Return whether a comparison of different queries (of all heads) and keys at all distances is small enough."""
    return num_queries * num_keys <= MAX_CONTENT_PAIRS and 2 * max_distance * num_queries <= MAX_FAR_SCORES


def far_distances(max_distance: int, chunk_size: int) -> Iterator[Int[Tensor, " distance"]]:
    """Yield all signed ID distances from beyond the first of ``WIDTHS`` to ``max_distance`` by size, in chunks."""
    for start in range(WIDTHS[0] + 1, max_distance + 1, max(1, chunk_size // 2)):
        sizes = torch.arange(start, min(start + max(1, chunk_size // 2), max_distance + 1))
        yield torch.stack([sizes, -sizes], dim=1).flatten()


def bound_far_keys(
    scores: Float[Tensor, "row content distance"],
    bias: Float[Tensor, "row distance"] | None,
    query_scales: Float[Tensor, "row query"],
    max_keys_per_id: int,
) -> FarKeyBounds:
    """Return the bounds for scores of the best key at each of ``far_distances``.

    The score of a query is ``scale * scores + bias``. ``max_keys_per_id`` keys may have the same ID.
    """
    lowest, highest = query_scales.amin(dim=1), query_scales.amax(dim=1)
    steps = torch.linspace(0, 1, NUM_SCALES, device=scores.device)
    scales = lowest[:, None] + (highest - lowest)[:, None] * steps
    scales[:, -1] = highest
    totals = torch.full((len(scores), len(WIDTHS), NUM_SCALES, scores.shape[1]), -math.inf, device=scores.device)
    for index in range(NUM_SCALES):
        scaled = scores * scales[:, index, None, None]
        if bias is not None:
            scaled = scaled + bias[:, None]
        for width_index, width in enumerate(WIDTHS):
            # An empty sum stays minus infinity.
            if (beyond := scaled[..., 2 * (width - WIDTHS[0]) :]).shape[-1]:
                totals[:, width_index, index] = beyond.logsumexp(dim=-1) + math.log(max_keys_per_id)
    return FarKeyBounds(log_totals=totals, scales=scales)


def index_distinct_rows(x: Float[Tensor, "row width"]) -> tuple[Int[Tensor, " row"], Int[Tensor, " number"]]:
    """Number the different rows; return the number of each row, and the index of the first row of each number."""
    bits = x.contiguous().view(torch.int32).long()
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (x.shape[1],), generator=generator).to(x.device) | 1
    # Rows with equal sums of products modulo 2^64 are equal, up to a negligible probability.
    _, numbers = torch.unique((bits * factors).sum(dim=1), return_inverse=True)
    indices = torch.arange(len(x), device=x.device)
    first = indices.new_full((int(numbers.max()) + 1,), len(x)).scatter_reduce(0, numbers, indices, "amin")
    return numbers, first


def max_key_count_per_id(ids: Int[Tensor, " key"]) -> int:
    """Return the largest number of keys with the same ID."""
    return int(torch.unique(ids, return_counts=True)[1].max())


def read_near_keys(
    query_ids: Int[Tensor, " query"],
    key_ids: Int[Tensor, " key"],
    read: Callable[[Tensor, Tensor], Float[Tensor, "row query"]],
    omitted: Callable[[int, Tensor, Tensor], Float[Tensor, " query"]],
    *,
    margin: int = 0,
) -> tuple[float, Int[Tensor, " unfinished"]]:
    """Let queries read near keys until the weight of the others is small enough.

    Returns the largest bound of the weight that a query has omitted, and the queries that need all keys instead.
    ``read(queries, keys)`` computes the result of some queries from some keys, both given as indexes and sorted by ID,
    and returns the logarithms of the sums of weights. A later call for a query replaces its result.
    ``omitted(width_index, queries, log_weights)`` bounds the weight of the other keys. ``margin`` is a number of
    further keys on both sides, which count as far keys.
    """
    sorted_key_ids, keys = key_ids.sort(stable=True)
    queries, largest = query_ids.argsort(stable=True), 0.0
    chunk_size = NEAR_QUERIES if query_ids.device.type == "cpu" else GPU_NEAR_QUERIES
    for width_index, width in enumerate(WIDTHS):
        if not len(queries):
            break
        # One search for all chunks, because the result of a search waits for the GPU.
        starts = torch.arange(0, len(queries), chunk_size, device=queries.device)
        ends = (starts + chunk_size - 1).clamp(max=len(queries) - 1)
        lowest, highest = query_ids[queries[starts]] - width, query_ids[queries[ends]] + width + 1
        firsts, lasts = torch.searchsorted(sorted_key_ids, torch.stack([lowest, highest])).tolist()
        shares = [
            omitted(width_index, chunk, read(chunk, keys[max(0, first - margin) : last + margin]))
            for chunk, first, last in zip(torch.split(queries, chunk_size), firsts, lasts, strict=True)
        ]
        share = torch.cat(shares)
        # NaN, from a query without any near key, is not small.
        is_enough = share <= MAX_OMITTED
        largest = max(largest, float(share.masked_fill(~is_enough, 0.0).max()))
        queries = queries[~is_enough]
    return largest, queries


@dataclass(slots=True)
class NearAttention:
    """Replacement of dense attention in a layer whose input depends on few tokens, for ``AttentionHooks``.

    ``omitted`` is the largest bound of the attention weight that a query has left out, and ``num_dense`` the number of
    queries that have read all keys on a level.
    """

    omitted: float = 0.0
    num_dense: int = 0

    def attend(
        self,
        x: Float[Tensor, "batch key d_model"],
        unrotated_query: Float[Tensor, "batch heads query d_head"],
        unrotated_key: Float[Tensor, "batch heads key d_head"],
        query: Float[Tensor, "batch heads query d_head"],
        key: Float[Tensor, "batch heads key d_head"],
        value: Float[Tensor, "batch heads key d_head"],
        scales: Float[Tensor, "heads #query 1"],
        encoding: MultiLevelEncoding,
        key_ids: Real[Tensor, "level batch key"],
    ) -> Float[Tensor, "batch heads query d_head"]:
        """Return the output of attention for the last tokens of the input ``x`` of a layer.

        ``scales`` multiplies the scores of each query.
        """
        outputs, scales = torch.empty_like(query), scales.expand(*query.shape[1:3], 1)[..., 0]
        scaled_query = query * scales[..., None]
        for index, output in enumerate(outputs):
            for level in range(len(key_ids)):
                inputs = _LevelInputs(
                    x=x[index],
                    unrotated_query=unrotated_query[index],
                    unrotated_key=unrotated_key[index],
                    query=scaled_query[index],
                    key=key[index],
                    value=value[index],
                    scales=scales,
                    encoding=encoding,
                    key_ids=key_ids[:, index],
                    level=level,
                    heads=encoding.heads_of_level(level),
                )
                omitted, num_dense = inputs.attend(output)
                self.omitted, self.num_dense = max(self.omitted, omitted), self.num_dense + num_dense
        return outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class _LevelInputs:
    """Input of a layer for one sequence, and the heads that read the IDs of one level."""

    x: Float[Tensor, "key d_model"]
    unrotated_query: Float[Tensor, "heads query d_head"]
    unrotated_key: Float[Tensor, "heads key d_head"]
    query: Float[Tensor, "heads query d_head"]
    key: Float[Tensor, "heads key d_head"]
    value: Float[Tensor, "heads key d_head"]
    scales: Float[Tensor, "heads query"]
    encoding: MultiLevelEncoding
    key_ids: Real[Tensor, "level key"]
    level: int
    heads: slice

    def attend(self, output: Float[Tensor, "heads query d_head"]) -> tuple[float, int]:
        """Write the output of the heads; return the largest omitted weight, and the number of dense queries."""
        heads, num_queries = self.heads, self.query.shape[1]
        query, key, value = self.query[heads] / math.sqrt(self.query.shape[-1]), self.key[heads], self.value[heads]
        indices = torch.arange(len(self.x), device=self.x.device)
        first_query = len(indices) - num_queries
        query_ids = self.key_ids[:, None, first_query:]

        def read(queries: Tensor, keys: Tensor) -> Tensor:
            return read_from(queries, keys, key[:, keys], value[:, keys])

        def read_from(queries: Tensor, keys: Tensor, near_key: Tensor, near_value: Tensor) -> Tensor:
            scores = query[:, queries] @ near_key.mT
            if self.encoding.has_bias:
                scores = scores + self.encoding.bias(query_ids[..., queries], self.key_ids[:, None, keys])[0, heads]
            scores = scores.masked_fill(keys > first_query + queries[:, None], -math.inf)
            log_weights = scores.logsumexp(dim=-1)
            output[heads, queries] = (scores - log_weights[..., None]).exp() @ near_value
            return log_weights

        omitted_weight, unfinished, omitted = 0.0, indices[:num_queries], self._omitted()
        if omitted is not None:
            omitted_weight, unfinished = read_near_keys(
                query_ids[self.level, 0], self.key_ids[self.level], read, omitted
            )
        if len(unfinished) > MAX_SINGLE_SHARE * num_queries:
            self._attend_densely(unfinished, output)
        else:
            scores_per_chunk = SCORES_PER_CHUNK if self.x.device.type == "cpu" else GPU_SCORES_PER_CHUNK
            for chunk in torch.split(unfinished, max(1, scores_per_chunk // key[..., 0].numel())):
                read_from(chunk, indices, key, value)
        return omitted_weight, len(unfinished)

    def _attend_densely(self, queries: Int[Tensor, " query"], output: Tensor) -> None:
        """Let many queries read all keys, with dense attention of all queries."""
        query, key, value = (tensor[None, self.heads] for tensor in (self.query, self.key, self.value))
        query_ids = self.key_ids[:, None, key.shape[2] - query.shape[2] :]

        def bias(start: int, stop: int, num_keys: int) -> Tensor:
            return self.encoding.bias(query_ids[:, :, start:stop], self.key_ids[:, None, :num_keys])[:, self.heads]

        attended = attend(query, key, value, bias if self.encoding.has_bias else None)[0]
        output[self.heads, queries] = attended[:, queries]

    def _omitted(self) -> Callable[[int, Tensor, Tensor], Tensor] | None:
        """Return the bound of the omitted weight for ``read_near_keys``, or None if it would take too long."""
        query_contents, first_queries = index_distinct_rows(self.x[len(self.x) - self.query.shape[1] :])
        _, first_keys = index_distinct_rows(self.x)
        reach = int(self.key_ids[self.level].max() - self.key_ids[self.level].min())
        if not can_bound_far_keys(len(first_queries) * len(self.query), len(first_keys), reach):
            return None
        scales = self.scales[self.heads]
        far = self._bound(self.unrotated_query[:, first_queries], self.unrotated_key[:, first_keys], reach)
        return lambda width_index, queries, log_weights: far.bound_omitted_weight(
            width_index, query_contents[queries], scales[:, queries], log_weights
        )

    def _bound(
        self,
        queries: Float[Tensor, "heads content d_head"],
        keys: Float[Tensor, "heads key_content d_head"],
        reach: int,
    ) -> FarKeyBounds:
        """Compare all different queries and keys at all ID distances up to ``reach``."""
        heads, (num_heads, num_contents, d_head), device = self.heads, queries.shape, self.x.device
        num_levels = len(self.key_ids)
        key_ids = torch.full((num_levels, 1, keys.shape[1]), reach, device=device)
        rotated_keys = self.encoding.rotate(keys[None], key_ids)[0] / math.sqrt(d_head)
        scores, biases = [queries.new_zeros(num_heads, num_contents, 0)[heads]], []
        for distances in far_distances(reach, SCORES_PER_CHUNK // (num_heads * num_contents * keys.shape[1])):
            query_ids = (reach + distances.to(device)).expand(num_levels, num_contents, -1)
            moved = queries.transpose(0, 1)[:, :, None].expand(-1, -1, len(distances), -1)
            rotated = self.encoding.rotate(moved, query_ids)
            scores.append(torch.einsum("chsd,hkd->hcks", rotated[:, heads], rotated_keys[heads]).amax(dim=2))
            if self.encoding.has_bias:
                biases.append(self.encoding.bias(query_ids[:, :1], key_ids[:, :, :1])[0, heads, :, 0])
        bias = torch.cat(biases, dim=1) if biases else None
        max_keys_per_id = max_key_count_per_id(self.key_ids[self.level])
        return bound_far_keys(torch.cat(scores, dim=2), bias, self.scales[heads], max_keys_per_id)
