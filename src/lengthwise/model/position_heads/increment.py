"""Increment head, which predicts the current ID plus a small offset."""

import math

from lengthwise.core.devices import constant_tensor
from lengthwise.model.position_heads.head import IDs, NextIDDistribution, OffsetHead, PromptKeys, Vectors


class IncrementHead(OffsetHead):
    """Classifier over offsets from the current ID. The loss ignores target IDs at any other offset."""

    def forward(
        self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys
    ) -> NextIDDistribution:
        """Return a distribution over the IDs ``current_ids + offset`` for all ``OFFSETS``."""
        candidates = current_ids[..., None] + constant_tensor(self.OFFSETS, hidden.device)
        scores = self.scores(hidden, next_embeddings).masked_fill(candidates < 0, -math.inf)
        return NextIDDistribution(log_probs=scores.log_softmax(dim=-1), candidates=candidates)
