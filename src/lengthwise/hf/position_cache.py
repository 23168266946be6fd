"""Cache of a model that predicts position IDs: keys, values, position IDs, prompt mask and hidden states."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from transformers import Cache

from lengthwise.core.errors import SettingError
from lengthwise.model.position_heads import PromptKeys


@dataclass(frozen=True, slots=True)
class CachedTokens:
    """Tokens of one or more calls with their position IDs; ``hidden`` may lack the hidden states of the first tokens.

    ``extends_prompt`` is False only if the call adds no prompt tokens to a cache that contains tokens.
    """

    tokens: Int[Tensor, "batch new"]
    position_ids: Shaped[Tensor, "batch new *level"]
    is_prompt: Bool[Tensor, "batch new"]
    hidden: Float[Tensor, "batch kept d_model"]
    extends_prompt: bool = True

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "CachedTokens":
        """Apply a function to each tensor."""
        tensors = (self.tokens, self.position_ids, self.is_prompt, self.hidden)
        tokens, position_ids, is_prompt, hidden = map(function, tensors)
        return CachedTokens(tokens, position_ids, is_prompt, hidden)


class PositionCache(Cache):
    """Cache that shares the layers of another cache and adds the IDs, prompt mask and hidden states of its tokens.

    Every change of rows or length applies to keys and IDs, so a reordered beam keeps its IDs. ``steps`` contains the
    IDs of every call, with the rows in the order of that call.
    """

    def __init__(self, cache: Cache) -> None:
        super().__init__(layers=cache.layers)
        # Settings for layers that are created on first use, and for offloading.
        self.layer_class_to_replicate = cache.layer_class_to_replicate
        self.offloading = cache.offloading
        if cache.offloading:
            self.only_non_sliding, self.prefetch_stream = cache.only_non_sliding, cache.prefetch_stream
        self.prompts: list[PromptKeys] | None = None
        self.steps: list[Shaped[Tensor, "batch new *level"]] = []
        # A separate attribute, so that compiled calls do not depend on the number of tokens.
        self.has_tokens = False
        self._pieces: list[CachedTokens] = []
        self._num_tokens = 0
        self._latest: CachedTokens | None = None

    @classmethod
    def wrap(cls, cache: Cache) -> "PositionCache":
        """Return the `PositionCache` of a cache. Raises ``SettingError`` for cached tokens without position IDs."""
        if isinstance(cache, cls):
            return cache
        wrapper = getattr(cache, "_with_positions", None)
        if wrapper is None:
            if cache.get_seq_length() > 0:
                raise SettingError(
                    "the cache contains tokens without position IDs; pass the past_key_values that this model "
                    "returned, or an empty cache"
                )
            wrapper = cache._with_positions = cls(cache)  # type: ignore[attr-defined]
        return wrapper

    def append(self, tokens: CachedTokens) -> None:
        """Store the tokens of a call, with operations that a compiled call supports."""
        self._store_latest()
        self._latest, self.has_tokens = tokens, True

    def all_tokens(self) -> CachedTokens | None:
        """Return all cached tokens, or None if the cache is empty.

        Hidden states of tokens before the last call without all its hidden states are dropped.
        """
        self._store_latest()
        # Concatenation copies all tokens, so decoding steps avoid it.
        if len(self._pieces) > 1:
            pieces = self._pieces
            incomplete = [index for index, piece in enumerate(pieces) if piece.hidden.shape[1] < piece.tokens.shape[1]]
            joined = CachedTokens(
                tokens=torch.cat([piece.tokens for piece in pieces], dim=1),
                position_ids=torch.cat([piece.position_ids for piece in pieces], dim=1),
                is_prompt=torch.cat([piece.is_prompt for piece in pieces], dim=1),
                hidden=torch.cat([piece.hidden for piece in pieces[incomplete[-1] if incomplete else 0 :]], dim=1),
            )
            self._pieces = [joined]
        return self._pieces[0] if self._pieces else None

    @property
    def num_tokens(self) -> int:
        """Number of cached tokens, left padding included."""
        self._store_latest()
        return self._num_tokens

    def last_ids(self) -> Shaped[Tensor, "batch 1 *level"]:
        """Return the IDs of the last token."""
        self._store_latest()
        return self._pieces[-1].position_ids[:, -1:]

    def last_hidden(self) -> Float[Tensor, "batch 1 d_model"]:
        """Return the hidden state of the last token, from which a head predicts the next ID."""
        self._store_latest()
        if not self._pieces or self._pieces[-1].hidden.shape[1] == 0:
            raise SettingError(
                "the next ID cannot be predicted: the cache has no hidden state of its last token (it was filled "
                "without this model, or cropped into the prompt); pass position_ids"
            )
        return self._pieces[-1].hidden[:, -1:]

    def reorder_cache(self, beam_idx: Any) -> None:
        """Select the row at ``beam_idx`` for each beam that continues."""
        super().reorder_cache(beam_idx)
        self._select_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row ``repeats`` times, next to each other."""
        super().batch_repeat_interleave(repeats)
        self._select_rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select the rows at ``indices``."""
        super().batch_select_indices(indices)
        self._select_rows(lambda rows: rows[indices.to(rows.device)])

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last ``-tokens_to_remove`` tokens; the argument is negative or 0, as in `transformers`."""
        super().crop(tokens_to_remove)
        cached_tokens = self.all_tokens()
        if cached_tokens is None or tokens_to_remove == 0:
            return
        if bool(cached_tokens.is_prompt[:, tokens_to_remove:].any()):
            self.prompts = None
        self._pieces = [
            cached_tokens.map_tensors(lambda values: values[:, : max(values.shape[1] + tokens_to_remove, 0)])
        ]
        self._num_tokens += tokens_to_remove
        self.steps = [torch.cat(self.steps, dim=1)[:, :tokens_to_remove]] if self.steps else []

    def reset(self) -> None:
        """Remove all tokens from the cache."""
        super().reset()
        self.prompts = self._latest = None
        self.has_tokens = False
        self.steps, self._pieces, self._num_tokens = [], [], 0

    def _select_rows(self, select: Callable[[Tensor], Tensor]) -> None:
        self._store_latest()
        self._pieces = [piece.map_tensors(select) for piece in self._pieces]
        if self.prompts is not None:
            self.prompts = [prompt.map_tensors(select) for prompt in self.prompts]

    def _store_latest(self) -> None:
        call_tokens, self._latest = self._latest, None
        if call_tokens is None:
            return
        self.steps.append(call_tokens.position_ids)
        self._pieces.append(call_tokens)
        self._num_tokens += call_tokens.tokens.shape[1]
        if call_tokens.extends_prompt:
            self.prompts = None
