"""Rank head, which adds a small offset to the rank of the current ID among the prompt's distinct IDs."""

import math

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.core.devices import constant_tensor
from lengthwise.model.position_heads.head import IDs, NextIDDistribution, OffsetHead, PromptKeys, Vectors


class RankHead(OffsetHead):
    """Classifier over rank offsets. It is fast, but its predictions cannot depend on the content of prompt tokens."""

    def forward(
        self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys
    ) -> NextIDDistribution:
        """Return a distribution over the prompt's IDs at rank ``current rank + offset`` for all ``OFFSETS``."""
        rank_offsets = constant_tensor(self.OFFSETS, hidden.device)
        ranks = _count_smaller(prompt.distinct_ids, current_ids)[..., None] + rank_offsets
        max_rank = (prompt.distinct_ids != PromptKeys.PADDING_ID).sum(dim=1)[:, None, None] - 1
        is_in_range = (ranks >= 0) & (ranks <= max_rank)
        candidates = prompt.distinct_ids.gather(1, ranks.clamp(min=0).minimum(max_rank).flatten(1)).view(ranks.shape)
        scores = self.scores(hidden, next_embeddings).masked_fill(~is_in_range, -math.inf)
        return NextIDDistribution(
            log_probs=scores.log_softmax(dim=-1), candidates=candidates.masked_fill(~is_in_range, -1)
        )


def _count_smaller(sorted_ids: Int[Tensor, "batch rank"], ids: IDs) -> Int[Tensor, "batch token"]:
    """Return the number of sorted IDs that are smaller than each ID."""
    if torch.compiler.is_exporting():
        # ONNX has no searchsorted.
        return (sorted_ids[:, None] < ids[..., None]).sum(dim=-1)
    return torch.searchsorted(sorted_ids, ids.contiguous())
