"""Pointer heads, which predict the ID of a prompt token, or a distinct ID a few ranks below or above it."""

import math
from collections.abc import Callable
from operator import itemgetter
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.encodings.rotary import RotaryEncoding
from lengthwise.model.attention import MAX_CHUNK_SCORES
from lengthwise.model.fast.near_attention import (
    FarKeyBounds,
    bound_far_keys,
    can_bound_far_keys,
    far_distances,
    index_distinct_rows,
    max_key_count_per_id,
    read_near_keys,
)
from lengthwise.model.fast.switch import fast_paths_enabled
from lengthwise.model.position_heads.head import (
    IDs,
    NextIDDistribution,
    PositionHead,
    PromptKeys,
    Vectors,
    distinct_id_distribution,
    sum_probability_by_id,
)

# In longer prompts, queries read the tokens with near IDs, which has the same result.
MAX_DENSE_PROMPT = 1 << 12
# Factor of the shift scores. Without it, they change too slowly at learning rates that suit weight matrices.
SHIFT_SCALE = 10.0
# Initial score of the gate of the content term. With an open gate, a head can learn a coincidence of short examples,
# such as "after 0, the next bracket opens", where a step of one prompt token would be right at every length.
GATE_SCORE = -2.0


class PointerHead(PositionHead):
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

    def forward(
        self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys
    ) -> NextIDDistribution:
        """Return a distribution over the prompt's distinct IDs."""
        probabilities = sum_probability_by_id(
            self._scores(current_ids, next_embeddings, prompt).softmax(dim=-1), prompt
        )
        return distinct_id_distribution(
            self._shift(probabilities, self._shares(hidden, next_embeddings), prompt), prompt
        )

    def _content(self, next_embeddings: Vectors) -> Float[Tensor, "batch token d_pointer"]:
        """Return the content part of the query."""
        content = nn.functional.normalize(self.content(next_embeddings), dim=-1)
        return self._content_gain(next_embeddings) * content

    def most_likely_ids(self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys) -> IDs:
        """Return the most likely ID of each query; in a long prompt, queries read the tokens with near IDs."""
        if prompt.position_ids.shape[1] <= MAX_DENSE_PROMPT or prompt.has_padding or not fast_paths_enabled():
            return super().most_likely_ids(hidden, current_ids, next_embeddings, prompt)
        rows = []
        for row in range(len(hidden)):
            select: Callable[[Tensor], Tensor] = itemgetter(slice(row, row + 1))
            inputs = select(hidden), select(current_ids), select(next_embeddings)
            row_prompt = prompt.map_tensors(select)
            ids, unfinished = self._near_ids(*inputs, row_prompt)
            if len(unfinished):
                few_hidden, few_ids, few_embeddings = (part[:, unfinished] for part in inputs)
                ids[:, unfinished] = super().most_likely_ids(few_hidden, few_ids, few_embeddings, row_prompt)
            rows.append(ids)
        return torch.cat(rows)

    def _near_ids(
        self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys
    ) -> tuple[IDs, Int[Tensor, " query"]]:
        """Return the most likely ID of each query, and the queries that need all tokens of the prompt instead."""
        ids = torch.zeros_like(current_ids)
        contents, first_queries = index_distinct_rows(next_embeddings[0])
        scales = prompt.sharpness[0].expand(1, len(contents))
        if not can_bound_far_keys(len(first_queries), 1, self._reach(current_ids, prompt)):
            return ids, torch.arange(len(contents), device=ids.device)
        far = self._bound_far_tokens(current_ids, next_embeddings[:, first_queries], prompt)

        def read(queries: Tensor, tokens: Tensor) -> Tensor:
            if not len(tokens):
                return torch.full((1, len(queries)), -math.inf, device=queries.device)
            near, inputs = prompt.select_tokens(tokens), (current_ids[:, queries], next_embeddings[:, queries])
            ids[:, queries] = self(hidden[:, queries], *inputs, near).most_likely_ids()
            return self._scores(*inputs, near).logsumexp(dim=-1)

        def omitted(width_index: int, queries: Tensor, log_weights: Tensor) -> Tensor:
            return far.bound_omitted_weight(width_index, contents[queries], scales[:, queries], log_weights)

        # The tokens that a shift can reach must be near, too.
        margin = self.max_shift * max_key_count_per_id(prompt.position_ids[0])
        return ids, read_near_keys(current_ids[0], prompt.position_ids[0], read, omitted, margin=margin)[1]

    @staticmethod
    def _reach(current_ids: IDs, prompt: PromptKeys) -> int:
        """Return the largest distance of two IDs of a single sequence."""
        ids = torch.cat([current_ids[0], prompt.position_ids[0]])
        return int(ids.max() - ids.min())

    def _bound_far_tokens(
        self, current_ids: IDs, next_embeddings: Float[Tensor, "1 content d_model"], prompt: PromptKeys
    ) -> FarKeyBounds:
        """Compare all different next tokens with all different prompt tokens, at all ID distances."""
        reach = self._reach(current_ids, prompt)
        rotated_key = self._rotate(self.distance[1], torch.full_like(current_ids[:, :1], reach))[0, 0]
        by_distance = [rotated_key[:0]]
        for distances in far_distances(reach, MAX_CHUNK_SCORES):
            query_ids = reach + distances.to(current_ids.device)
            by_distance.append(self._distance(query_ids[None])[0] @ rotated_key)
        content_keys = prompt.keys[0, :, self.distance.shape[1] :]
        _, first_tokens = index_distinct_rows(content_keys)
        by_content = (self._content(next_embeddings)[0] @ content_keys[first_tokens].mT).amax(dim=1)
        scores = by_content[:, None] + torch.cat(by_distance)
        return bound_far_keys(scores[None], None, prompt.sharpness[0], max_key_count_per_id(prompt.position_ids[0]))

    def _scores(
        self, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys
    ) -> Float[Tensor, "batch token prompt"]:
        query = torch.cat([self._distance(current_ids), self._content(next_embeddings)], dim=-1)
        scores = (prompt.sharpness * query) @ prompt.keys.mT
        return scores.masked_fill(~prompt.is_prompt[:, None], -math.inf) if prompt.has_padding else scores

    def _distance(self, current_ids: IDs) -> Float[Tensor, "batch token d_pointer"]:
        """Return the distance part of the query."""
        return self.log_distance_gain.exp() * self._rotate(self.distance[0], current_ids)

    def _content_gain(self, next_embeddings: Vectors) -> Float[Tensor, "*gain"]:
        """Return a gain per next token, or one for all of them."""
        return self.content_gain

    def _shares(self, hidden: Vectors, next_embeddings: Vectors) -> Float[Tensor, "batch token shift"]:
        """Return the share of the probability that moves by each number of ranks."""
        return (SHIFT_SCALE * self.shift(next_embeddings)).softmax(dim=-1)

    def _shift(
        self,
        probabilities: Float[Tensor, "batch token rank"],
        all_shares: Float[Tensor, "batch token shift"],
        prompt: PromptKeys,
    ) -> Float[Tensor, "batch token rank"]:
        """Shift the probabilities by ranks; a shift past the first or last rank loses the probability."""
        widest = self.max_shift
        shares = torch.split(all_shares, 1, dim=-1)
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


