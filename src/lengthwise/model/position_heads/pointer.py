"""Pointer heads, which predict the ID of a prompt token, or a distinct ID a few ranks below or above it."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.encodings.rotary import RotaryEncoding
from lengthwise.model.position_heads.head import (
    IDs,
    NextIDs,
    PositionHead,
    Prompt,
    Vectors,
    distinct_id_distribution,
    sum_by_id,
)

# Factor of the shift scores. Without it, they change too slowly at learning rates that suit weight matrices.
SHIFT_SCALE = 10.0
# Initial score of the gate of the content term. With an open gate, a head can learn a coincidence of short examples,
# such as "after 0, the next bracket opens", where a step of one prompt token would be right at every length.
GATE_SCORE = -2.0


class Pointer(PositionHead):
    """Softmax over prompt tokens; the head sums the probabilities of equal IDs and shifts them by -1, 0 or +1 ranks.

    The score of prompt token j is a rotary term between the current ID and the ID of j, plus a content term between
    the next token and token j with its predecessor. The shift depends on the content of the next token.
    """

    max_shift: ClassVar[int] = 1

    def __init__(self, d_model: int, num_position_ids: int, d_pointer: int = 32) -> None:
        super().__init__()
        # Large frequencies and a small base help the rotary term to separate adjacent IDs.
        self.rotary = RotaryEncoding(base=100.0, fastest=3.0)
        self.distance = nn.Parameter(torch.full((2, d_pointer), 1 / math.sqrt(d_pointer)))
        self.content = nn.Linear(d_model, d_pointer, bias=False)
        self.predecessor = nn.Linear(d_model, d_pointer, bias=False)
        self.log_distance_gain = nn.Parameter(torch.tensor(math.log(3.0)))
        # A gain of 0 would become negative in training: the next ID is often not the ID of an equal prompt token.
        self.content_gain = nn.Parameter(torch.tensor(3.0))
        self.shift = nn.Linear(d_model, 2 * self.max_shift + 1)
        for parameter in self.shift.parameters():
            nn.init.zeros_(parameter)

    def keys(self, embeddings: Vectors, position_ids: IDs) -> Float[Tensor, "batch token d_key"]:
        """Return keys with a rotary part for the ID, then a content part for the token and its predecessor."""
        previous_embeddings = nn.functional.pad(embeddings, (0, 0, 1, 0))[:, :-1]
        content = nn.functional.normalize(self.content(embeddings) + self.predecessor(previous_embeddings), dim=-1)
        return torch.cat([self._rotate(self.distance[1], position_ids), content], dim=-1)

    def forward(self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: Prompt) -> NextIDs:
        """Return a distribution over the prompt's distinct IDs."""
        distance = self.log_distance_gain.exp() * self._rotate(self.distance[0], current_ids)
        content = nn.functional.normalize(self.content(next_embeddings), dim=-1)
        content = self._content_gain(next_embeddings) * content
        query = torch.cat([distance, content], dim=-1)
        scores = (prompt.sharpness * query) @ prompt.keys.mT
        if prompt.has_padding:
            scores = scores.masked_fill(~prompt.is_prompt[:, None], -math.inf)
        token_probabilities = scores.softmax(dim=-1)
        shifted = self._shift(sum_by_id(token_probabilities, prompt), next_embeddings, prompt)
        return distinct_id_distribution(shifted, prompt)

    def _content_gain(self, next_embeddings: Vectors) -> Float[Tensor, "*gain"]:
        """Return a gain per next token, or one for all of them."""
        return self.content_gain

    def _shift(
        self, probabilities: Float[Tensor, "batch token rank"], next_embeddings: Vectors, prompt: Prompt
    ) -> Float[Tensor, "batch token rank"]:
        """Shift the probabilities by ranks; a shift past the first or last rank loses the probability."""
        widest = self.max_shift
        shares = (SHIFT_SCALE * self.shift(next_embeddings)).softmax(dim=-1).split(1, dim=-1)
        padded = nn.functional.pad(probabilities, (widest, widest))
        num_ranks = probabilities.shape[-1]
        shifted = shares[widest] * probabilities
        for shift in range(1, widest + 1):
            shifted = shifted + shares[widest + shift] * padded[..., widest - shift : widest - shift + num_ranks]
            shifted = shifted + shares[widest - shift] * padded[..., widest + shift : widest + shift + num_ranks]
        return shifted

    def _rotate(self, vector: Float[Tensor, " d_pointer"], position_ids: IDs) -> Float[Tensor, "batch token d_pointer"]:
        vectors = vector.expand(*position_ids.shape, -1)
        return self.rotary.rotate(vectors[:, None], position_ids)[:, 0]


class WidePointer(Pointer):
    """Pointer head with shifts of up to three ranks, for pointers that skip prompt tokens or stand beside a match.

    The next token also opens or closes a gate of the content term, which is almost closed before training. So a pointer
    that moves by distance does not learn to search for content. A shift past the first or last ID ends there, so a
    pointer that moves on at every step stays at the end of the prompt.
    """

    max_shift: ClassVar[int] = 3

    def __init__(self, d_model: int, num_position_ids: int, d_pointer: int = 32) -> None:
        super().__init__(d_model, num_position_ids, d_pointer)
        # With equal shares, many IDs would have exactly the same probability before training.
        with torch.no_grad():
            self.shift.bias.copy_(-0.1 * torch.arange(-self.max_shift, self.max_shift + 1).abs())
        self.gate = nn.Linear(d_model, 1)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, GATE_SCORE / SHIFT_SCALE)

    def _content_gain(self, next_embeddings: Vectors) -> Float[Tensor, "*gain"]:
        return self.content_gain * (SHIFT_SCALE * self.gate(next_embeddings)).sigmoid()

    def _shift(
        self, probabilities: Float[Tensor, "batch token rank"], next_embeddings: Vectors, prompt: Prompt
    ) -> Float[Tensor, "batch token rank"]:
        """Shift the probabilities by ranks; a shift past the first or last rank ends there."""
        is_rank = prompt.distinct_ids != Prompt.PADDING_ID
        shifted = super()._shift(probabilities, next_embeddings, prompt) * is_rank[:, None]
        shares = (SHIFT_SCALE * self.shift(next_embeddings)).softmax(dim=-1)
        widest = self.max_shift
        below = sum(
            (shares[..., widest - shift] * probabilities[..., :shift].sum(dim=-1) for shift in range(1, widest + 1)),
            start=torch.zeros_like(shares[..., 0]),
        )
        above = (1 - shifted.sum(dim=-1) - below).clamp_min(0)
        last = is_rank.sum(dim=-1) - 1
        shifted[..., 0] += below
        index = last[:, None, None].expand(*shifted.shape[:2], 1)
        return shifted.scatter_add(2, index, above[..., None])
