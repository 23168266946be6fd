"""State of the sequences that greedy decoding continues."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.model.cache import Cache
from lengthwise.model.position_heads import Prompt
from lengthwise.model.token_step import TokenStep


@dataclass(slots=True, kw_only=True)
class DecodingState:
    """Sequences that decoding continues: their rows in the batch, and the state after their last token.

    Some may have reached the end token since the last call of ``select``.
    """

    rows: Int[Tensor, " sequence"]
    is_finished: Bool[Tensor, " sequence"]
    hidden: Float[Tensor, "sequence 1 d_model"]
    cache: Cache
    prompts: list[Prompt]

    def predict_ids(
        self, step: TokenStep, current_ids: Int[Tensor, "level sequence 1"], tokens: Int[Tensor, "sequence 1"]
    ) -> Int[Tensor, "level sequence 1"]:
        """Return the most likely IDs of the next tokens; the IDs of finished sequences are 0, always a valid ID."""
        levels = step.next_ids(self.hidden, current_ids, tokens, self.prompts)
        ids = torch.stack([level.most_likely_ids() for level in levels])
        return ids.masked_fill_(self.is_finished[:, None], 0)

    def select(self, indices: Int[Tensor, " selected"]) -> None:
        """Remove all sequences except those at ``indices``."""
        self.rows, self.is_finished = self.rows[indices], self.is_finished[indices]
        self.hidden, self.cache = self.hidden[indices], self.cache.select(indices)
        self.prompts = [prompt.select(lambda tensor: tensor[indices]) for prompt in self.prompts]
