"""Interface of position heads (PPC), which predict the next token's position ID from that token and its context."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.model.attention import max_scores_in_memory

# One vector per token and one position ID per token.
Vectors = Float[Tensor, "batch token d_model"]
IDs = Int[Tensor, "batch token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptKeys:
    """Prompts of a batch on one level, as the input of a position head: keys, IDs and sorted distinct IDs.

    ``is_prompt`` is False for padding. ``ranks`` contains the index of each token's ID in ``distinct_ids``, which is
    padded with ``PADDING_ID``. ``sharpness``, log(1 + prompt length), multiplies the scores, so that the softmax over a
    longer prompt is not flatter. ``has_padding`` is False if all prompts have equally many tokens and distinct IDs.
    """

    keys: Float[Tensor, "batch prompt d_key"]
    position_ids: Int[Tensor, "batch prompt"]
    is_prompt: Bool[Tensor, "batch prompt"]
    ranks: Int[Tensor, "batch prompt"]
    distinct_ids: Int[Tensor, "batch rank"]
    sharpness: Float[Tensor, "batch 1 1"]
    has_padding: bool

    PADDING_ID: ClassVar[int] = torch.iinfo(torch.int64).max

    def map_tensors(self, select_rows: Callable[[Tensor], Tensor]) -> "PromptKeys":
        """Return prompts with ``select_rows`` applied to the batch axis of every tensor."""
        tensor_names = (field.name for field in fields(self) if field.name != "has_padding")
        tensors: dict[str, Any] = {name: select_rows(getattr(self, name)) for name in tensor_names}
        return replace(self, **tensors)

    def select_tokens(self, tokens: Int[Tensor, " token"]) -> "PromptKeys":
        """Return some tokens, sorted by ID, of a single prompt without padding; the sharpness stays that of all."""
        ranks = self.ranks[:, tokens]
        first, last = int(ranks[0, 0]), int(ranks[0, -1])
        return replace(
            self,
            keys=self.keys[:, tokens],
            position_ids=self.position_ids[:, tokens],
            is_prompt=self.is_prompt[:, tokens],
            ranks=ranks - first,
            distinct_ids=self.distinct_ids[:, first : last + 1],
        )


def build_prompt_keys(
    head: "PositionHead",
    embeddings: Vectors,
    position_ids: IDs,
    prompt_length: Int[Tensor, " batch"],
    max_prompt_length: int | None = None,
) -> PromptKeys:
    """Return the prompts of a batch as the input of ``head``; each prompt is the first ``prompt_length`` tokens.

    If ``max_prompt_length`` is given, the sizes of all tensors follow from it, with more padding than necessary.
    """
    width = int(prompt_length.max()) if max_prompt_length is None else max_prompt_length
    is_prompt = torch.arange(width, device=position_ids.device) < prompt_length[:, None]
    # The first ID of the prompt replaces the IDs of padding, so padding adds no distinct ID.
    prompt_ids = torch.where(is_prompt, position_ids[:, :width], position_ids[:, :1])
    sorted_ids, sorting_indices = prompt_ids.sort(dim=1)
    sorted_ranks = sorted_ids.diff(dim=1, prepend=sorted_ids[:, :1]).ne(0).cumsum(dim=1)
    num_ranks = int(sorted_ranks.max()) + 1 if max_prompt_length is None else width
    padding_ids = torch.full((len(prompt_ids), num_ranks), PromptKeys.PADDING_ID, device=prompt_ids.device)
    distinct_ids = padding_ids.scatter(1, sorted_ranks, sorted_ids)
    has_padding = max_prompt_length is not None or not bool(
        is_prompt.all() & (distinct_ids[:, -1] != PromptKeys.PADDING_ID).all()
    )
    return PromptKeys(
        keys=head.keys(embeddings[:, :width], prompt_ids),
        position_ids=prompt_ids,
        is_prompt=is_prompt,
        ranks=torch.zeros_like(prompt_ids).scatter(1, sorting_indices, sorted_ranks),
        distinct_ids=distinct_ids,
        sharpness=prompt_length.add(1).log()[:, None, None],
        has_padding=has_padding,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NextIDDistribution:
    """Distribution over candidates for the next token's ID, one per query; a candidate of -1 is padding."""

    log_probs: Float[Tensor, "batch query candidate"]
    candidates: Int[Tensor, "#batch #query candidate"]

    def most_likely_ids(self) -> Int[Tensor, "batch query"]:
        """Return the ID with the largest probability for each query."""
        best_candidate_index = self.log_probs.argmax(dim=-1, keepdim=True)
        return self.candidates.expand(self.log_probs.shape).gather(-1, best_candidate_index)[..., 0]

    def log_probability(self, ids: IDs) -> tuple[Float[Tensor, "batch token"], Bool[Tensor, "batch token"]]:
        """Return the log-probability of each ID (0 if it is no candidate), and a mask of the candidates."""
        is_match = self.candidates == ids[..., None]
        return self.log_probs.masked_fill(~is_match, 0.0).sum(dim=-1), is_match.any(dim=-1)


