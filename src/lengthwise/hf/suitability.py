"""Whether influences can be measured with a model: what is refused, and why."""

import inspect
from typing import Any

import torch
from torch import Tensor

from lengthwise.errors import ModelError
from lengthwise.influence.next_token_model import NextTokenModel

# Layers whose keys can be hidden one by one. A window or a chunk is full attention as long as the context fits in it.
FULL, WINDOWED = {"full_attention", "attention"}, {"sliding_attention", "chunked_attention"}
# What rounding may do to a log-probability (nats), by the model's precision.
ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-6}
COARSE = 0.3


def longest_context(config: Any) -> int | None:
    """The number of positions that a context may use: those of the model, and those that every layer sees whole."""
    limits = [getattr(config, "max_position_embeddings", None)]
    kinds = set(getattr(config, "layer_types", None) or [])
    if not kinds or kinds & WINDOWED:
        limits += [getattr(config, "sliding_window", None), getattr(config, "attention_chunk_size", None)]
    known = [int(limit) for limit in limits if limit]
    return min(known) if known else None


def check_suitable(model: NextTokenModel, config: Any) -> None:
    """Raise ``ModelError`` unless tokens can be hidden and IDs chosen, and both do what they should."""
    kinds = set(getattr(config, "layer_types", None) or [])
    if other := kinds - FULL - WINDOWED:
        raise ModelError(
            f"{model.name} has layers of kind {', '.join(sorted(other))}: what they carry of a token cannot be hidden; "
            "influence needs attention in every layer"
        )
    inner: Any = getattr(model, "model", None)
    if inner is not None and (missing := _missing_arguments(inner)):
        raise ModelError(
            f"{model.name} takes no {' and no '.join(missing)}; influence needs a model that takes both, such as Llama, "
            "Qwen, Mistral, OLMo, GPT-NeoX or GPT-2"
        )
    rounding = ROUNDING.get(inner.dtype, COARSE) if inner is not None else ROUNDING[torch.float32]
    try:
        faults = _faults(model, rounding)
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise ModelError(
            f"{model.name} cannot be asked with a mask and a cache of one's own ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no message'}); choose another model"
        ) from error
    if faults:
        raise ModelError(f"{model.name} cannot be measured exactly: {faults[0]}; choose another model")


def _missing_arguments(inner: Any) -> list[str]:
    known = inspect.signature(inner.forward).parameters
    return [name for name in ("position_ids", "past_key_values") if name not in known]


def _faults(model: NextTokenModel, rounding: float) -> list[str]:
    """What must hold for any model whose tokens can be hidden, on a few tokens with a jump in their IDs."""
    tokens = torch.arange(1, 9) % model.vocabulary_size
    ids = torch.tensor([0, 1, 2, 3, 5, 6, 8, 9])
    far, near = slice(0, 5), slice(5, 8)
    states = model.read(tokens[far], ids[far])

    def alone(keep: list[int]) -> Tensor:
        return model.log_probs(tokens[None, keep], ids[None, keep])[0, 0]

    def after(visible: Tensor) -> Tensor:
        return model.log_probs_after(states, tokens[near], ids[near], visible)

    def differ(one: Tensor, other: Tensor) -> bool:
        return bool((one.exp() - other.exp()).abs().max() > rounding)

    every, none = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.bool)
    some = torch.tensor([[True, True, False, False, False]])
    together = after(torch.cat([every, none, some]))
    # Causality: what the first two tokens' states are does not depend on those behind them.
    return [
        fault
        for fault, there in (
            ("hidden tokens are seen", differ(together[1], alone([5, 6, 7]))),
            ("states read before differ from one pass", differ(together[0], alone(list(range(8))))),
            ("questions asked together change each other", differ(together[2], after(some)[0])),
        )
        if there
    ]
