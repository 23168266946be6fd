"""Contract of a position head (PPC): predict the ID of the next token, once that token is known."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One level of the prompts in the form that a position head reads: keys, IDs and sorted distinct IDs.

    ``inside`` masks the prompt tokens. ``ranks`` indexes each token's ID in ``distinct_ids``, padded with ``FILL``.
    ``sharpness``, log(1 + prompt length), multiplies scores, so that a softmax over a longer prompt is not flatter.
    ``even`` is True if all prompts have the same length and number of distinct IDs.
    """

    keys: Float[Tensor, "batch prompt d_key"]
    position_ids: Int[Tensor, "batch prompt"]
    inside: Bool[Tensor, "batch prompt"]
    ranks: Int[Tensor, "batch prompt"]
    distinct_ids: Int[Tensor, "batch rank"]
    sharpness: Float[Tensor, "batch 1 1"]
    even: bool

    FILL: ClassVar[int] = torch.iinfo(torch.int64).max

    def select(self, select: Callable[[Tensor], Tensor]) -> "Prompt":
        """Return the prompts with ``select`` applied to the batch axis of every tensor."""
        names = (field.name for field in fields(self) if field.name != "even")
        tensors: dict[str, Any] = {name: select(getattr(self, name)) for name in names}
        return replace(self, **tensors)


def read_prompt(
    head: "PositionHead",
    embeddings: Float[Tensor, "batch seq d_model"],
    position_ids: Int[Tensor, "batch seq"],
    prompt_length: Int[Tensor, " batch"],
) -> Prompt:
    """Return the prompts of a batch in the form that ``head`` reads; ``prompt_length`` counts tokens from index 0."""
    longest = int(prompt_length.max())
    inside = torch.arange(longest, device=position_ids.device) < prompt_length[:, None]
    # The first ID replaces the IDs outside the prompt, so these add no distinct ID.
    ids = torch.where(inside, position_ids[:, :longest], position_ids[:, :1])
    ordered, order = ids.sort(dim=1)
    is_new = torch.zeros_like(ordered)
    is_new[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).long()
    rank_in_order = is_new.cumsum(dim=1)
    empty = torch.full((len(ids), int(rank_in_order.max()) + 1), Prompt.FILL, device=ids.device)
    distinct = empty.scatter(1, rank_in_order, ordered)
    return Prompt(
        keys=head.keys(embeddings[:, :longest], ids),
        position_ids=ids,
        inside=inside,
        ranks=torch.zeros_like(ids).scatter(1, order, rank_in_order),
        distinct_ids=distinct,
        sharpness=prompt_length.add(1).log()[:, None, None],
        even=bool(inside.all() & (distinct[:, -1] != Prompt.FILL).all()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NextIDs:
    """Distribution over distinct candidate IDs for each query; a candidate of -1 is padding."""

    log_probs: Float[Tensor, "batch query candidate"]
    candidates: Int[Tensor, "#batch #query candidate"]

    def most_likely(self) -> Int[Tensor, "batch query"]:
        """Return the ID with the largest probability for each query."""
        best = self.log_probs.argmax(dim=-1, keepdim=True)
        return self.candidates.expand(self.log_probs.shape).gather(-1, best)[..., 0]

    def log_probability(
        self, ids: Int[Tensor, "batch query"]
    ) -> tuple[Float[Tensor, "batch query"], Bool[Tensor, "batch query"]]:
        """Return the log-probability of each ID, or 0 if the ID is not a candidate, and a mask of the candidates."""
        match = self.candidates == ids[..., None]
        reachable = match.any(dim=-1)
        return self.log_probs.masked_fill(~match, 0.0).sum(dim=-1), reachable


class PositionHead(nn.Module):
    """Abstract predictor of the next ID from a token's hidden state, its ID and the next token's embedding."""

    def keys(
        self, embeddings: Float[Tensor, "batch prompt d_model"], position_ids: Int[Tensor, "batch prompt"]
    ) -> Float[Tensor, "batch prompt d_key"]:
        """Return the keys of the prompt tokens; by default, they have width 0, for heads that read no tokens."""
        return embeddings[..., :0]

    def forward(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        current_ids: Int[Tensor, "batch query"],
        next_embeddings: Float[Tensor, "batch query d_model"],
        prompt: Prompt,
    ) -> NextIDs:
        """Return the distribution over the next token's ID for each query."""
        raise NotImplementedError


def sum_by_id(mass: Float[Tensor, "batch query prompt"], prompt: Prompt) -> Float[Tensor, "batch query rank"]:
    """Sum the probability mass of prompt tokens that have the same ID."""
    by_rank = mass.new_zeros(*mass.shape[:2], prompt.distinct_ids.shape[1])
    return by_rank.scatter_add(2, prompt.ranks[:, None].expand(mass.shape), mass)


def distinct_id_distribution(probabilities: Float[Tensor, "batch query rank"], prompt: Prompt) -> NextIDs:
    """Return the probabilities of the prompt's distinct IDs as ``NextIDs``."""
    candidates = prompt.distinct_ids[:, None]
    if not prompt.even:
        fill = candidates == Prompt.FILL
        probabilities, candidates = probabilities.masked_fill(fill, 0.0), candidates.masked_fill(fill, -1)
    tiny = torch.finfo(probabilities.dtype).tiny
    return NextIDs(log_probs=probabilities.clamp_min(tiny).log(), candidates=candidates)
