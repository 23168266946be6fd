"""Checks of the inputs of models that predict position IDs; invalid inputs raise ``SettingError``."""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from transformers.utils.generic import TransformersKwargs

from lengthwise.core.errors import FrozenHeadWarning, SettingError, UnreachableIDsWarning
from lengthwise.hf.model_parts import LOG_LENGTH_ATTENTION
from lengthwise.model.position_heads import PositionHead


def check_no_embeddings(inputs_embeds: Tensor | None) -> None:
    """Reject ``inputs_embeds``, except None, which adapters pass."""
    if inputs_embeds is not None:
        raise SettingError("inputs_embeds is not supported, because position IDs depend on tokens; pass input_ids")


def check_is_tensor(position_ids: Any) -> None:
    """Reject position IDs in a list, which a pipeline would pass on."""
    if position_ids is not None and not isinstance(position_ids, Tensor):
        kind = type(position_ids).__name__
        raise SettingError(f"position_ids have the type {kind}; use a tensor, such as torch.tensor([[0, 1, 1]])")


def check_not_negative(position_ids: Tensor | None) -> None:
    """Reject negative IDs other than -1, which marks IDs to predict."""
    if position_ids is not None and position_ids.numel() and (smallest := position_ids.min().item()) < -1:
        raise SettingError(
            f"position_ids contain {smallest}; use IDs from 0 on (-1 marks IDs that are to be predicted)"
        )


def check_num_ids(num_ids: int, tokens: Int[Tensor, "batch new"]) -> None:
    """Reject more IDs than tokens."""
    if num_ids > tokens.shape[1]:
        raise SettingError(f"position_ids has {num_ids} IDs for {tokens.shape[1]} tokens; pass one ID per token")


def check_all_ids(num_ids: int, tokens: Int[Tensor, "batch new"], *targets: Tensor | None) -> None:
    """Reject a call in which tokens lack an ID and one of ``targets`` (labels or packed texts) is given."""
    if any(target is not None for target in targets):
        problem = (
            f"position_ids has {num_ids} IDs for {tokens.shape[1]} tokens" if num_ids else "position_ids are missing"
        )
        raise SettingError(
            f"{problem}; calls with labels or packed texts need one ID per token, for example from PositionCollator"
        )


def check_range(position_ids: Shaped[Tensor, "*ids"], num_position_ids: int) -> None:
    """Reject IDs outside 0 to ``num_position_ids`` - 1; compiled calls skip the check."""
    if torch.compiler.is_compiling() or not position_ids.numel():
        return
    smallest, largest = (int(bound) for bound in position_ids.aminmax())
    if smallest < 0 or largest >= num_position_ids:
        raise SettingError(
            f"position_ids range from {smallest} to {largest}, but only 0 to {num_position_ids - 1} are allowed; "
            "change the IDs, or wrap the model with a larger num_position_ids"
        )


def check_known_arguments(names: Iterable[str], wrapped_model: nn.Module) -> None:
    """Reject arguments that the wrapped model would ignore."""
    if not names or torch.compiler.is_compiling():
        return
    forward = type(wrapped_model).forward
    known = {*inspect.signature(forward).parameters, *TransformersKwargs.__annotations__, "return_dict"}
    if unknown := sorted(set(names) - known):
        raise SettingError(
            f"unknown arguments {', '.join(unknown)}; leave them out (forward also accepts position_ids, "
            "labels, position_labels, sequence_ids and prompt_mask), or set data_collator to a PositionCollator, which "
            "reads the columns of a data set"
        )


def check_log_attention(length_scaling: str, attention: str | None) -> None:
    """Reject log-length scaling if the wrapped model uses an attention implementation without this scaling."""
    if length_scaling == "log" and attention != LOG_LENGTH_ATTENTION:
        raise SettingError(
            f"the wrapped model uses the attention {attention}, which disables length_scaling='log'; call "
            f"model.model.set_attn_implementation({LOG_LENGTH_ATTENTION!r})"
        )


