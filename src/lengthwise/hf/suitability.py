"""Whether a model can be asked with IDs and masks of one's own: what is refused, and why."""

import inspect
from typing import Any

import torch
from transformers import PreTrainedModel

from lengthwise.core.errors import ModelError
from lengthwise.hf.devices import device_of
from lengthwise.hf.id_generation import PredictsIDs
from lengthwise.influence.probing.exactness import CALL_ERRORS, check_exact, first_line
from lengthwise.influence.probing.next_token_model import NextTokenModel

# Layers whose keys can be hidden one by one. A window or a chunk is full attention as long as the context fits in it.
FULL, WINDOWED = {"full_attention", "attention"}, {"sliding_attention", "chunked_attention"}
WINDOWS = ("sliding_window", "attention_chunk_size")
# What a later token may do to earlier logits, as a share of the largest of them: rounding alone.
AHEAD, COARSE_AHEAD = 1e-4, 0.02


def narrowest_window(config: Any) -> int | None:
    """The number of tokens that the layers with a window see; ``None`` without such layers."""
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds and not kinds & WINDOWED:
        return None
    # As GPT-Neo calls it.
    names = (*WINDOWS, "window_size") if "local" in (getattr(config, "attention_layers", None) or []) else WINDOWS
    windows = (getattr(config, name, None) for name in names)
    return min((int(window) for window in windows if window), default=None)


def whole_context(config: Any) -> str:
    """What to set in a configuration so that no layer has a window."""
    if (layers := getattr(config, "layer_types", None)) is not None:
        return f"layer_types=['full_attention'] * {len(layers)}"
    if (layers := getattr(config, "attention_layers", None)) is not None:
        return f"attention_types=[[['global'], {len(layers)}]]"
    return " and ".join(f"{name}=None" for name in WINDOWS if getattr(config, name, None))


def longest_context(config: Any) -> int | None:
    """The number of positions that a context may use: those of the model, and those that every layer sees whole."""
    limits = (getattr(config, "max_position_embeddings", None), narrowest_window(config))
    return min((int(limit) for limit in limits if limit), default=None)


def masks_by_index(model: PreTrainedModel) -> bool:
    """Return True for a model with tables of which token index sees which, such as GPT-Neo, beside the mask of a call.

    Its tokens must have the index in a call that they have in the text.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return any(table.dtype == torch.bool and table.shape[-2:] == (positions, positions) for table in model.buffers())


def check_suitable(model: NextTokenModel, inner: PreTrainedModel) -> None:
    """Raise ``ModelError`` unless tokens can be hidden and IDs chosen, and both do what they should."""
    if isinstance(inner, PredictsIDs):
        raise ModelError(
            f"{model.name} predicts its position IDs or is wrapped to do so, and influence is measured under counted "
            "IDs; give a plain causal model, or the run folder that this one was exported from"
        )
    kinds = set(getattr(inner.config.get_text_config(), "layer_types", None) or [])
    if other := kinds - FULL - WINDOWED:
        raise ModelError(
            f"{model.name} has layers of kind {', '.join(sorted(other))}: what they carry of a token cannot be "
            "hidden, and knows no IDs; give a model with attention in every layer"
        )
    if missing := _missing_arguments(inner):
        raise ModelError(
            f"{model.name} takes no {' and no '.join(missing)}; give a model that takes both, such as Llama, Qwen, "
            "Mistral, OLMo, GPT-NeoX or GPT-2"
        )
    check_causal(model.name, inner)
    check_exact(model)


def check_causal(name: str, inner: PreTrainedModel) -> None:
    """Raise ``ModelError`` for a model in which a token changes what is predicted before it."""
    try:
        sees_ahead = _sees_ahead(inner)
    except torch.OutOfMemoryError:
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{name} cannot be run on tokens alone ({type(error).__name__}: {first_line(error)}); set what it asks "
            "for, or choose another model"
        ) from error
    if sees_ahead:
        raise ModelError(
            f"{name} is no causal model: a token changes what is predicted before it; give one that writes from "
            "left to right, such as a Llama or GPT-2"
        )


@torch.no_grad()
def _sees_ahead(inner: Any) -> bool:
    """Whether another last token changes what the first one gets, without a mask, as a model is trained."""
    vocabulary = inner.config.get_text_config().vocab_size
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]], device=device_of(inner)) % vocabulary
    first = inner(input_ids=tokens, use_cache=False).logits[:, 0].float()
    allowed = AHEAD if inner.dtype in (torch.float32, torch.float64) else COARSE_AHEAD
    return bool((first[0] - first[1]).abs().max() > allowed * first.abs().max())


def _missing_arguments(inner: Any) -> list[str]:
    known = inspect.signature(inner.forward).parameters
    return [name for name in ("position_ids", "past_key_values") if name not in known]
