"""Attention to keys with near IDs, in place of dense attention, for a decoder with one layer.

Coupling makes the tokens that a prediction needs near in ID. So the time is linear in the number of tokens instead of
quadratic, and the result is that of dense attention up to rounding (``near_keys``).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from lengthwise.encodings.levels import LevelEncoding
from lengthwise.model.attention import attend
from lengthwise.model.near_keys import (
    FarKeys,
    NearReading,
    bound_far_keys,
    can_bound,
    far_distances,
    max_per_id,
    number_rows,
    read_near_keys,
)

# Up to this share of all queries reads all keys in small groups; more queries use dense attention.
MAX_SINGLE_SHARE = 0.1
# Maximum number of scores per product of queries at different distances with all different keys, and of single queries
# with all keys. On a GPU, it is large enough to use many cores.
SCORES_PER_CHUNK = 1 << 24
GPU_SCORES_PER_CHUNK = 1 << 26


@dataclass(slots=True)
class NearAttention:
    """Replacement of dense attention in a layer whose input depends on few tokens, for ``AttentionHooks``.

    ``omitted`` is the largest bound of the attention weight that a query has left out, and ``num_dense`` the number of
    queries that have read all keys on a level.
    """

    omitted: float = 0.0
    num_dense: int = 0

    def attend(
        self, inputs: "LayerInputs", encoding: LevelEncoding, key_ids: Real[Tensor, "level batch key"]
    ) -> Float[Tensor, "batch heads query d_head"]:
        """Return the output of attention."""
        outputs = []
        for index in range(len(inputs.query)):
            sequence = _Sequence(inputs.select(index), encoding, key_ids[:, index : index + 1])
            output = torch.empty_like(inputs.query[index])
            for level in range(len(key_ids)):
                omitted, num_dense = sequence.attend(level, output)
                self.omitted, self.num_dense = max(self.omitted, omitted), self.num_dense + num_dense
            outputs.append(output)
        return torch.stack(outputs)


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """Input ``x`` of a layer, its queries and keys before and after rotation, and its values.

    The queries belong to the last tokens. ``scales`` multiplies the scores of each query. ``select`` drops the batch
    axis.
    """

    x: Float[Tensor, "*batch key d_model"]
    unrotated_query: Float[Tensor, "*batch heads query d_head"]
    unrotated_key: Float[Tensor, "*batch heads key d_head"]
    query: Float[Tensor, "*batch heads query d_head"]
    key: Float[Tensor, "*batch heads key d_head"]
    value: Float[Tensor, "*batch heads key d_head"]
    scales: Float[Tensor, "heads #query 1"]

    def select(self, index: int) -> "LayerInputs":
        """Return the inputs of one sequence."""
        tensors = {each.name: getattr(self, each.name)[index] for each in fields(self) if each.name != "scales"}
        return LayerInputs(**tensors, scales=self.scales)


class _Sequence:
    """One sequence, whose heads read near keys, one ID level after another."""

    def __init__(self, inputs: LayerInputs, encoding: LevelEncoding, key_ids: Real[Tensor, "level 1 key"]) -> None:
        self.inputs, self.encoding, self.key_ids = inputs, encoding, key_ids
        num_heads, num_queries, _ = inputs.query.shape
        self.first_query = key_ids.shape[2] - num_queries
        self.query_ids = key_ids[:, :, self.first_query :]
        self.scales = inputs.scales[..., 0].expand(num_heads, num_queries)
        self.query = inputs.query * self.scales[..., None]
        self.indices = torch.arange(key_ids.shape[2], device=key_ids.device)

    def attend(self, level: int, output: Float[Tensor, "heads query d_head"]) -> tuple[float, int]:
        """Write the output of the heads that read the IDs of a level into ``output``.

        Returns the largest omitted weight, and the number of queries that read all keys.
        """
        heads = self.encoding.heads_of(level)
        query, key, value = self.query[heads], self.inputs.key[heads], self.inputs.value[heads]

        def read(queries: Tensor, keys: Tensor) -> Tensor:
            return read_from(queries, keys, key[:, keys], value[:, keys])

        def read_from(queries: Tensor, indices: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            scores = (query[:, queries] / math.sqrt(query.shape[-1])) @ keys.mT
            if self.encoding.has_bias:
                scores = scores + self.encoding.bias(self.query_ids[..., queries], self.key_ids[..., indices])[0, heads]
            scores = scores.masked_fill(indices > self.first_query + queries[:, None], -math.inf)
            log_weights = scores.logsumexp(dim=-1)
            output[heads, queries] = (scores - log_weights[..., None]).exp() @ values
            return log_weights

        omitted, num_queries = self._omitted(level, heads), query.shape[1]
        reading = NearReading(omitted=0.0, unfinished=self.indices[:num_queries])
        if omitted is not None:
            reading = read_near_keys(self.query_ids[level, 0], self.key_ids[level, 0], read, omitted)
        if (num_dense := len(reading.unfinished)) > MAX_SINGLE_SHARE * num_queries:
            self._attend_densely(heads, reading.unfinished, output)
        else:
            for chunk in torch.split(reading.unfinished, max(1, self._scores_per_chunk() // key[..., 0].numel())):
                read_from(chunk, self.indices, key, value)
        return reading.omitted, num_dense

    def _scores_per_chunk(self) -> int:
        return SCORES_PER_CHUNK if self.indices.device.type == "cpu" else GPU_SCORES_PER_CHUNK

    def _attend_densely(self, heads: slice, queries: Int[Tensor, " query"], output: Tensor) -> None:
        """Let many queries read all keys, with dense attention of all queries."""
        query, key, value = (each[None, heads] for each in (self.query, self.inputs.key, self.inputs.value))

        def bias(start: int, stop: int, num_keys: int) -> Tensor:
            ids = self.query_ids[:, :, start:stop], self.key_ids[:, :, :num_keys]
            return self.encoding.bias(*ids)[:, heads]

        attended = attend(query, key, value, bias if self.encoding.has_bias else None)[0]
        output[heads, queries] = attended[:, queries]

    def _omitted(self, level: int, heads: slice) -> Callable[[int, Tensor, Tensor], Tensor] | None:
        """Return the bound of the omitted weight for ``read_near_keys``."""
        query_contents, first_queries = number_rows(self.inputs.x[self.first_query :])
        _, first_keys = number_rows(self.inputs.x)
        num_queries, reach = len(first_queries) * len(self.inputs.query), self._reach(level)
        if not can_bound(num_queries, len(first_keys), reach):
            return None
        scales = self.scales[heads]
        far = self._bound(
            level, heads, self.inputs.unrotated_query[:, first_queries], self.inputs.unrotated_key[:, first_keys]
        )
        return lambda width_index, queries, log_weights: far.omitted(
            width_index, query_contents[queries], scales[:, queries], log_weights
        )

    def _reach(self, level: int) -> int:
        """Return the largest distance of two IDs."""
        ids = self.key_ids[level]
        return int(ids.max() - ids.min())

    def _bound(
        self,
        level: int,
        heads: slice,
        queries: Float[Tensor, "heads content d_head"],
        keys: Float[Tensor, "heads key_content d_head"],
    ) -> FarKeys:
        """Compare all different queries and keys at all distances."""
        ids, reach = self.key_ids[level], self._reach(level)
        num_levels, (num_heads, num_contents, d_head) = len(self.key_ids), queries.shape
        key_ids = torch.full((num_levels, 1, keys.shape[1]), reach, device=ids.device)
        rotated_keys = self.encoding.rotate(keys[None], key_ids)[0] / math.sqrt(d_head)
        scores, biases = [queries.new_zeros(num_heads, num_contents, 0)[heads]], []
        for distances in far_distances(reach, SCORES_PER_CHUNK // (num_heads * num_contents * keys.shape[1])):
            query_ids = (reach + distances.to(ids.device)).expand(num_levels, num_contents, -1)
            moved = queries.transpose(0, 1)[:, :, None].expand(-1, -1, len(distances), -1)
            rotated = self.encoding.rotate(moved, query_ids)
            scores.append(torch.einsum("chsd,hkd->hcks", rotated[:, heads], rotated_keys[heads]).amax(dim=2))
            if self.encoding.has_bias:
                biases.append(self.encoding.bias(query_ids[:, :1], key_ids[:, :, :1])[0, heads, :, 0])
        bias = torch.cat(biases, dim=1) if biases else None
        return bound_far_keys(torch.cat(scores, dim=2), bias, self.scales[heads], max_per_id(ids[0]))
