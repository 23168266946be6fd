"""What a call of a model that predicts IDs is refused for."""

import inspect
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from transformers.utils.generic import TransformersKwargs

from lengthwise.core.errors import FrozenHeadWarning, SettingError, UnreachableIDsWarning
from lengthwise.hf.model_parts import LOG_LENGTH
from lengthwise.model.position_heads import PositionHead


def check_no_embeddings(inputs_embeds: Tensor | None) -> None:
    """``SettingError`` for embeddings in the place of tokens; adapters pass on that there are none."""
    if inputs_embeds is not None:
        raise SettingError("an ID depends on tokens, and inputs_embeds names none; give input_ids")


def check_all_ids(given: int, tokens: Int[Tensor, "batch new"], *asked: Tensor | None) -> None:
    """``SettingError`` where IDs are missing in a call that is asked for more than what comes next."""
    if any(each is not None for each in asked):
        raise SettingError(f"labels and packed texts need all IDs, and position_ids has {given} of {tokens.shape[1]}")


def check_range(position_ids: Shaped[Tensor, "*given"], most: int) -> None:
    """``SettingError`` for IDs below 0 or not below ``most``; a compiled call is not stopped to look."""
    if torch.compiler.is_compiling() or not position_ids.numel():
        return
    smallest, largest = (int(bound) for bound in position_ids.aminmax())
    if smallest < 0:
        raise SettingError(f"position_ids fall to {smallest}; give IDs from 0 to {most - 1}")
    if largest >= most:
        raise SettingError(
            f"position_ids reach {largest} and have to stay below {most}; give smaller ones, or wrap the model with a "
            "larger num_position_ids"
        )


def check_known_arguments(named: Iterable[str], inner: nn.Module) -> None:
    """``SettingError`` for an argument that the model within would swallow unread."""
    if not named or torch.compiler.is_compiling():
        return
    known = {*inspect.signature(type(inner).forward).parameters, *TransformersKwargs.__annotations__, "return_dict"}
    if unknown := sorted(set(named) - known):
        raise SettingError(
            f"this model takes no {', '.join(unknown)}; leave it out (forward knows position_ids, labels, "
            "position_labels, sequence_ids and prompt_mask)"
        )


def check_log_attention(length_scaling: str, attention: str | None) -> None:
    """``SettingError`` where the model within was set to another attention, which would leave out the scaling."""
    if length_scaling == "log" and attention != LOG_LENGTH:
        raise SettingError(
            f"length_scaling='log' is off: the model within was set to the attention {attention}; undo it with "
            f"model.model.set_attn_implementation({LOG_LENGTH!r})"
        )


def check_id_training(head: nn.Module | None, labels: Tensor | None, position_labels: Tensor | None) -> None:
    """``SettingError`` for a training step in which a head that learns is asked for no ID."""
    if head is None or labels is None or position_labels is not None or not torch.is_grad_enabled():
        return
    if any(weight.requires_grad for weight in head.parameters()):
        raise SettingError(
            "labels came without position_labels, so the position head would learn nothing; use a scheme that predicts "
            "IDs (Predicted), wrap the model with head=None, or freeze the head"
        )


def check_has_head(num_heads: int, position_labels: Tensor | None) -> None:
    """``SettingError`` for IDs that are asked of a model that predicts none."""
    if position_labels is not None and not num_heads:
        raise SettingError(
            "position_labels came to a model without a position head, so no ID would be learned; wrap a model with a "
            "head, or use a scheme that predicts no IDs, such as Coupled"
        )


def check_prompts_only(given: Mapping[str, Any]) -> None:
    """``SettingError`` for a batch of training where `generate` needs one of prompts."""
    if rest := [name for name in ("labels", "position_labels", "sequence_ids") if given.get(name) is not None]:
        raise SettingError(
            f"generate got {', '.join(rest)}, so its rows hold answers already; give a batch of prompts, as "
            "PositionCollator.prompts(rows) makes it"
        )


def check_left_padding(attention_mask: Tensor | None) -> None:
    """``SettingError`` for prompts that are padded on the right, where padding would be continued."""
    if attention_mask is not None and attention_mask.ndim == 2 and not bool(attention_mask[:, -1].all()):
        raise SettingError(
            "a prompt ends with padding, and generate would continue the padding; pad on the left "
            "(tokenizer.padding_side = 'left', or PositionCollator.prompts)"
        )


def check_token_labels(labels: Tensor | None) -> None:
    """``SettingError`` where a training step has ``position_labels`` alone, which no trainer of ours asks for."""
    if labels is None:
        raise SettingError(
            "position_labels came without labels, as from a trainer that computes the loss of tokens itself, and "
            "unshifted; leave label_smoothing_factor at 0, and compute_loss_func out"
        )


def warn_frozen_head(head: nn.Module | None) -> None:
    """Adapters freeze all that is not theirs, and nobody is told."""
    # Sharded, a head may have no weights of its own here.
    weights = [] if head is None else list(head.parameters())
    if weights and torch.is_grad_enabled() and not any(weight.requires_grad for weight in weights):
        warnings.warn(
            "the position head is frozen, so it learns nothing of position_labels; where it should, add "
            "modules_to_save=['position_head', 'segment'] to LoraConfig",
            FrozenHeadWarning,
            stacklevel=3,
        )


def warn_unreachable_ids(head: PositionHead) -> None:
    """IDs without a candidate are left out of the loss, which falls to 0 where that is all of them."""
    warnings.warn(
        f"none of the IDs in position_labels is one that the head {type(head).__name__} can give in this batch, so it "
        "learns nothing. pointer, rank and search choose among the IDs of the prompt: what prompt_mask marks, or what "
        "stands before the first label",
        UnreachableIDsWarning,
        stacklevel=3,
    )


def check_supported_arguments(other: Mapping[str, Any]) -> None:
    """``SettingError`` for what our own decoder, which has no layers of `transformers`, is asked for in vain."""
    if asked := [name for name, value in other.items() if value is not None and value is not False]:
        raise SettingError(
            f"our own decoder does not serve {', '.join(asked)}; leave it out (sequence_ids are what pack_to adds)"
        )


def check_no_replica(model: nn.Module) -> None:
    """``SettingError`` for one of several copies in a process."""
    if getattr(model, "_is_replica", False):
        raise SettingError(
            "torch.nn.DataParallel runs copies of this model that share what they read; start a process for each "
            "device (torchrun, or accelerate launch), or show one device alone"
        )
