"""Pointer head: the next ID is that of a prompt token, or of its neighbour among the prompt's distinct IDs."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.encodings.rotary import RotaryEncoding
from lengthwise.model.position_heads.head import NextIDs, PositionHead, Prompt, over_distinct_ids, summed_by_id

# A learning rate that suits weights moves three lone scores too slowly without it.
SHIFT_SCALE = 10.0


class Pointer(PositionHead):
    """Softmax over prompt tokens; the mass of equal IDs is summed, then moved by -1, 0 or +1 ranks.

    How it is moved depends on the token just chosen. The score of prompt token j is a rotary term between the own ID
    and j's, plus a content term between the token just chosen and token j and its predecessor. It can express IDs that
    depend on the content.
    """

    def __init__(self, d_model: int, num_position_ids: int, d_pointer: int = 32) -> None:
        super().__init__()
        # A fast start and a small base: the rotary term has to tell neighbouring IDs apart.
        self.rotary = RotaryEncoding(base=100.0, fastest=3.0)
        self.distance = nn.Parameter(torch.full((2, d_pointer), 1 / math.sqrt(d_pointer)))
        self.content = nn.Linear(d_model, d_pointer, bias=False)
        self.predecessor = nn.Linear(d_model, d_pointer, bias=False)
        self.log_distance_gain = nn.Parameter(torch.tensor(math.log(3.0)))
        # From 0 it would turn negative: an ID to leave is that of a token which equals the one just chosen.
        self.content_gain = nn.Parameter(torch.tensor(3.0))
        self.shift = nn.Linear(d_model, 3)
        for parameter in self.shift.parameters():
            nn.init.zeros_(parameter)

    def keys(
        self, embeddings: Float[Tensor, "batch prompt d_model"], position_ids: Int[Tensor, "batch prompt"]
    ) -> Float[Tensor, "batch prompt d_key"]:
        """A part for the ID and a part for the token with its predecessor."""
        before = nn.functional.pad(embeddings, (0, 0, 1, 0))[:, :-1]
        content = nn.functional.normalize(self.content(embeddings) + self.predecessor(before), dim=-1)
        return torch.cat([self._turned(1, position_ids), content], dim=-1)

    def forward(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        own_ids: Int[Tensor, "batch query"],
        next_embeddings: Float[Tensor, "batch query d_model"],
        prompt: Prompt,
    ) -> NextIDs:
        """Over the prompt's distinct IDs."""
        query = torch.cat(
            [
                self.log_distance_gain.exp() * self._turned(0, own_ids),
                self.content_gain * nn.functional.normalize(self.content(next_embeddings), dim=-1),
            ],
            dim=-1,
        )
        scores = (prompt.sharpness * query) @ prompt.keys.mT
        if not prompt.even:
            scores = scores.masked_fill(~prompt.inside[:, None], -math.inf)
        mass = scores.softmax(dim=-1)
        return over_distinct_ids(self._shift(summed_by_id(mass, prompt), next_embeddings), prompt)

    def _shift(
        self, by_rank: Float[Tensor, "batch query rank"], next_embeddings: Float[Tensor, "batch query d_model"]
    ) -> Float[Tensor, "batch query rank"]:
        """Mass that would leave the prompt's IDs is lost: no ID there could be named."""
        down, stay, up = (SHIFT_SCALE * self.shift(next_embeddings)).softmax(dim=-1).split(1, dim=-1)
        around = nn.functional.pad(by_rank, (1, 1))
        return stay * by_rank + up * around[..., :-2] + down * around[..., 2:]

    def _turned(self, side: int, position_ids: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_pointer"]:
        vector = self.distance[side].expand(*position_ids.shape, -1)
        return self.rotary.rotate(vector[:, None], position_ids)[:, 0]
