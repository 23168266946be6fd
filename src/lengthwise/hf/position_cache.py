"""The cache of a model that predicts IDs: beside keys and values, what the position head has to know."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from transformers import Cache

from lengthwise.core.errors import SettingError
from lengthwise.model.position_heads import Prompt


@dataclass(frozen=True, slots=True)
class Read:
    """Tokens that were read in one call; ``hidden`` may be those of the last of them only. Levels of IDs come last.

    Where ``new_prompt`` is False none of them is prompt, but in a first call.
    """

    tokens: Int[Tensor, "batch new"]
    position_ids: Shaped[Tensor, "batch new *level"]
    is_prompt: Bool[Tensor, "batch new"]
    hidden: Float[Tensor, "batch kept d_model"]
    new_prompt: bool = True

    @staticmethod
    def joined(pieces: "list[Read]") -> "Read":
        """All, one behind the other; hidden states only as far back as they are known without a gap."""
        if len(pieces) == 1:
            return pieces[0]
        gaps = [place for place, piece in enumerate(pieces) if piece.hidden.shape[1] < piece.tokens.shape[1]]
        known = pieces[gaps[-1] if gaps else 0 :]
        return Read(
            tokens=torch.cat([piece.tokens for piece in pieces], dim=1),
            position_ids=torch.cat([piece.position_ids for piece in pieces], dim=1),
            is_prompt=torch.cat([piece.is_prompt for piece in pieces], dim=1),
            hidden=torch.cat([piece.hidden for piece in known], dim=1),
        )

    def rows(self, chosen: Callable[[Tensor], Tensor]) -> "Read":
        """The same tokens of other rows."""
        return Read(
            tokens=chosen(self.tokens),
            position_ids=chosen(self.position_ids),
            is_prompt=chosen(self.is_prompt),
            hidden=chosen(self.hidden),
        )

    def without_last(self, number: int) -> "Read":
        """The tokens before the last ``number``."""
        seq, kept = self.tokens.shape[1] - number, max(self.hidden.shape[1] - number, 0)
        return Read(
            tokens=self.tokens[:, :seq],
            position_ids=self.position_ids[:, :seq],
            is_prompt=self.is_prompt[:, :seq],
            hidden=self.hidden[:, :kept],
        )


class PositionCache(Cache):
    """Keys and values of any cache, and the IDs, prompt and hidden states of the same tokens.

    What is done to the rows or the length of the one is done to the other: beams are reordered and rejected drafts
    cropped with their own IDs. ``steps`` holds the IDs of every call in the order of rows of that call.
    """

    def __init__(self, inner: Cache) -> None:
        super().__init__(layers=inner.layers)
        # Layers that are made when they are first written, and offloading, are those of the cache that was given.
        self.layer_class_to_replicate = inner.layer_class_to_replicate
        self.offloading = inner.offloading
        if inner.offloading:
            self.only_non_sliding, self.prefetch_stream = inner.only_non_sliding, inner.prefetch_stream
        self.prompts: list[Prompt] | None = None
        self.steps: list[Shaped[Tensor, "batch new *level"]] = []
        # A number of its own: a compiled call asks for it, and is the same however much was read.
        self.has_read = False
        self._pieces: list[Read] = []
        self._num_read = 0
        self._latest: Read | None = None

    @classmethod
    def of(cls, cache: Cache) -> "PositionCache":
        """The same cache, or one around it, now and later; ``SettingError`` for one that was filled without this."""
        if isinstance(cache, cls):
            return cache
        known = getattr(cache, "_with_positions", None)
        if known is None:
            if cache.get_seq_length() > 0:
                raise SettingError(
                    "the cache was filled elsewhere and knows no position IDs; go on with the past_key_values that "
                    "this model returned, or begin with an empty cache"
                )
            known = cache._with_positions = cls(cache)  # type: ignore[attr-defined]
        return known

    def note(self, latest: Read) -> None:
        """Keep what a call has read. A compiled call does no more than this."""
        self._take_latest()
        self._latest, self.has_read = latest, True

    def settle(self) -> Read | None:
        """All that was read so far, the latest call included."""
        self._take_latest()
        # Not at every step: it copies all that was read.
        if len(self._pieces) > 1:
            self._pieces = [Read.joined(self._pieces)]
        return self._pieces[0] if self._pieces else None

    @property
    def num_read(self) -> int:
        """How many tokens were read, fill before a prompt included."""
        self._take_latest()
        return self._num_read

    def last_ids(self) -> Shaped[Tensor, "batch 1 *level"]:
        """The IDs of the last token."""
        self._take_latest()
        return self._pieces[-1].position_ids[:, -1:]

    def last_hidden(self) -> Float[Tensor, "batch 1 d_model"]:
        """The hidden state of the last token, from which the next ID is predicted."""
        self._take_latest()
        if not self._pieces or self._pieces[-1].hidden.shape[1] == 0:
            raise SettingError(
                "no ID can be predicted: the cache holds no hidden state of its last token (it was filled without this "
                "model, or cropped into the prompt); give position_ids"
            )
        return self._pieces[-1].hidden[:, -1:]

    def reorder_cache(self, beam_idx: Any) -> None:
        """The rows of the beams that go on."""
        super().reorder_cache(beam_idx)
        self._choose_rows(lambda rows: rows.index_select(0, beam_idx.to(rows.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row ``repeats`` times."""
        super().batch_repeat_interleave(repeats)
        self._choose_rows(lambda rows: rows.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """The rows of these indices."""
        super().batch_select_indices(indices)
        self._choose_rows(lambda rows: rows[indices.to(rows.device)])

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last ``-tokens_to_remove`` tokens."""
        super().crop(tokens_to_remove)
        known = self.settle()
        if known is None or tokens_to_remove == 0:
            return
        if bool(known.is_prompt[:, tokens_to_remove:].any()):
            self.prompts = None
        self._pieces = [known.without_last(-tokens_to_remove)]
        self._num_read += tokens_to_remove
        self.steps = [torch.cat(self.steps, dim=1)[:, :tokens_to_remove]] if self.steps else []

    def reset(self) -> None:
        """Empty, as when it was made."""
        super().reset()
        self.prompts = self._latest = None
        self.has_read = False
        self.steps, self._pieces, self._num_read = [], [], 0

    def _choose_rows(self, chosen: Callable[[Tensor], Tensor]) -> None:
        self._take_latest()
        self._pieces = [piece.rows(chosen) for piece in self._pieces]
        if self.prompts is not None:
            self.prompts = [prompt.rows(chosen) for prompt in self.prompts]

    def _take_latest(self) -> None:
        latest, self._latest = self._latest, None
        if latest is None:
            return
        self.steps.append(latest.position_ids)
        self._pieces.append(latest)
        self._num_read += latest.tokens.shape[1]
        if latest.new_prompt:
            self.prompts = None
