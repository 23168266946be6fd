"""Rank head: the current ID's rank among the prompt's distinct IDs, plus a small offset."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.model.position_heads.head import NextIDs, Prompt
from lengthwise.model.position_heads.offset import OffsetHead


class Rank(OffsetHead):
    """Classifier over rank offsets; it is fast but cannot point to a token by content."""

    def forward(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        current_ids: Int[Tensor, "batch query"],
        next_embeddings: Float[Tensor, "batch query d_model"],
        prompt: Prompt,
    ) -> NextIDs:
        """Return a distribution over the prompt IDs at the current rank plus each of ``OFFSETS``."""
        offsets = torch.tensor(self.OFFSETS, device=hidden.device)
        ranks = torch.searchsorted(prompt.distinct_ids, current_ids.contiguous())[..., None] + offsets
        last = (prompt.distinct_ids != Prompt.FILL).sum(dim=1)[:, None, None] - 1
        exists = (ranks >= 0) & (ranks <= last)
        candidates = prompt.distinct_ids.gather(1, ranks.clamp(min=0).minimum(last).flatten(1)).view(ranks.shape)
        scores = self.scores(hidden, next_embeddings).masked_fill(~exists, -math.inf)
        return NextIDs(log_probs=scores.log_softmax(dim=-1), candidates=candidates.masked_fill(~exists, -1))