class PositionHead(nn.Module):
    """Abstract predictor of the next ID from a token's hidden state, the token's ID and the next token's embedding."""

    def keys(self, embeddings: Vectors, position_ids: IDs) -> Float[Tensor, "batch token d_key"]:
        """Return the keys of the prompt tokens; the default keys have width 0, for heads without keys."""
        return embeddings[..., :0]

    def forward(
        self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys
    ) -> NextIDDistribution:
        """Return the distribution over the next token's ID for each query."""
        raise NotImplementedError

    def num_scores(self, prompt: PromptKeys) -> int:
        """Return the number of scores per query of a batch: one per prompt token, unless a head overrides it."""
        return prompt.position_ids.numel()

    def most_likely_ids(self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys) -> IDs:
        """Return the ID with the largest probability for each query, with little memory; for evaluation."""
        chunk_length = max(1, max_scores_in_memory(hidden.device) // self.num_scores(prompt))
        inputs = (torch.split(part, chunk_length, dim=1) for part in (hidden, current_ids, next_embeddings))
        return torch.cat([self(*chunk, prompt).most_likely_ids() for chunk in zip(*inputs, strict=True)], dim=1)


def sum_probability_by_id(
    token_probabilities: Float[Tensor, "batch query prompt"], prompt: PromptKeys
) -> Float[Tensor, "batch query rank"]:
    """Sum the probability mass of prompt tokens that have the same ID."""
    rank_probabilities = token_probabilities.new_zeros(*token_probabilities.shape[:2], prompt.distinct_ids.shape[1])
    ranks = prompt.ranks[:, None].expand(token_probabilities.shape)
    return rank_probabilities.scatter_add(2, ranks, token_probabilities)


def distinct_id_distribution(
    probabilities: Float[Tensor, "batch query rank"], prompt: PromptKeys
) -> NextIDDistribution:
    """Return the probabilities of the prompt's distinct IDs as ``NextIDDistribution``."""
    candidates = prompt.distinct_ids[:, None]
    if prompt.has_padding:
        is_padding = candidates == PromptKeys.PADDING_ID
        probabilities, candidates = probabilities.masked_fill(is_padding, 0.0), candidates.masked_fill(is_padding, -1)
    min_probability = torch.finfo(probabilities.dtype).tiny
    return NextIDDistribution(log_probs=probabilities.clamp_min(min_probability).log(), candidates=candidates)


class OffsetScores(nn.Module):
    """Linear scores of all offsets, based on the hidden state and the next token."""

    def __init__(self, d_model: int, num_offsets: int) -> None:
        super().__init__()
        self.from_hidden = nn.Linear(d_model, num_offsets)
        self.from_next = nn.Linear(d_model, num_offsets, bias=False)

    def forward(self, hidden: Vectors, next_embeddings: Vectors) -> Float[Tensor, "batch token offset"]:
        """Return unnormalized scores in float32."""
        return (self.from_hidden(hidden) + self.from_next(next_embeddings)).float()


class OffsetHead(PositionHead):
    """Abstract position head that computes a score for each of ``OFFSETS``."""

    OFFSETS = (-1, 0, 1, 2)

    def __init__(self, d_model: int, num_position_ids: int) -> None:
        super().__init__()
        self.scores = OffsetScores(d_model, len(self.OFFSETS))

    def num_scores(self, prompt: PromptKeys) -> int:
        """Return the number of offsets of all queries at one index."""
        return len(prompt.position_ids) * len(self.OFFSETS)
