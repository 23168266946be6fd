"""Absolute head, a classifier over absolute ID values."""

import torch
from torch import nn

from lengthwise.model.position_heads.head import IDs, NextIDDistribution, PositionHead, PromptKeys, Vectors


class AbsoluteIDHead(PositionHead):
    """Baseline: classifier over all IDs, for encodings of absolute IDs. It cannot predict IDs unseen in training."""

    def __init__(self, d_model: int, num_position_ids: int) -> None:
        super().__init__()
        self.from_hidden = nn.Linear(d_model, num_position_ids)
        self.from_next = nn.Linear(d_model, num_position_ids, bias=False)

    def forward(
        self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys
    ) -> NextIDDistribution:
        """Return a distribution over all IDs below ``num_position_ids``."""
        scores = (self.from_hidden(hidden) + self.from_next(next_embeddings)).float()
        candidates = torch.arange(scores.shape[-1], device=scores.device)[None, None]
        return NextIDDistribution(log_probs=scores.log_softmax(dim=-1), candidates=candidates)

    def num_scores(self, prompt: PromptKeys) -> int:
        """Return the number of IDs of all queries at one index."""
        return len(prompt.position_ids) * self.from_hidden.out_features
