"""Joint loss of a model that predicts position IDs: cross-entropy of the tokens and of their IDs."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithPast

from lengthwise.core.errors import UnreachablePositionIDsWarning
from lengthwise.hf.model_inputs import UNSCORED
from lengthwise.hf.position_cache import CachedTokens
from lengthwise.model.position_heads import PositionHead, PromptKeys, build_prompt_keys

Embedder = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class PositionIDLoss:
    """ID loss (nats) and predicted IDs (-1 at tokens without a label), or None in training and for packed rows."""

    loss: Float[Tensor, ""]
    predicted_ids: Int[Tensor, "batch seq"] | None


@dataclass
class PredictivePositionOutput(CausalLMOutputWithPast):
    """Model output with both parts of the joint loss (nats): the token loss and the ID loss.

    ``predicted_position_ids`` has the shape of ``position_labels``. It contains the head's predictions at labelled
    tokens, and -1 elsewhere. It is None in training and for packed rows.
    """

    token_loss: Float[Tensor, ""] | None = None
    position_loss: Float[Tensor, ""] | None = None
    predicted_position_ids: Int[Tensor, "*level batch seq"] | None = None


def build_joint_output(
    logits: Float[Tensor, "batch kept vocab"],
    labels: Int[Tensor, "batch seq"] | None,
    id_losses: Sequence[PositionIDLoss],
    num_items: Tensor | int | None,
    sequence_ids: Tensor | None = None,
    *,
    id_weight: float,
    **outputs: Any,
) -> PredictivePositionOutput:
    """Return a model output whose loss is the token loss plus the weighted ID loss, or the only loss of the two.

    Each level has its own head, so the ID loss is the sum of the ``id_losses`` of all levels.
    """
    loss_of_tokens = None if labels is None else token_loss(logits, labels, num_items, sequence_ids)
    loss_of_ids = torch.stack([level.loss for level in id_losses]).sum() if id_losses else None
    weighted_loss = None if loss_of_ids is None else id_weight * loss_of_ids
    losses = [loss for loss in (loss_of_tokens, weighted_loss) if loss is not None]
    predicted_ids = [level.predicted_ids for level in id_losses if level.predicted_ids is not None]
    return PredictivePositionOutput(
        loss=sum(losses[1:], losses[0]) if losses else None,
        token_loss=loss_of_tokens,
        position_loss=loss_of_ids,
        predicted_position_ids=drop_single_level(torch.stack(predicted_ids)) if predicted_ids else None,
        logits=logits,
        **outputs,
    )


def drop_single_level(levels: Shaped[Tensor, "level batch seq"]) -> Shaped[Tensor, "*level batch seq"]:
    """Return the values of all levels, without the axis of levels if there is only one."""
    return levels[0] if len(levels) == 1 else levels


def token_loss(
    logits: Float[Tensor, "batch seq vocab"],
    labels: Int[Tensor, "batch seq"],
    num_items: Tensor | int | None,
    sequence_ids: Tensor | None = None,
) -> Float[Tensor, ""]:
    """Return the summed cross-entropy (nats) of unshifted labels, divided by ``num_items`` or by their number.

    The first token of each packed text in ``sequence_ids`` has no prediction, so its label does not count.
    """
    if sequence_ids is not None:
        is_text_start = nn.functional.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0))
        labels = labels.masked_fill(is_text_start, UNSCORED)
    targets = nn.functional.pad(labels[:, 1:], (0, 1), value=UNSCORED).flatten().to(logits.device)
    flat_logits = logits.flatten(0, 1).float()
    loss_sum = nn.functional.cross_entropy(flat_logits, targets, ignore_index=UNSCORED, reduction="sum")
    return _mean(loss_sum, targets, num_items)


# The shapes of tensors depend on the labels, so ``torch.compile`` would recompile in every step.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def position_loss(
    head: PositionHead,
    embed: Embedder,
    embed_next: Embedder,
    call: CachedTokens,
    position_labels: Int[Tensor, "batch seq"],
    num_items: Tensor | int | None,
    sequence_ids: Int[Tensor, "batch seq"] | None = None,
) -> PositionIDLoss:
    """Return the cross-entropy (nats) of the IDs in ``position_labels``, except IDs that the head cannot predict.

    The sum is divided by ``num_items``, or by the number of these IDs if ``num_items`` is None. ``sequence_ids``
    numbers the packed texts of a row. ``call`` needs the hidden states of all its tokens.
    """
    hidden, tokens, position_ids, is_prompt = call.hidden, call.tokens, call.position_ids, call.is_prompt
    if sequence_ids is not None:
        values = ((hidden, 0), (tokens, 0), (position_ids, 0), (is_prompt, 0), (position_labels, UNSCORED))
        hidden, tokens, position_ids, is_prompt, position_labels = _unpack(sequence_ids, values)
    has_label = position_labels[:, 1:] != UNSCORED
    labelled_columns = has_label.any(dim=0).nonzero()[:, 0]
    has_predictions = sequence_ids is None and not torch.is_grad_enabled()
    predicted_ids = torch.full_like(tokens, -1) if has_predictions else None
    if not len(labelled_columns):
        # Distributed training needs a gradient of every weight.
        zero_loss = sum((weight.sum() * 0 for weight in head.parameters()), hidden.float().sum() * 0)
        return PositionIDLoss(zero_loss, predicted_ids)
    # Skip the columns without a labelled ID at the start and the end.
    first, last = int(labelled_columns[0]), int(labelled_columns[-1]) + 1
    columns, next_columns = slice(first, last), slice(first + 1, last + 1)
    with position_head_precision(head, hidden.device):
        prompt = gather_prompt_keys(head, embed, CachedTokens(tokens, position_ids, is_prompt, hidden))
        next_tokens = embed_next(tokens[:, next_columns])
        next_ids = head(hidden[:, columns].float(), position_ids[:, columns], next_tokens, prompt)
        log_probability, is_reachable = next_ids.log_probability(position_labels[:, next_columns])
    is_scored = has_label[:, columns] & is_reachable
    if head.training and torch.is_grad_enabled() and (is_scored != has_label[:, columns]).any():
        warnings.warn(
            f"the head {type(head).__name__} cannot predict some of the IDs in position_labels, so the ID loss leaves "
            "them out and generate will not reach them; the heads pointer, wide_pointer, state_pointer, rank and "
            "search choose among the IDs of the prompt, which prompt_mask marks, or which ends before the first label",
            UnreachablePositionIDsWarning,
            stacklevel=2,
        )
    if predicted_ids is not None:
        predicted_ids[:, next_columns] = torch.where(has_label[:, columns], next_ids.most_likely_ids(), -1)
    loss_sum = -(log_probability * is_scored).sum()
    return PositionIDLoss(_mean(loss_sum, torch.where(is_scored, 0, UNSCORED), num_items), predicted_ids)


def position_head_precision(head: PositionHead, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast for a float32 head; other heads compute in their own precision."""
    is_float32 = all(weight.dtype == torch.float32 for weight in head.parameters())
    return torch.autocast(device.type, enabled=False) if is_float32 else nullcontext()


