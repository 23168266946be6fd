"""Checks that an influence study supports a `transformers` model, and an estimate of its rounding error."""

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
from lengthwise.influence.probing.exactness_checks import CALL_ERRORS, check_exactness, first_line, max_difference
from lengthwise.influence.probing.next_token_model import NextTokenModel

# Layer types that can hide single keys. Windowed layers attend to the full context while it fits into the window.
FULL_ATTENTION, WINDOWED_ATTENTION = {"full_attention", "attention"}, {"sliding_attention", "chunked_attention"}
WINDOW_SETTINGS = ("sliding_window", "attention_chunk_size")
# Largest change of earlier logits by a later token that counts as rounding, relative to the largest logit.
LEAK_TOLERANCE, HALF_PRECISION_LEAK_TOLERANCE = 1e-4, 0.02
# Number of forward passes with random rounding, and the safety factor for their largest difference.
NUM_ROUNDING_SAMPLES, ROUNDING_MARGIN = 5, 2.0
# Smallest tolerance (nats), far below the effects that a study measures.
MIN_ROUNDING_ERROR = 1e-3


def narrowest_window(config: Any) -> int | None:
    """Return the smallest attention window (tokens) of a configuration, or None if all layers use full attention."""
    layer_types = set(getattr(config, "layer_types", None) or [])
    if layer_types and not layer_types & WINDOWED_ATTENTION:
        return None
    # GPT-Neo stores its window in another setting.
    has_local_layers = "local" in (getattr(config, "attention_layers", None) or [])
    names = (*WINDOW_SETTINGS, "window_size") if has_local_layers else WINDOW_SETTINGS
    return _smallest(config, *names)


def full_attention_advice(config: Any) -> str:
    """Return the configuration settings that enable full attention in every layer, as text for an error message."""
    if (layers := getattr(config, "layer_types", None)) is not None:
        return f"layer_types=['full_attention'] * {len(layers)}"
    if (layers := getattr(config, "attention_layers", None)) is not None:
        return f"attention_types=[[['global'], {len(layers)}]]"
    return " and ".join(f"{name}=None" for name in WINDOW_SETTINGS if getattr(config, name, None))


def longest_context(config: Any) -> int | None:
    """Return the length (tokens) of the longest context that every layer attends to in full; None without a limit."""
    length_limits = (_smallest(config, "max_position_embeddings"), narrowest_window(config))
    return min((length_limit for length_limit in length_limits if length_limit is not None), default=None)


def _smallest(config: Any, *names: str) -> int | None:
    """Return the smallest of these settings, or None if none is set."""
    values = {name: getattr(config, name, None) for name in names}
    for name, value in values.items():
        if value is not None and type(value) is not int:
            raise ModelError(f"the configuration has the {name} {value!r:.40}; use a whole number")
    return min((value for value in values.values() if value), default=None)


def has_causal_mask_table(model: PreTrainedModel) -> bool:
    """Return True if the model stores a causal mask over token indexes (GPT-Neo), so its tokens cannot be packed."""
    size = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return any(buffer.dtype == torch.bool and buffer.shape[-2:] == (size, size) for buffer in model.buffers())


def check_compatibility(study_model: NextTokenModel, model: PreTrainedModel) -> None:
    """Raise ``ModelError`` unless the model is causal and exact with hidden tokens, custom position IDs and a cache."""
    name = study_model.name
    if isinstance(model, IDGenerationMixin):
        raise ModelError(
            f"{name} is a wrapped model or predicts its position IDs, but a study needs consecutive IDs; use "
            "a causal model without a wrapper, or the run folder that the model was exported from"
        )
    layer_types = set(getattr(model.config.get_text_config(), "layer_types", None) or [])
    if recurrent_types := layer_types - FULL_ATTENTION - WINDOWED_ATTENTION:
        raise ModelError(
            f"{name} has layers of type {', '.join(sorted(recurrent_types))}, which cannot hide single tokens; use a "
            "model with attention in every layer"
        )
    arguments = inspect.signature(model.forward).parameters
    if missing_arguments := [name for name in ("position_ids", "past_key_values") if name not in arguments]:
        raise ModelError(
            f"{name} does not accept {' and '.join(missing_arguments)}; use a model that accepts them, such as Llama, "
            "Qwen, Mistral, OLMo, GPT-NeoX or GPT-2"
        )
    check_causal(name, model)
    check_exactness(study_model)


def check_causal(name: str, model: PreTrainedModel) -> None:
    """Raise ``ModelError`` for a model in which a token changes earlier predictions."""
    try:
        attends_to_later_tokens = _attends_to_later_tokens(model)
    except torch.OutOfMemoryError:
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{name} fails if it is called with only input_ids ({type(error).__name__}: {first_line(error)}); fix its "
            "configuration, or choose another model"
        ) from error
    if attends_to_later_tokens:
        raise ModelError(
            f"{name} is not causal: a token changes earlier predictions; use a causal language model, such as Llama "
            "or GPT-2"
        )


@torch.no_grad()
def _attends_to_later_tokens(model: Any) -> bool:
    """Return True if the last token changes the logits of the first token, in a call without a mask."""
    vocabulary_size = model.config.get_text_config().vocab_size
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5]], device=device_of(model)) % vocabulary_size
    first_logits = model(input_ids=tokens, use_cache=False).logits[:, 0].float()
    tolerance = LEAK_TOLERANCE if model.dtype in (torch.float32, torch.float64) else HALF_PRECISION_LEAK_TOLERANCE
    return bool((first_logits[0] - first_logits[1]).abs().max() > tolerance * first_logits.abs().max())


@torch.no_grad()
def rounding_error(model: nn.Module, predict: Callable[[], Float[Tensor, " vocab"]]) -> float:
    """Estimate the rounding error (nats) of the log-probabilities that ``predict`` returns.

    Each sample multiplies the outputs of all layers by random factors that differ from 1 by at most the machine epsilon
    (stochastic arithmetic: Vignes 1993, A stochastic arithmetic for reliable scientific computation).
    """
    expected_log_probs = predict()
    differences = []
    for seed in range(NUM_ROUNDING_SAMPLES):
        with _random_rounding(model, seed):
            differences.append(max_difference(predict(), expected_log_probs))
    return max(MIN_ROUNDING_ERROR, ROUNDING_MARGIN * max(differences))


@contextmanager
def _random_rounding(model: nn.Module, seed: int) -> Iterator[None]:
    generators: dict[torch.device, torch.Generator] = {}

    def perturb(layer: nn.Module, args: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        if output.device not in generators:
            generators[output.device] = torch.Generator(output.device).manual_seed(seed)
        random_numbers = torch.rand(output.shape, generator=generators[output.device], device=output.device) * 2 - 1
        return (output.double() * (1 + torch.finfo(output.dtype).eps * random_numbers)).to(output.dtype)

    layers = [layer for layer in model.modules() if not list(layer.children()) and not isinstance(layer, nn.Dropout)]
    hooks = [layer.register_forward_hook(perturb) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
