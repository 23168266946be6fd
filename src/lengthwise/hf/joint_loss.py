"""The two parts of the loss of a model that predicts IDs: of the tokens, and of their IDs."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.hf.call_checks import warn_of_unreachable
from lengthwise.hf.columns import UNSCORED
from lengthwise.hf.texts import places_of, prompts_of
from lengthwise.model.position_heads import PositionHead

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
        places = places_of(sequence_ids)
        return Asked(
            hidden=places.apart(self.hidden, 0),
            tokens=places.apart(self.tokens, 0),
            position_ids=places.apart(self.position_ids, 0),
            is_prompt=places.apart(self.is_prompt, 0),
            position_labels=places.apart(self.position_labels, UNSCORED),
        )


@dataclass(frozen=True, slots=True)
class OfIDs:
    """The loss of IDs (nats) and, outside of training, the ID predicted for each token; -1 where none was asked for."""

    loss: Float[Tensor, ""]
    predicted: Int[Tensor, "*level batch seq"] | None


# Its shapes depend on the labels: compiled, it would be compiled again and again.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def position_loss(
    head: PositionHead, embed: Embed, chosen: Embed, asked: Asked, num_items: Tensor | int | None
) -> OfIDs:
    """Cross-entropy of the IDs; those the head has no candidate for are left out."""
    scored = asked.position_labels[:, 1:] != UNSCORED
    columns = scored.any(dim=0).nonzero()[:, 0]
    known = None if torch.is_grad_enabled() else torch.full_like(asked.tokens, -1)
    if not len(columns):
        # Of nothing, and yet of all weights: processes that train together wait for the gradient of each.
        nothing = asked.hidden.float().sum() * 0
        for parameter in head.parameters():
            nothing = nothing + parameter.sum() * 0
        return OfIDs(nothing, known)
    # Nothing is asked before the shortest prompt ends.
    first, last = int(columns[0]), int(columns[-1]) + 1
    with own_precision(head, asked.hidden.device):
        prompt = prompts_of(head, embed, asked.tokens, asked.position_ids, asked.is_prompt)
        next_tokens = chosen(asked.tokens[:, first + 1 : last + 1])
        made = head(asked.hidden[:, first:last].float(), asked.position_ids[:, first:last], next_tokens, prompt)
        log_probability, reachable = made.log_probability(asked.position_labels[:, first + 1 : last + 1])
    kept = scored[:, first:last] & reachable
    if head.training and torch.is_grad_enabled() and not kept.any():
        warn_of_unreachable(head)
    if known is not None:
        known[:, first + 1 : last + 1] = torch.where(scored[:, first:last], made.most_likely(), -1)
    return OfIDs(_mean(-(log_probability * kept).sum(), torch.where(kept, 0, UNSCORED), num_items), known)


def own_precision(head: PositionHead, device: torch.device) -> AbstractContextManager[Any]:
    """A head in float32 computes in it, whatever is computed in half of it around; one that was cast does as cast."""
    whole = all(weight.dtype == torch.float32 for weight in head.parameters())
    return torch.autocast(device.type, enabled=False) if whole else nullcontext()


def joint_loss(of_tokens: Tensor | None, of_ids: OfIDs | None, id_weight: float) -> Float[Tensor, ""] | None:
    """Of what was asked: the loss of tokens, and that of IDs times its weight."""
    if of_ids is None:
        return of_tokens
    weighted = id_weight * of_ids.loss
    return weighted if of_tokens is None else of_tokens + weighted


def _mean(total: Float[Tensor, ""], labels: Int[Tensor, "..."], num_items: Tensor | int | None) -> Float[Tensor, ""]:
    items = (labels != UNSCORED).sum().clamp(min=1) if num_items is None else num_items
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)
