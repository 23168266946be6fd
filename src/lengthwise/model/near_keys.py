"""Softmax over the keys whose ID is near that of the query, with a bound of the weight of all other keys.

A query first reads the keys within a small ID distance, then within a larger one, until the weight of all other keys is
lost in rounding. Queries for which it never is are left to the caller.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

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


@dataclass(frozen=True, slots=True, kw_only=True)
class NearReading:
    """Largest bound of the weight that a query has omitted, and the queries that need all keys instead."""

    omitted: float
    unfinished: Int[Tensor, " query"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FarKeys:
    """Upper bound of the weight of all keys farther than each of ``WIDTHS``, by the content and scale of a query.

    ``log_totals`` is the logarithm of the bound of the sum of ``exp(score)``. Rows are heads. ``scales`` increases.
    """

    log_totals: Float[Tensor, "row width scale content"]
    scales: Float[Tensor, "row scale"]

    def omitted(
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


def can_bound(num_queries: int, num_keys: int, max_distance: int) -> bool:
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
) -> FarKeys:
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
    return FarKeys(log_totals=totals, scales=scales)


def number_rows(x: Float[Tensor, "row width"]) -> tuple[Int[Tensor, " row"], Int[Tensor, " number"]]:
    """Number the different rows; return the number of each row, and the index of the first row of each number."""
    bits = x.contiguous().view(torch.int32).long()
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(2**62, (x.shape[1],), generator=generator).to(x.device) | 1
    # Rows with equal sums of products modulo 2^64 are equal, up to a negligible probability.
    _, numbers = torch.unique((bits * factors).sum(dim=1), return_inverse=True)
    indices = torch.arange(len(x), device=x.device)
    first = indices.new_full((int(numbers.max()) + 1,), len(x)).scatter_reduce(0, numbers, indices, "amin")
    return numbers, first


def max_per_id(ids: Int[Tensor, " key"]) -> int:
    """Return the largest number of keys with the same ID."""
    return int(torch.unique(ids, return_counts=True)[1].max())


def read_near_keys(
    query_ids: Int[Tensor, " query"],
    key_ids: Int[Tensor, " key"],
    read: Callable[[Tensor, Tensor], Float[Tensor, "row query"]],
    omitted: Callable[[int, Tensor, Tensor], Float[Tensor, " query"]],
    *,
    margin: int = 0,
) -> NearReading:
    """Let queries read near keys until the weight of the others is small enough.

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
        is_enough = _is_small(share)
        largest = max(largest, float(share.masked_fill(~is_enough, 0.0).max()))
        queries = queries[~is_enough]
    return NearReading(omitted=largest, unfinished=queries)


def _is_small(share: Float[Tensor, " query"]) -> Bool[Tensor, " query"]:
    # NaN, from a query without any near key, is not small.
    return share <= MAX_OMITTED
