"""Increment head: the own ID plus a small offset."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.model.position_heads.head import NextIDs, Prompt
from lengthwise.model.position_heads.offset import OffsetHead


class Increment(OffsetHead):
    """Reads no prompt; a target behind a training gap is out of its reach and is not trained on."""

    def forward(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        own_ids: Int[Tensor, "batch query"],
        next_embeddings: Float[Tensor, "batch query d_model"],
        prompt: Prompt,
    ) -> NextIDs:
        """Over the IDs next to the own one."""
        candidates = own_ids[..., None] + torch.tensor(self.OFFSETS, device=hidden.device)
        scores = self.scores(hidden, next_embeddings).masked_fill(candidates < 0, -math.inf)
        return NextIDs(log_probs=scores.log_softmax(dim=-1), candidates=candidates)