def check_id_training(head: nn.Module | None, labels: Tensor | None, position_labels: Tensor | None) -> None:
    """Reject a training step that has ``labels`` but no ``position_labels`` if the head is trainable."""
    if head is None or labels is None or position_labels is not None or not torch.is_grad_enabled():
        return
    if any(weight.requires_grad for weight in head.parameters()):
        raise SettingError(
            "training with labels but without position_labels does not train the position head; use a scheme that "
            "predicts IDs (Predicted), wrap the model with head=None, or freeze the head"
        )


def check_has_head(num_heads: int, position_labels: Tensor | None) -> None:
    """Reject ``position_labels`` for a model without a position head."""
    if position_labels is not None and not num_heads:
        raise SettingError(
            "position_labels need a position head, but this model has no head; wrap the model with a head, or use a "
            "scheme that predicts no IDs, such as Coupled"
        )


def check_prompts_only(inputs: Mapping[str, Any]) -> None:
    """Reject a batch with labels or packed texts in `generate`, which needs prompts without answers."""
    if names := [name for name in ("labels", "position_labels", "sequence_ids") if inputs.get(name) is not None]:
        raise SettingError(
            f"generate received {', '.join(names)}, so the batch already contains answers; pass a batch of prompts, "
            "such as PositionCollator.prompts(rows)"
        )


def check_left_padding(attention_mask: Tensor | None) -> None:
    """Reject prompts with padding on the right, because ``generate`` would continue the padding."""
    if attention_mask is not None and attention_mask.ndim == 2 and not bool(attention_mask[:, -1].all()):
        raise SettingError(
            "a prompt ends with padding, so generate would continue the padding; pad on the left "
            "(tokenizer.padding_side = 'left', or PositionCollator.prompts)"
        )


def check_token_labels(labels: Tensor | None) -> None:
    """Reject a training step that has ``position_labels`` but no ``labels``."""
    if labels is None:
        raise SettingError(
            "position_labels need labels; a trainer that removes the labels to compute its own loss is not supported, "
            "so set label_smoothing_factor to 0 and do not pass compute_loss_func"
        )


def check_supported_arguments(arguments: Mapping[str, Any]) -> None:
    """Reject arguments that the decoder of this library does not support."""
    if names := [name for name, value in arguments.items() if value is not None and value is not False]:
        raise SettingError(
            f"this decoder does not support {', '.join(names)}; leave them out (pack_to in the collator adds "
            "sequence_ids)"
        )


def check_no_replica(model: nn.Module) -> None:
    """Reject the model copies of ``torch.nn.DataParallel``."""
    if getattr(model, "_is_replica", False):
        raise SettingError(
            "torch.nn.DataParallel is not supported, because its copies share state; start one process per device "
            "(torchrun, or accelerate launch), or make one device visible"
        )


def warn_frozen_head(head: nn.Module | None) -> None:
    """Warn if no weight of the position head is trainable, for example because the model has adapters."""
    # A sharded head may have no weights in this process.
    weights = [] if head is None else list(head.parameters())
    if weights and torch.is_grad_enabled() and not any(weight.requires_grad for weight in weights):
        warnings.warn(
            "the position head is frozen, so it learns nothing from position_labels; to train it, add "
            "modules_to_save=['position_head', 'segment'] to LoraConfig",
            FrozenHeadWarning,
            stacklevel=3,
        )


def warn_unreachable_ids(head: PositionHead) -> None:
    """Warn that the head cannot predict some IDs in ``position_labels``, so the ID loss leaves them out."""
    warnings.warn(
        f"the head {type(head).__name__} cannot predict some of the IDs in position_labels, so the ID loss leaves them "
        "out and generate will not reach them; the heads pointer, wide_pointer, rank and search choose among the IDs "
        "of the prompt, which prompt_mask marks, or which ends before the first label",
        UnreachableIDsWarning,
        stacklevel=3,
    )