def gather_prompt_keys(head: PositionHead, embed: Embedder, call: CachedTokens) -> PromptKeys:
    """Return the prompt tokens of each row as the input of a position head; they may be anywhere in the row."""
    lengths = call.is_prompt.sum(dim=1)
    # Move the prompt tokens to the front, in their original order.
    order = (~call.is_prompt).long().argsort(dim=1, stable=True)[:, : max(int(lengths.max()), 1)]
    return build_prompt_keys(head, embed(call.tokens.gather(1, order)), call.position_ids.gather(1, order), lengths)


def _mean(total: Float[Tensor, ""], labels: Int[Tensor, "..."], num_items: Tensor | int | None) -> Float[Tensor, ""]:
    divisor = (labels != UNSCORED).sum().clamp(min=1) if num_items is None else num_items
    return total / (divisor.to(total.device) if isinstance(divisor, Tensor) else divisor)


def _unpack(sequence_ids: Int[Tensor, "batch seq"], values: tuple[tuple[Tensor, int], ...]) -> list[Tensor]:
    """Split packed values of shape (batch, seq) or (batch, seq, d) into one row per text, padded with a fill value."""
    rows = torch.arange(len(sequence_ids), device=sequence_ids.device)[:, None]
    text_key = (rows * (int(sequence_ids.max()) + 1) + sequence_ids).flatten()
    flat = (sequence_ids >= 0).flatten().nonzero()[:, 0]
    _, text_number, text_lengths = text_key[flat].unique_consecutive(return_inverse=True, return_counts=True)
    column = torch.arange(len(flat), device=flat.device) - (text_lengths.cumsum(0) - text_lengths)[text_number]
    index = torch.zeros(len(text_lengths), int(text_lengths.max()), dtype=torch.long, device=flat.device)
    is_padding = torch.ones_like(index, dtype=torch.bool)
    index[text_number, column], is_padding[text_number, column] = flat, False
    return [
        packed.flatten(0, 1)[index].masked_fill(is_padding.view(*index.shape, *[1] * (packed.ndim - 2)), fill)
        for packed, fill in values
    ]
