"""Pointer head: the next ID is that of a prompt token, or of its neighbour among the prompt's distinct IDs."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.encodings.rotary import RotaryEncoding
from lengthwise.position_heads.head import NextIDs, PositionHead, Prompt


class Pointer(PositionHead):
    """Softmax over prompt tokens; the mass of equal IDs is summed, then moved by a learned shift of -1, 0 or +1 ranks.

    The score of prompt token j is a rotary term between the own ID and j's, plus a content term between the token
    just chosen and token j and its predecessor. It can express IDs that depend on the content.
    """

    def __init__(self, d_model: int, num_position_ids: int, d_pointer: int = 32) -> None:
        super().__init__()
        # A fast start and a small base: the rotary term has to tell neighbouring IDs apart.
        self.rotary = RotaryEncoding(base=100.0, fastest=3.0)
        self.distance = nn.Parameter(torch.full((2, d_pointer), 1 / math.sqrt(d_pointer)))
        self.content = nn.Linear(d_model, d_pointer, bias=False)
        self.predecessor = nn.Linear(d_model, d_pointer, bias=False)
        self.distance_gain = nn.Parameter(torch.tensor(3.0))
        self.content_gain = nn.Parameter(torch.tensor(0.0))
        self.shift = nn.Parameter(torch.zeros(3))

    def forward(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        own_ids: Int[Tensor, "batch query"],
        next_embeddings: Float[Tensor, "batch query d_model"],
        prompt: Prompt,
    ) -> NextIDs:
        """Over the prompt's distinct IDs."""
        scores = self.distance_gain * self._distance_scores(own_ids, prompt)
        scores = scores + self.content_gain * self._content_scores(next_embeddings, prompt)
        # Without the log factor the softmax dilutes as prompts grow.
        scores = scores * prompt.inside.sum(dim=1).add(1).log()[:, None, None]
        mass = scores.masked_fill(~prompt.inside[:, None], -math.inf).softmax(dim=-1)
        batch, query, _ = mass.shape
        ranks = prompt.distinct_ids.shape[1]
        by_rank = mass.new_zeros(batch, query, ranks)
        by_rank = by_rank.scatter_add(2, prompt.ranks[:, None].expand(mass.shape), mass)
        probabilities = self._shift(by_rank)
        return NextIDs(
            log_probs=probabilities.clamp_min(torch.finfo(mass.dtype).tiny).log(),
            candidates=prompt.distinct_ids[:, None],
        )

    def _shift(self, by_rank: Float[Tensor, "batch query rank"]) -> Float[Tensor, "batch query rank"]:
        """Mass that would leave the prompt's IDs is lost: no ID there could be named."""
        down, stay, up = self.shift.softmax(dim=0)
        moved = stay * by_rank
        moved[..., 1:] = moved[..., 1:] + up * by_rank[..., :-1]
        moved[..., :-1] = moved[..., :-1] + down * by_rank[..., 1:]
        return moved

    def _distance_scores(
        self, own_ids: Int[Tensor, "batch query"], prompt: Prompt
    ) -> Float[Tensor, "batch query prompt"]:
        query, key = (
            self.rotary.rotate(vector.expand(*ids.shape, -1)[:, None], ids)[:, 0]
            for vector, ids in zip(self.distance, (own_ids, prompt.position_ids), strict=True)
        )
        return query @ key.mT

    def _content_scores(
        self, next_embeddings: Float[Tensor, "batch query d_model"], prompt: Prompt
    ) -> Float[Tensor, "batch query prompt"]:
        before = torch.nn.functional.pad(prompt.embeddings, (0, 0, 1, 0))[:, :-1]
        query = nn.functional.normalize(self.content(next_embeddings), dim=-1)
        key = nn.functional.normalize(self.content(prompt.embeddings) + self.predecessor(before), dim=-1)
        return query @ key.mT
