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


def shift_labels(labels: Int[Tensor, "batch seq"], sequence_ids: Tensor | None = None) -> Int[Tensor, "batch seq"]:
    """Return the label of the next token at each token; -100 at the last token of each text."""
    if sequence_ids is not None:
        starts = nn.functional.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0))
        labels = labels.masked_fill(starts, UNSCORED)
    return nn.functional.pad(labels[:, 1:], (0, 1), value=UNSCORED)


def token_loss(
    logits: Float[Tensor, "batch seq vocab"], targets: Int[Tensor, "batch seq"], num_items: Tensor | int | None
) -> Float[Tensor, ""]:
    """Return the cross-entropy (nats) of `shift_labels`: the mean, or the sum divided by ``num_items``."""
    targets, scores = targets.flatten().to(logits.device), logits.flatten(0, 1).float()
    total = nn.functional.cross_entropy(scores, targets, ignore_index=UNSCORED, reduction="sum")
    return _mean(total, targets, num_items)


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """Inputs and labels of a position head."""

    hidden: Float[Tensor, "batch seq d_model"]
    tokens: Int[Tensor, "batch seq"]
    position_ids: Int[Tensor, "batch seq"]
    is_prompt: Bool[Tensor, "batch seq"]
    position_labels: Int[Tensor, "batch seq"]

    def unpack(self, sequence_ids: Int[Tensor, "batch seq"]) -> "HeadInputs":
        """Return one row per text of packed rows."""
        index = sequence_index(sequence_ids)
        return HeadInputs(
            hidden=index.unpack(self.hidden, 0),
            tokens=index.unpack(self.tokens, 0),
            position_ids=index.unpack(self.position_ids, 0),
            is_prompt=index.unpack(self.is_prompt, 0),
            position_labels=index.unpack(self.position_labels, UNSCORED),
        )


@dataclass(frozen=True, slots=True)
class IDLoss:
    """Loss of the IDs (nats), and outside training the predicted ID of each labelled token (-1 elsewhere)."""

    loss: Float[Tensor, ""]
    predicted: Int[Tensor, "*level batch seq"] | None


# Its shapes depend on the labels, so compiling would recompile in every step.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def position_loss(
    head: PositionHead, embed: Embed, embed_next: Embed, inputs: HeadInputs, num_items: Tensor | int | None
) -> IDLoss:
    """Return the cross-entropy of the labelled IDs, without IDs that the head cannot predict."""
    scored = inputs.position_labels[:, 1:] != UNSCORED
    columns = scored.any(dim=0).nonzero()[:, 0]
    predicted = None if torch.is_grad_enabled() else torch.full_like(inputs.tokens, -1)
    if not len(columns):
        # Processes that train together wait for a gradient of every weight.
        zero = inputs.hidden.float().sum() * 0
        for parameter in head.parameters():
            zero = zero + parameter.sum() * 0
        return IDLoss(zero, predicted)
    # No ID is labelled before the shortest prompt ends.
    first, last = int(columns[0]), int(columns[-1]) + 1
    with head_precision(head, inputs.hidden.device):
        prompt = gather_prompts(head, embed, inputs.tokens, inputs.position_ids, inputs.is_prompt)
        next_tokens = embed_next(inputs.tokens[:, first + 1 : last + 1])
        next_ids = head(inputs.hidden[:, first:last].float(), inputs.position_ids[:, first:last], next_tokens, prompt)
        log_probability, reachable = next_ids.log_probability(inputs.position_labels[:, first + 1 : last + 1])
    in_loss = scored[:, first:last] & reachable
    if head.training and torch.is_grad_enabled() and not in_loss.any():
        warn_unreachable_ids(head)
    if predicted is not None:
        predicted[:, first + 1 : last + 1] = torch.where(scored[:, first:last], next_ids.most_likely(), -1)
    total = -(log_probability * in_loss).sum()
    return IDLoss(_mean(total, torch.where(in_loss, 0, UNSCORED), num_items), predicted)


def head_precision(head: PositionHead, device: torch.device) -> AbstractContextManager[Any]:
    """Disable autocast for a head in float32; a head that was cast computes in its own precision."""
    is_float32 = all(weight.dtype == torch.float32 for weight in head.parameters())
    return torch.autocast(device.type, enabled=False) if is_float32 else nullcontext()


def joint_loss(tokens: Tensor | None, ids: IDLoss | None, id_weight: float) -> Float[Tensor, ""] | None:
    """Return the token loss plus the weighted ID loss, or the only loss that exists."""
    if ids is None:
        return tokens
    weighted = id_weight * ids.loss
    return weighted if tokens is None else tokens + weighted


def _mean(total: Float[Tensor, ""], labels: Int[Tensor, "..."], num_items: Tensor | int | None) -> Float[Tensor, ""]:
    items = (labels != UNSCORED).sum().clamp(min=1) if num_items is None else num_items
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)


@dataclass(frozen=True, slots=True)
class SequenceIndex:
    """Flat indexes into (batch, seq) of the tokens of each text; ``is_token`` is False at padding."""

    index: Int[Tensor, "text longest"]
    is_token: Bool[Tensor, "text longest"]

    def unpack(self, packed: Tensor, fill: int) -> Tensor:
        """Return one row per text of values of shape (batch, seq) or (batch, seq, d)."""
        rows = packed.flatten(0, 1)[self.index]
        return rows.masked_fill(~self.is_token.view(*self.is_token.shape, *[1] * (rows.ndim - 2)), fill)


def sequence_index(sequence_ids: Int[Tensor, "batch seq"]) -> SequenceIndex:
    """Return the tokens of each text; -1 in ``sequence_ids`` is padding."""
    rows = torch.arange(len(sequence_ids), device=sequence_ids.device)[:, None]
    key = (rows * (int(sequence_ids.max()) + 1) + sequence_ids).flatten()
    flat = (sequence_ids >= 0).flatten().nonzero()[:, 0]
    _, text, counts = key[flat].unique_consecutive(return_inverse=True, return_counts=True)
    column = torch.arange(len(flat), device=flat.device) - (counts.cumsum(0) - counts)[text]
    index = torch.zeros(len(counts), int(counts.max()), dtype=torch.long, device=flat.device)
    is_token = torch.zeros_like(index, dtype=torch.bool)
    index[text, column], is_token[text, column] = flat, True
    return SequenceIndex(index, is_token)


def gather_prompts(
    head: PositionHead,
    embed: Embed,
    tokens: Int[Tensor, "batch seq"],
    position_ids: Int[Tensor, "batch seq"],
    is_prompt: Bool[Tensor, "batch seq"],
) -> Prompt:
    """Return the prompts as a position head reads them, wherever their tokens are in a row."""
    lengths = is_prompt.sum(dim=1)
    # Prompt tokens first, in their order.
    order = (~is_prompt).long().argsort(dim=1, stable=True)[:, : max(int(lengths.max()), 1)]
    return read_prompt(head, embed(tokens.gather(1, order)), position_ids.gather(1, order), lengths)
