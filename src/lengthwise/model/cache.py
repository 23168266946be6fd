"""State of cached decoding: position IDs, keys and values of all previous tokens, and the sequences that continue."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from lengthwise.model.position_heads import NextIDDistribution, PromptKeys

# Function that adds the keys and values of new tokens to those of one layer, and returns those of all tokens.
ExtendLayer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class CacheBuffers:
    """Memory for the IDs, keys and values of a fixed number of tokens, so that a step copies no earlier token."""

    position_ids: Real[Tensor, "level batch capacity"]
    keys: list[Float[Tensor, "batch heads capacity d_key"]]
    values: list[Float[Tensor, "batch heads capacity d_head"]]


@dataclass(slots=True)
class KVCache:
    """State of cached decoding, with the IDs of all previous tokens, and their keys and values in each layer.

    A pass returns a new cache and leaves this one unchanged. With ``buffers`` (see ``reserve``), both share memory, so
    only one continuation of a cache is valid.
    """

    position_ids: Real[Tensor, "level batch seq"]
    last_embedding: Float[Tensor, "batch 1 d_model"]
    num_separators: Int[Tensor, "batch 1"]
    keys: list[Float[Tensor, "batch heads seq d_key"]] = field(default_factory=list)
    values: list[Float[Tensor, "batch heads seq d_head"]] = field(default_factory=list)
    buffers: CacheBuffers | None = None

    def extend_ids(self, new_ids: Real[Tensor, "level batch new"]) -> Real[Tensor, "level batch seq_new"]:
        """Return the IDs of the cached tokens and the new tokens."""
        return _append(self.position_ids, new_ids, None if self.buffers is None else self.buffers.position_ids)

    def extend_layer(
        self, layer: int, key: Float[Tensor, "batch heads new d_key"], value: Float[Tensor, "batch heads new d_head"]
    ) -> tuple[Float[Tensor, "batch heads seq_new d_key"], Float[Tensor, "batch heads seq_new d_head"]]:
        """Return the keys and values of the cached tokens and the new tokens in one layer."""
        past_key, past_value, buffers = self.keys[layer], self.values[layer], self.buffers
        if buffers is None:
            return _append(past_key, key, None), _append(past_value, value, None)
        return _append(past_key, key, buffers.keys[layer]), _append(past_value, value, buffers.values[layer])

    def reserve(self, num_tokens: int) -> "KVCache":
        """Return a copy with memory for ``num_tokens`` more tokens; a pass with more tokens is invalid."""
        return self._with_buffers(num_tokens, lambda tensor, axis: tensor)

    def keep_sequences(self, rows: Int[Tensor, " selected"]) -> "KVCache":
        """Return a copy with only these sequences, and with memory for as many more tokens as before."""
        spare = 0 if self.buffers is None else self.buffers.position_ids.shape[2] - self.position_ids.shape[2]
        return self._with_buffers(spare, lambda tensor, axis: tensor.index_select(axis, rows))

    def _with_buffers(self, spare: int, select_rows: Callable[[Tensor, int], Tensor]) -> "KVCache":
        """Return a copy in new buffers with room for ``spare`` more tokens; ``select_rows`` receives the batch axis."""
        seq = self.position_ids.shape[2]
        keys, values = (
            [copy_with_room(select_rows(tensor, 0), spare) for tensor in tensors]
            for tensors in (self.keys, self.values)
        )
        ids = copy_with_room(select_rows(self.position_ids, 1), spare)
        return replace(
            self,
            position_ids=ids[:, :, :seq],
            last_embedding=select_rows(self.last_embedding, 0),
            num_separators=select_rows(self.num_separators, 0),
            keys=[key[:, :, :seq] for key in keys],
            values=[value[:, :, :seq] for value in values],
            buffers=CacheBuffers(ids, keys, values),
        )


@dataclass(slots=True, kw_only=True)
class DecodingState:
    """Sequences that decoding continues: their rows in the batch, and the state after their last token.

    Some may have reached the end token since the last call of ``keep_sequences``.
    """

    rows: Int[Tensor, " sequence"]
    is_finished: Bool[Tensor, " sequence"]
    hidden: Float[Tensor, "sequence 1 d_model"]
    cache: KVCache
    prompts: list[PromptKeys]

    def predict_position_ids(
        self,
        next_ids: Callable[..., list[NextIDDistribution]],
        current_ids: Int[Tensor, "level sequence 1"],
        tokens: Int[Tensor, "sequence 1"],
    ) -> Int[Tensor, "level sequence 1"]:
        """Return the most likely IDs of the next tokens; the IDs of finished sequences are 0, always a valid ID.

        ``next_ids`` is that of the decoder.
        """
        levels = next_ids(self.hidden, current_ids, tokens, self.prompts)
        ids = torch.stack([level.most_likely_ids() for level in levels])
        return ids.masked_fill_(self.is_finished[:, None], 0)

    def keep_sequences(self, indices: Int[Tensor, " selected"]) -> None:
        """Remove all sequences except those at ``indices``."""
        self.rows, self.is_finished = self.rows[indices], self.is_finished[indices]
        self.hidden, self.cache = self.hidden[indices], self.cache.keep_sequences(indices)
        self.prompts = [prompt.map_tensors(lambda tensor: tensor[indices]) for prompt in self.prompts]


def _append(past: Tensor, new: Tensor, buffer: Tensor | None) -> Tensor:
    """Return ``past`` followed by ``new`` along axis 2; a buffer already contains ``past``."""
    if buffer is None:
        return torch.cat([past, new], dim=2)
    start, stop = past.shape[2], past.shape[2] + new.shape[2]
    buffer[:, :, start:stop] = new
    return buffer[:, :, :stop]


def copy_with_room(tensor: Tensor, spare: int) -> Tensor:
    """Return a copy with ``spare`` more places along axis 2, which contain zeros."""
    seq = tensor.shape[2]
    buffer = tensor.new_zeros(*tensor.shape[:2], seq + spare, *tensor.shape[3:])
    buffer[:, :, :seq] = tensor
    return buffer
