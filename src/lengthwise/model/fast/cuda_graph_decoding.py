"""Greedy decoding on a GPU with a step that is recorded once as a CUDA graph."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.cache import DecodingState, KVCache, copy_with_room
from lengthwise.model.decoder import Decoder
from lengthwise.model.fast.cuda_graphs import record_graph
from lengthwise.model.fast.switch import fast_paths_enabled

# Decoding of fewer tokens takes less time than a recording.
MIN_RECORDED_TOKENS = 32
# Number of steps between searches for the end of all sequences; a search waits for the GPU.
SEARCH_INTERVAL = 32


def allows_graph_recording(decoder: Decoder) -> bool:
    """Return True if a bias can hide unused memory from attention: softmax attention whose scores are products."""
    settings = decoder.settings
    return fast_paths_enabled() and settings.weights == "softmax" and not decoder.encoding.has_scores


@dataclass(slots=True, kw_only=True)
class StaticKVCache(KVCache):
    """Cache whose tensors always have room for all tokens; new tokens are written at ``index``, which has one element.

    Unused memory contains zeros.
    """

    index: Int[Tensor, "1"]

    def extend_ids(self, new_ids: Real[Tensor, "level batch 1"]) -> Real[Tensor, "level batch capacity"]:
        """Write the IDs of the new tokens and return all IDs."""
        return self.position_ids.index_copy_(2, self.index, new_ids.to(self.position_ids.dtype))

    def extend_layer(
        self, layer: int, key: Float[Tensor, "batch heads 1 d_key"], value: Float[Tensor, "batch heads 1 d_head"]
    ) -> tuple[Float[Tensor, "batch heads capacity d_key"], Float[Tensor, "batch heads capacity d_head"]]:
        """Write the keys and values of the new tokens in one layer, and return all of them."""
        keys, values = self.keys[layer], self.values[layer]
        return keys.index_copy_(2, self.index, key.to(keys.dtype)), values.index_copy_(
            2, self.index, value.to(values.dtype)
        )

    def hooks_that_hide_unused_memory(self) -> AttentionHooks:
        """Return hooks that hide unused memory from a query at ``index``."""
        places = torch.arange(self.position_ids.shape[2], device=self.index.device)
        bias = torch.zeros(places.shape, device=places.device).masked_fill(places > self.index, -torch.inf)
        visible_counts = (self.index + 1).float().expand(self.position_ids.shape[1], 1)
        return AttentionHooks(score_bias=bias[None, None], visible_counts=visible_counts)


class CUDAGraphDecoding:
    """Decoding of a batch of prompts in steps whose tensors keep their shapes and places in memory."""

    def __init__(
        self,
        decoder: Decoder,
        state: DecodingState,
        known_ids: Real[Tensor, "level batch new"] | None,
        new_tokens: Int[Tensor, "batch new"],
        new_ids: Real[Tensor, "level batch new"],
        end: int,
    ) -> None:
        """Start after the prompts, and write into ``new_tokens`` and ``new_ids``.

        Without ``known_ids``, the position heads predict the IDs of the new tokens.
        """
        self.decoder, self.end = decoder, end
        self.known_ids, self.new_tokens, self.new_ids = known_ids, new_tokens, new_ids
        prompt_length, num_new = state.cache.position_ids.shape[2], new_tokens.shape[1]
        cache = StaticKVCache(
            position_ids=copy_with_room(state.cache.position_ids, num_new),
            last_embedding=state.cache.last_embedding.clone(),
            num_separators=state.cache.num_separators.clone(),
            keys=[copy_with_room(keys, num_new) for keys in state.cache.keys],
            values=[copy_with_room(values, num_new) for values in state.cache.values],
            index=torch.full((1,), prompt_length, device=new_tokens.device),
        )
        self.state, self.cache = replace(state, hidden=state.hidden.clone(), cache=cache), cache
        self.current_ids = state.cache.position_ids[:, :, -1:].clone()
        self.new_index = torch.zeros_like(cache.index)

    def step(self) -> None:
        """Write the next token of every sequence, and update the state in place."""
        state, cache = self.state, self.cache
        tokens = self.decoder.token_logits(state.hidden).argmax(dim=-1)
        if self.known_ids is None:
            ids = state.predict_position_ids(self.decoder.next_id_distributions, self.current_ids, tokens)
        else:
            ids = self.known_ids.index_select(2, self.new_index)
        self.new_tokens.index_copy_(1, self.new_index, tokens)
        self.new_ids.index_copy_(2, self.new_index, ids.to(self.new_ids.dtype))
        state.is_finished |= tokens[:, 0] == self.end
        hidden, new_cache = self.decoder(tokens, ids, cache, hooks=cache.hooks_that_hide_unused_memory())
        state.hidden.copy_(hidden)
        self.current_ids.copy_(ids)
        cache.last_embedding.copy_(new_cache.last_embedding)
        cache.num_separators.copy_(new_cache.num_separators)
        cache.index += 1
        self.new_index += 1

    def run(self) -> None:
        """Decode until all sequences have an end token or the maximum number of new tokens; needs a GPU."""
        # The first step initializes libraries, which a recording must not contain.
        self.step()
        next_step = self._record()
        for step in range(1, self.new_tokens.shape[1]):
            next_step()
            if step % SEARCH_INTERVAL == 0 and bool(self.state.is_finished.all()):
                break

    def _record(self) -> Callable[[], None]:
        """Record a step and return its replay, or warn and return the step if PyTorch cannot record it."""
        try:
            return record_graph(self.step)[0].replay
        except RuntimeError as error:
            warnings.warn(f"decoding is slower, because its steps cannot be recorded: {error}", stacklevel=2)
            return self.step
