"""What a call of a model that predicts IDs is refused for."""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lengthwise.errors import FrozenHeadWarning, SettingError


def check_names_tokens(inputs_embeds: Tensor | None) -> None:
    """``SettingError`` for embeddings in the place of tokens; adapters pass on that there are none."""
    if inputs_embeds is not None:
        raise SettingError("an ID depends on tokens, and inputs_embeds names none; give input_ids")


def check_all_given(given: int, tokens: Int[Tensor, "batch new"], *asked: Tensor | None) -> None:
    """``SettingError`` where IDs are missing in a call that is asked for more than what comes next."""
    if any(each is not None for each in asked):
        raise SettingError(f"labels and packed texts need all IDs, and position_ids has {given} of {tokens.shape[1]}")


def check_below(position_ids: Int[Tensor, "*given"], most: int) -> None:
    """``SettingError`` for IDs that are not below ``most``; a compiled call is not stopped to look."""
    if not torch.compiler.is_compiling() and position_ids.numel() and (largest := int(position_ids.max())) >= most:
        raise SettingError(
            f"position_ids reach {largest} and have to stay below {most}; give smaller ones, or wrap the model with a "
            "larger num_position_ids"
        )


def check_labelled(labels: Tensor | None) -> None:
    """``SettingError`` where a training step has ``position_labels`` alone, which no trainer of ours asks for."""
    if labels is None:
        raise SettingError(
            "position_labels came without labels, as from a trainer that computes the loss of tokens itself, and "
            "unshifted; leave label_smoothing_factor at 0, and compute_loss_func out"
        )


def warn_of_frozen(head: nn.Module | None) -> None:
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


def check_served(other: Mapping[str, Any]) -> None:
    """``SettingError`` for what our own decoder, which has no layers of `transformers`, is asked for in vain."""
    if asked := [name for name, value in other.items() if value is not None and value is not False]:
        raise SettingError(
            f"our own decoder does not serve {', '.join(asked)}; leave it out (sequence_ids are what pack_to adds)"
        )


def check_one_copy(model: nn.Module) -> None:
    """``SettingError`` for one of several copies in a process."""
    if getattr(model, "_is_replica", False):
        raise SettingError(
            "torch.nn.DataParallel runs copies of this model that share what they read; start a process for each "
            "device (torchrun, or accelerate launch), or show one device alone"
        )