class WidePointerHead(PointerHead):
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
        self,
        probabilities: Float[Tensor, "batch token rank"],
        all_shares: Float[Tensor, "batch token shift"],
        prompt: PromptKeys,
    ) -> Float[Tensor, "batch token rank"]:
        """Shift the probabilities by ranks; a shift past the first or last rank ends there."""
        is_rank = prompt.distinct_ids != PromptKeys.PADDING_ID
        shifted = super()._shift(probabilities, all_shares, prompt) * is_rank[:, None]
        widest = self.max_shift
        last = is_rank.sum(dim=-1) - 1
        # The probabilities of the last ranks, from the last one backwards; a prompt can have fewer ranks.
        indices = last[:, None] - torch.arange(widest, device=last.device)
        ends = probabilities.gather(2, indices.clamp_min(0)[:, None].expand(*probabilities.shape[:2], -1))
        ends = ends.masked_fill(indices[:, None] < 0, 0.0)
        below = above = torch.zeros_like(all_shares[..., 0])
        for shift in range(1, widest + 1):
            below = below + all_shares[..., widest - shift] * probabilities[..., :shift].sum(dim=-1)
            above = above + all_shares[..., widest + shift] * ends[..., :shift].sum(dim=-1)
        shifted[..., 0] += below
        index = last[:, None, None].expand(*shifted.shape[:2], 1)
        return shifted.scatter_add(2, index, above[..., None])


class StatePointerHead(WidePointerHead):
    """Wide pointer head whose shift also depends on the hidden state, for pointers that wait for another pointer."""

    def __init__(self, d_model: int, num_position_ids: int, d_pointer: int = 32) -> None:
        super().__init__(d_model, num_position_ids, d_pointer)
        self.state_shift = nn.Linear(d_model, 2 * self.max_shift + 1, bias=False)
        nn.init.zeros_(self.state_shift.weight)

    def _shares(self, hidden: Vectors, next_embeddings: Vectors) -> Float[Tensor, "batch token shift"]:
        """Return the share of the probability that moves by each number of ranks."""
        return (SHIFT_SCALE * (self.shift(next_embeddings) + self.state_shift(hidden))).softmax(dim=-1)
