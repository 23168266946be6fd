"""Joint loss of a model that predicts position IDs: cross-entropy of the tokens and of their IDs."""

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

Embedder = Callable[[Tensor], Tensor]


def shift_labels(labels: Int[Tensor, "batch seq"], sequence_ids: Tensor | None = None) -> Int[Tensor, "batch seq"]:
    """Shift labels to the left, so that each token has the label of the next token; the last token has -100."""
    if sequence_ids is not None:
        is_text_start = nn.functional.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0))
        labels = labels.masked_fill(is_text_start, UNSCORED)
    return nn.functional.pad(labels[:, 1:], (0, 1), value=UNSCORED)


def token_loss(
    logits: Float[Tensor, "batch seq vocab"], targets: Int[Tensor, "batch seq"], num_items: Tensor | int | None
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy (nats) of the shifted labels, divided by ``num_items`` or their number."""
    targets, flat_logits = targets.flatten().to(logits.device), logits.flatten(0, 1).float()
    loss_sum = nn.functional.cross_entropy(flat_logits, targets, ignore_index=UNSCORED, reduction="sum")
    return _mean(loss_sum, targets, num_items)


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """Inputs and labels of a position head."""

    hidden: Float[Tensor, "batch seq d_model"]
    tokens: Int[Tensor, "batch seq"]
    position_ids: Int[Tensor, "batch seq"]
    is_prompt: Bool[Tensor, "batch seq"]
    position_labels: Int[Tensor, "batch seq"]

    def unpack(self, sequence_ids: Int[Tensor, "batch seq"]) -> "HeadInputs":
        """Split packed rows into one row per text."""
        index = build_sequence_index(sequence_ids)
        return HeadInputs(
            hidden=index.unpack(self.hidden, 0),
            tokens=index.unpack(self.tokens, 0),
            position_ids=index.unpack(self.position_ids, 0),
            is_prompt=index.unpack(self.is_prompt, 0),
            position_labels=index.unpack(self.position_labels, UNSCORED),
        )


@dataclass(frozen=True, slots=True)
class IDLoss:
    """ID loss (nats) and predicted IDs (-1 at tokens without a label); no predicted IDs if gradients are enabled."""

    loss: Float[Tensor, ""]
    predicted_ids: Int[Tensor, "*level batch seq"] | None


# The shapes of tensors depend on the labels, so ``torch.compile`` would recompile in every step.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def position_loss(
    head: PositionHead, embed: Embedder, embed_next: Embedder, inputs: HeadInputs, num_items: Tensor | int | None
) -> IDLoss:
    """Return the cross-entropy (nats) of the IDs in ``position_labels``, except IDs that the head cannot predict.

    The sum is divided by ``num_items``, or by the number of these IDs if ``num_items`` is None.
    """
    has_label = inputs.position_labels[:, 1:] != UNSCORED
    labelled_columns = has_label.any(dim=0).nonzero()[:, 0]
    predicted_ids = None if torch.is_grad_enabled() else torch.full_like(inputs.tokens, -1)
    if not len(labelled_columns):
        # Distributed training needs a gradient of every weight.
        zero_loss = sum((weight.sum() * 0 for weight in head.parameters()), inputs.hidden.float().sum() * 0)
        return IDLoss(zero_loss, predicted_ids)
    # Skip the columns without a labelled ID at the start and the end.
    first, last = int(labelled_columns[0]), int(labelled_columns[-1]) + 1
    columns, next_columns = slice(first, last), slice(first + 1, last + 1)
    with head_precision(head, inputs.hidden.device):
        prompt = gather_prompts(head, embed, inputs.tokens, inputs.position_ids, inputs.is_prompt)
        next_tokens = embed_next(inputs.tokens[:, next_columns])
        next_ids = head(inputs.hidden[:, columns].float(), inputs.position_ids[:, columns], next_tokens, prompt)
        log_probability, is_reachable = next_ids.log_probability(inputs.position_labels[:, next_columns])
    is_scored = has_label[:, columns] & is_reachable
    if head.training and torch.is_grad_enabled() and (is_scored != has_label[:, columns]).any():
        warn_unreachable_ids(head)
    if predicted_ids is not None:
        predicted_ids[:, next_columns] = torch.where(has_label[:, columns], next_ids.most_likely_ids(), -1)
    loss_sum = -(log_probability * is_scored).sum()
    return IDLoss(_mean(loss_sum, torch.where(is_scored, 0, UNSCORED), num_items), predicted_ids)


def head_precision(head: PositionHead, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast for a float32 head; other heads compute in their own precision."""
    is_float32 = all(weight.dtype == torch.float32 for weight in head.parameters())
    return torch.autocast(device.type, enabled=False) if is_float32 else nullcontext()


def joint_loss(loss_of_tokens: Tensor | None, loss_of_ids: IDLoss | None, id_weight: float) -> Float[Tensor, ""] | None:
    """Return the token loss plus the weighted ID loss. If one of them is None, return the other loss."""
    if loss_of_ids is None:
        return loss_of_tokens
    weighted_loss = id_weight * loss_of_ids.loss
    return weighted_loss if loss_of_tokens is None else loss_of_tokens + weighted_loss


def _mean(total: Float[Tensor, ""], labels: Int[Tensor, "..."], num_items: Tensor | int | None) -> Float[Tensor, ""]:
    divisor = (labels != UNSCORED).sum().clamp(min=1) if num_items is None else num_items
    return total / (divisor.to(total.device) if isinstance(divisor, Tensor) else divisor)


@dataclass(frozen=True, slots=True)
class SequenceIndex:
    """Indexes of the tokens of each text in the flattened (batch, seq) array; ``is_token`` is False at padding."""

    index: Int[Tensor, "text longest"]
    is_token: Bool[Tensor, "text longest"]

    def unpack(self, packed_values: Tensor, fill: int) -> Tensor:
        """Split packed values of shape (batch, seq) or (batch, seq, d) into one row per text."""
        rows = packed_values.flatten(0, 1)[self.index]
        return rows.masked_fill(~self.is_token.view(*self.is_token.shape, *[1] * (rows.ndim - 2)), fill)


def build_sequence_index(sequence_ids: Int[Tensor, "batch seq"]) -> SequenceIndex:
    """Return the `SequenceIndex` of packed rows, in which ``sequence_ids`` is -1 at padding."""
    rows = torch.arange(len(sequence_ids), device=sequence_ids.device)[:, None]
    text_key = (rows * (int(sequence_ids.max()) + 1) + sequence_ids).flatten()
    flat = (sequence_ids >= 0).flatten().nonzero()[:, 0]
    _, text_number, text_lengths = text_key[flat].unique_consecutive(return_inverse=True, return_counts=True)
    column = torch.arange(len(flat), device=flat.device) - (text_lengths.cumsum(0) - text_lengths)[text_number]
    index = torch.zeros(len(text_lengths), int(text_lengths.max()), dtype=torch.long, device=flat.device)
    is_token = torch.zeros_like(index, dtype=torch.bool)
    index[text_number, column], is_token[text_number, column] = flat, True
    return SequenceIndex(index, is_token)


def gather_prompts(
    head: PositionHead,
    embed: Embedder,
    tokens: Int[Tensor, "batch seq"],
    position_ids: Int[Tensor, "batch seq"],
    is_prompt: Bool[Tensor, "batch seq"],
) -> Prompt:
    """Return the prompt tokens of each row as the input of a position head; they may be anywhere in the row."""
    lengths = is_prompt.sum(dim=1)
    # Move the prompt tokens to the front, in their original order.
    token_order = (~is_prompt).long().argsort(dim=1, stable=True)[:, : max(int(lengths.max()), 1)]
    return read_prompt(head, embed(tokens.gather(1, token_order)), position_ids.gather(1, token_order), lengths)
