"""The contract of a position head: the ID of the next token, predicted after the token is chosen (PPC)."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a head may look up: the prompt's IDs, the distinct ones among them, and its keys for the prompt's tokens.

    ``sharpness``, log(1 + length), goes before scores: without it a softmax dilutes as prompts grow. ``even`` says that
    all prompts have the same length and the same number of distinct IDs.
    """

    keys: Float[Tensor, "batch prompt d_key"]
    position_ids: Int[Tensor, "batch prompt"]
    inside: Bool[Tensor, "batch prompt"]
    ranks: Int[Tensor, "batch prompt"]
    distinct_ids: Int[Tensor, "batch rank"]
    sharpness: Float[Tensor, "batch 1 1"]
    even: bool

    FILL: ClassVar[int] = torch.iinfo(torch.int64).max

    def rows(self, chosen: Callable[[Tensor], Tensor]) -> "Prompt":
        """The prompts of other rows."""
        tensors = (field.name for field in fields(self) if field.name != "even")
        of_rows: dict[str, Any] = {name: chosen(getattr(self, name)) for name in tensors}
        return replace(self, **of_rows)


def read_prompt(
    head: "PositionHead",
    embeddings: Float[Tensor, "batch seq d_model"],
    position_ids: Int[Tensor, "batch seq"],
    prompt_length: Int[Tensor, " batch"],
) -> Prompt:
    """Cut the prompts out of a batch, once for all queries; distinct IDs are sorted, ``Prompt.FILL`` fills up."""
    longest = int(prompt_length.max())
    inside = torch.arange(longest, device=position_ids.device) < prompt_length[:, None]
    # Outside, the first ID stands in: it adds no distinct one.
    ids = torch.where(inside, position_ids[:, :longest], position_ids[:, :1])
    ordered, order = ids.sort(dim=1)
    steps = torch.zeros_like(ordered)
    steps[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).long()
    rank_in_order = steps.cumsum(dim=1)
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
    """A distribution over candidate IDs per query; the candidates of one row are distinct, -1 marks none."""

    log_probs: Float[Tensor, "batch query candidate"]
    candidates: Int[Tensor, "#batch #query candidate"]

    def most_likely(self) -> Int[Tensor, "batch query"]:
        """The ID with the largest probability."""
        best = self.log_probs.argmax(dim=-1, keepdim=True)
        return self.candidates.expand(self.log_probs.shape).gather(-1, best)[..., 0]

    def log_probability(
        self, ids: Int[Tensor, "batch query"]
    ) -> tuple[Float[Tensor, "batch query"], Bool[Tensor, "batch query"]]:
        """The log-probability of the given IDs, and where they are among the candidates at all (0 elsewhere)."""
        match = self.candidates == ids[..., None]
        reachable = match.any(dim=-1)
        return self.log_probs.masked_fill(~match, 0.0).sum(dim=-1), reachable


class PositionHead(nn.Module):
    """Predicts IDs from the hidden state of a token, its ID and the embedding of the token chosen next."""

    def keys(
        self, embeddings: Float[Tensor, "batch prompt d_model"], position_ids: Int[Tensor, "batch prompt"]
    ) -> Float[Tensor, "batch prompt d_key"]:
        """What queries are compared with; nothing, where the head does not look at tokens."""
        return embeddings[..., :0]

    def forward(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        own_ids: Int[Tensor, "batch query"],
        next_embeddings: Float[Tensor, "batch query d_model"],
        prompt: Prompt,
    ) -> NextIDs:
        """A distribution over the next token's ID."""
        raise NotImplementedError


def summed_by_id(mass: Float[Tensor, "batch query prompt"], prompt: Prompt) -> Float[Tensor, "batch query rank"]:
    """What is given to the prompt's tokens, added up for each of its distinct IDs."""
    by_rank = mass.new_zeros(*mass.shape[:2], prompt.distinct_ids.shape[1])
    return by_rank.scatter_add(2, prompt.ranks[:, None].expand(mass.shape), mass)


def over_distinct_ids(probabilities: Float[Tensor, "batch query rank"], prompt: Prompt) -> NextIDs:
    """A distribution over the prompt's distinct IDs."""
    candidates = prompt.distinct_ids[:, None]
    if not prompt.even:
        fill = candidates == Prompt.FILL
        probabilities, candidates = probabilities.masked_fill(fill, 0.0), candidates.masked_fill(fill, -1)
    tiny = torch.finfo(probabilities.dtype).tiny
    return NextIDs(log_probs=probabilities.clamp_min(tiny).log(), candidates=candidates)
