"""Checks that influence can be measured with a model, and the rounding error of its predictions."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from lengthwise.core.errors import ModelError
from lengthwise.hf.id_generation import IDGenerationMixin
from lengthwise.hf.model_parts import device_of
from lengthwise.influence.probing.exactness_checks import CALL_ERRORS, check_exact, first_line, max_difference
from lengthwise.influence.probing.next_token_model import NextTokenModel

# Layer types with keys that can be hidden. A window or chunk is full attention while the context fits in it.
FULL, WINDOWED = {"full_attention", "attention"}, {"sliding_attention", "chunked_attention"}
WINDOWS = ("sliding_window", "attention_chunk_size")
# Largest effect of a later token on earlier logits that rounding explains, relative to the largest logit.
LEAK_TOLERANCE, COARSE_LEAK_TOLERANCE = 1e-4, 0.02
# Passes with random rounding errors, and the safety factor on their largest difference.
ROUNDING_SAMPLES, ROUNDING_MARGIN = 5, 2.0
# Smallest tolerance (nats), far below every result of a study.
MIN_ROUNDING_ERROR = 1e-3


def narrowest_window(config: Any) -> int | None:
    """Return the smallest attention window (tokens) of a configuration; None if all layers attend to everything."""
    kinds = set(getattr(config, "layer_types", None) or [])
    if kinds and not kinds & WINDOWED:
        return None
    # GPT-Neo has its own setting.
    names = (*WINDOWS, "window_size") if "local" in (getattr(config, "attention_layers", None) or []) else WINDOWS
    windows = (getattr(config, name, None) for name in names)
    return min((int(window) for window in windows if window), default=None)


def full_context_setting(config: Any) -> str:
    """Return the settings that give every layer of a configuration full attention."""
    if (layers := getattr(config, "layer_types", None)) is not None:
        return f"layer_types=['full_attention'] * {len(layers)}"
    if (layers := getattr(config, "attention_layers", None)) is not None:
        return f"attention_types=[[['global'], {len(layers)}]]"
    return " and ".join(f"{name}=None" for name in WINDOWS if getattr(config, name, None))


def longest_context(config: Any) -> int | None:
    """Return the longest context (tokens) that every layer sees in full; None without a limit."""
    limits = (getattr(config, "max_position_embeddings", None), narrowest_window(config))
    return min((int(limit) for limit in limits if limit), default=None)


def masks_by_index(model: PreTrainedModel) -> bool:
    """Return True for a model with its own table of visible token indexes, such as GPT-Neo.

    The tokens of a call must then have the same indexes as in the text.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return any(table.dtype == torch.bool and table.shape[-2:] == (positions, positions) for table in model.buffers())


def check_compatibility(model: NextTokenModel, inner: PreTrainedModel) -> None:
    """Raise ``ModelError`` unless the model supports hidden tokens and custom position IDs exactly."""
    if isinstance(inner, IDGenerationMixin):
        raise ModelError(
            f"{model.name} is wrapped or predicts its position IDs, but a study uses IDs that count up; use a plain "
            "causal model, or the run folder of the export"
        )
    kinds = set(getattr(inner.config.get_text_config(), "layer_types", None) or [])
    if recurrent := kinds - FULL - WINDOWED:
        raise ModelError(
            f"{model.name} has layers of type {', '.join(sorted(recurrent))}, whose state cannot hide a token; use a "
            "model with attention in every layer"
        )
    arguments = inspect.signature(inner.forward).parameters
    if missing := [name for name in ("position_ids", "past_key_values") if name not in arguments]:
        raise ModelError(
            f"{model.name} does not take {' and '.join(missing)}; use a model that does, such as Llama, Qwen, Mistral, "
            "OLMo, GPT-NeoX or GPT-2"
        )
    check_causal(model.name, inner)
    check_exact(model)


def check_causal(name: str, inner: PreTrainedModel) -> None:
    """Raise ``ModelError`` for a model in which a token changes earlier predictions."""
    try:
        sees_ahead = _sees_ahead(inner)
    except torch.OutOfMemoryError:
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{name} cannot be called with tokens alone ({type(error).__name__}: {first_line(error)}); fix its "
            "configuration, or choose another model"
        ) from error
    if sees_ahead:
        raise ModelError(
            f"{name} is not causal: a token changes earlier predictions; use a causal language model, such as Llama "
            "or GPT-2"
        )


@torch.no_grad()
def _sees_ahead(inner: Any) -> bool:
    """Return True if the last token changes the first logits, in a call without a mask."""
    vocabulary = inner.config.get_text_config().vocab_size
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]], device=device_of(inner)) % vocabulary
    first = inner(input_ids=tokens, use_cache=False).logits[:, 0].float()
    tolerance = LEAK_TOLERANCE if inner.dtype in (torch.float32, torch.float64) else COARSE_LEAK_TOLERANCE
    return bool((first[0] - first[1]).abs().max() > tolerance * first.abs().max())


@torch.no_grad()
def rounding_error(model: nn.Module, predict: Callable[[], Float[Tensor, " vocab"]]) -> float:
    """Return the largest difference (nats) of a prediction that rounding explains.

    Each sample multiplies the outputs of all layers by random factors of up to one machine precision (stochastic
    arithmetic: Vignes 1993, A stochastic arithmetic for reliable scientific computation).
    """
    expected = predict()
    differences = []
    for seed in range(ROUNDING_SAMPLES):
        with _random_rounding(model, seed):
            differences.append(max_difference(predict(), expected))
    return max(MIN_ROUNDING_ERROR, ROUNDING_MARGIN * max(differences))


@contextmanager
def _random_rounding(model: nn.Module, seed: int) -> Iterator[None]:
    generators: dict[torch.device, torch.Generator] = {}

    def perturb(layer: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        if output.device not in generators:
            generators[output.device] = torch.Generator(output.device).manual_seed(seed)
        factor = torch.rand(output.shape, generator=generators[output.device], device=output.device) * 2 - 1
        return (output.double() * (1 + torch.finfo(output.dtype).eps * factor)).to(output.dtype)

    layers = [layer for layer in model.modules() if not list(layer.children()) and not isinstance(layer, nn.Dropout)]
    hooks = [layer.register_forward_hook(perturb) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
