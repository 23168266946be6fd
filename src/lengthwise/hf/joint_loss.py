"""Loss of a model that predicts IDs: cross-entropy of the tokens and of their position IDs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.hf.dataset_columns import UNSCORED
from lengthwise.hf.input_checks import warn_unreachable_ids
from lengthwise.model.position_heads import PositionHead, Prompt, read_prompt

Embed = Callable[[Tensor], Tensor]


def token_loss(
    logits: Float[Tensor, "batch seq vocab"], labels: Int[Tensor, "batch seq"], num_items: Tensor | int | None
) -> Float[Tensor, ""]:
    """Cross-entropy (nats) of the labels after each token; the sum over ``num_items`` where that is named."""
    # The labels are shifted, never the logits: a slice of these would be copied, and its gradient again.
    targets = nn.functional.pad(labels[:, 1:], (0, 1), value=UNSCORED).flatten().to(logits.device)
    scores = logits.flatten(0, 1).float()
    return _mean(
        nn.functional.cross_entropy(scores, targets, ignore_index=UNSCORED, reduction="sum"), targets, num_items
    )


def foretold(labels: Int[Tensor, "batch new"], sequence_ids: Tensor | None) -> Int[Tensor, "batch new"]:
    """No text foretells the first token of the next."""
    if sequence_ids is None:
        return labels
    begins = nn.functional.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0))
    return labels.masked_fill(begins, UNSCORED)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a position head is trained on: hidden states, and the tokens with their IDs and what these should be."""

    hidden: Float[Tensor, "batch seq d_model"]
    tokens: Int[Tensor, "batch seq"]
    position_ids: Int[Tensor, "batch seq"]
    is_prompt: Bool[Tensor, "batch seq"]
    position_labels: Int[Tensor, "batch seq"]

    def apart(self, sequence_ids: Int[Tensor, "batch seq"]) -> "Asked":
        """A row for each text of packed rows."""
        places = sequence_index(sequence_ids)
        return Asked(
            hidden=places.apart(self.hidden, 0),
            tokens=places.apart(self.tokens, 0),
            position_ids=places.apart(self.position_ids, 0),
            is_prompt=places.apart(self.is_prompt, 0),
            position_labels=places.apart(self.position_labels, UNSCORED),
        )


@dataclass(frozen=True, slots=True)
class IDLoss:
    """The loss of IDs (nats) and, outside of training, the ID predicted for each token; -1 where none was asked for."""

    loss: Float[Tensor, ""]
    predicted: Int[Tensor, "*level batch seq"] | None


# Its shapes depend on the labels: compiled, it would be compiled again and again.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def position_loss(
    head: PositionHead, embed: Embed, chosen: Embed, asked: Asked, num_items: Tensor | int | None
) -> IDLoss:
    """Cross-entropy of the IDs; those the head has no candidate for are left out."""
    scored = asked.position_labels[:, 1:] != UNSCORED
    columns = scored.any(dim=0).nonzero()[:, 0]
    known = None if torch.is_grad_enabled() else torch.full_like(asked.tokens, -1)
    if not len(columns):
        # Of nothing, and yet of all weights: processes that train together wait for the gradient of each.
        nothing = asked.hidden.float().sum() * 0
        for parameter in head.parameters():
            nothing = nothing + parameter.sum() * 0
        return IDLoss(nothing, known)
    # Nothing is asked before the shortest prompt ends.
    first, last = int(columns[0]), int(columns[-1]) + 1
    with head_precision(head, asked.hidden.device):
        prompt = gather_prompts(head, embed, asked.tokens, asked.position_ids, asked.is_prompt)
        next_tokens = chosen(asked.tokens[:, first + 1 : last + 1])
        made = head(asked.hidden[:, first:last].float(), asked.position_ids[:, first:last], next_tokens, prompt)
        log_probability, reachable = made.log_probability(asked.position_labels[:, first + 1 : last + 1])
    kept = scored[:, first:last] & reachable
    if head.training and torch.is_grad_enabled() and not kept.any():
        warn_unreachable_ids(head)
    if known is not None:
        known[:, first + 1 : last + 1] = torch.where(scored[:, first:last], made.most_likely(), -1)
    return IDLoss(_mean(-(log_probability * kept).sum(), torch.where(kept, 0, UNSCORED), num_items), known)


def head_precision(head: PositionHead, device: torch.device) -> AbstractContextManager[Any]:
    """A head in float32 computes in it, whatever is computed in half of it around; one that was cast does as cast."""
    whole = all(weight.dtype == torch.float32 for weight in head.parameters())
    return torch.autocast(device.type, enabled=False) if whole else nullcontext()


def joint_loss(of_tokens: Tensor | None, of_ids: IDLoss | None, id_weight: float) -> Float[Tensor, ""] | None:
    """Of what was asked: the loss of tokens, and that of IDs times its weight."""
    if of_ids is None:
        return of_tokens
    weighted = id_weight * of_ids.loss
    return weighted if of_tokens is None else of_tokens + weighted


def _mean(total: Float[Tensor, ""], labels: Int[Tensor, "..."], num_items: Tensor | int | None) -> Float[Tensor, ""]:
    items = (labels != UNSCORED).sum().clamp(min=1) if num_items is None else num_items
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)


@dataclass(frozen=True, slots=True)
class SequenceIndex:
    """Where the tokens of each text stand: flat indexes into (batch, seq), and which of them are none."""

    index: Int[Tensor, "text longest"]
    inside: Bool[Tensor, "text longest"]

    def apart(self, packed: Tensor, fill: int) -> Tensor:
        """A row per text of what was (batch, seq) or (batch, seq, d)."""
        rows = packed.flatten(0, 1)[self.index]
        return rows.masked_fill(~self.inside.view(*self.inside.shape, *[1] * (rows.ndim - 2)), fill)


def sequence_index(sequence_ids: Int[Tensor, "batch seq"]) -> SequenceIndex:
    """Where the texts are that ``sequence_ids`` tell apart in their rows; -1 is fill."""
    rows = torch.arange(len(sequence_ids), device=sequence_ids.device)[:, None]
    key = (rows * (int(sequence_ids.max()) + 1) + sequence_ids).flatten()
    flat = (sequence_ids >= 0).flatten().nonzero()[:, 0]
    _, text, counts = key[flat].unique_consecutive(return_inverse=True, return_counts=True)
    within = torch.arange(len(flat), device=flat.device) - (counts.cumsum(0) - counts)[text]
    index = torch.zeros(len(counts), int(counts.max()), dtype=torch.long, device=flat.device)
    inside = torch.zeros_like(index, dtype=torch.bool)
    index[text, within], inside[text, within] = flat, True
    return SequenceIndex(index, inside)


def gather_prompts(
    head: PositionHead,
    embed: Callable[[Tensor], Tensor],
    tokens: Int[Tensor, "batch seq"],
    position_ids: Int[Tensor, "batch seq"],
    is_prompt: Bool[Tensor, "batch seq"],
) -> Prompt:
    """What the head has to know of the prompts, wherever in their rows they stand."""
    lengths = is_prompt.sum(dim=1)
    # Prompt tokens first, in their order.
    order = (~is_prompt).long().argsort(dim=1, stable=True)[:, : max(int(lengths.max()), 1)]
    return read_prompt(head, embed(tokens.gather(1, order)), position_ids.gather(1, order), lengths)
