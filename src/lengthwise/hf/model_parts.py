"""Parts of `transformers` models: devices, mixins, captured inputs, and attention with log-length scaling."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lengthwise.core.errors import ModelError

# Implementations of attention that take any mask and read no text boundaries from the IDs.
MASK_ATTENTIONS = ("sdpa", "eager")
# Name of the implementation with log-length scaling.
LOG_LENGTH = "lengthwise_log"


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first weight in memory; offloaded weights are moved there when used."""
    devices = (weight.device for weight in model.parameters() if weight.device.type != "meta")
    return next(devices, torch.device("cpu"))


def check_one_device(name: str, model: nn.Module) -> None:
    """Raise ``ModelError`` for a model with layers on several devices."""
    devices = sorted({str(weight.device) for weight in model.parameters() if weight.device.type != "meta"})
    if len(devices) > 1:
        raise ModelError(
            f"{name} is split over {', '.join(devices)}, but a position head needs its first and last layer on one "
            "device; load it onto one device (layers may be offloaded to the CPU or to disk)"
        )


def use_mask_attention(model: PreTrainedModel) -> None:
    """Set sdpa attention, unless the current attention takes any mask."""
    if model.config.get_text_config()._attn_implementation not in MASK_ATTENTIONS:
        model.set_attn_implementation("sdpa")


def active_module(module: Any) -> Any:
    """Return the module, or the copy of it that adapters train."""
    copies = getattr(module, "modules_to_save", None)
    if copies is None:
        return module
    return module.original_module if module.disable_adapters else copies[module.active_adapters[0]]


class InputCapture:
    """Forward pre-hook that stores the first argument of a module."""

    def __init__(self) -> None:
        self.value: Tensor | None = None
        self.module: nn.Module | None = None

    def attach(self, module: nn.Module) -> None:
        """Register the hook, unless it is on this module already; adapters may have replaced the module."""
        if self.module is not module:
            module.register_forward_pre_hook(self)
            self.module = module

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Store the first argument of the call."""
        self.value = args[0]

    def take(self) -> Tensor:
        """Return the stored argument and forget it."""
        value, self.value = self.value, None
        assert value is not None
        return value


class PrecisionMixin(nn.Module):
    """Mixin that keeps the precision of ``_keep_in_fp32_modules_strict`` parts when the model is cast."""

    _keep_in_fp32_modules_strict: ClassVar[list[str]]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        parts = {name: self._modules[name] for name in self._keep_in_fp32_modules_strict if name in self._modules}
        self._modules.update(dict.fromkeys(parts))
        try:
            super()._apply(fn, recurse)
        finally:
            self._modules.update(parts)

        def move(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return tensor.to(result.device) if result.dtype != tensor.dtype else result

        for part in parts.values():
            if part is not None and recurse:
                part._apply(move)
        return self


class Segment(nn.Module):
    """One learned vector, added to the embeddings of response tokens."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model))

    def forward(self, embeddings: Tensor, is_prompt: Tensor) -> Tensor:
        """Return the embeddings, with the vector added outside the prompt."""
        return embeddings + (~is_prompt)[..., None] * self.weight


class EmbeddingMixin(nn.Module):
    """Embeddings and output layer of the wrapped model, ``self.model``."""

    config: Any
    model: PreTrainedModel
    segment: Segment | None

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of the wrapped model."""
        embeddings: nn.Module = self.model.get_input_embeddings()
        return embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embeddings of the wrapped model."""
        self.model.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer of the wrapped model."""
        embeddings: nn.Module = self.model.get_output_embeddings()
        return embeddings

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the output layer of the wrapped model."""
        self.model.set_output_embeddings(value)

    def _embed(self, tokens: Tensor, is_prompt: Tensor) -> Float[Tensor, "batch new d_model"]:
        embeddings: Tensor = self.get_input_embeddings()(tokens)
        return embeddings if self.segment is None else self.segment(embeddings, is_prompt)

    def _embed_for_head(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """Return token embeddings in the precision of a position head."""
        embeddings: Tensor = self.get_input_embeddings()(tokens)
        return embeddings.float()

    def _embed_next(self, tokens: Int[Tensor, "batch query"]) -> Float[Tensor, "batch query d_model"]:
        """Return embeddings of the tokens whose IDs a head predicts; zeros without ``condition_on_token``."""
        embeddings = self._embed_for_head(tokens)
        return embeddings if self.config.condition_on_token else torch.zeros_like(embeddings)


def log_length_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads new d_head"],
    key: Float[Tensor, "batch key_heads key d_head"],
    value: Float[Tensor, "batch key_heads key d_head"],
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Multiply each query by ``log(n + 1)``, where n is the number of its visible keys, and call sdpa attention.

    Scalable softmax (Nakanishi 2025, arXiv 2501.19399). For a model trained without scaling on texts of N tokens, set
    ``log_length_from`` = N in its configuration. The factor is then ``max(1, log(n + 1) / log(N + 1))``.
    """
    factor = (_num_visible(query, key, attention_mask) + 1.0).log()
    if length := getattr(module.config, "log_length_from", None):
        factor = (factor / torch.tensor(length + 1.0, device=factor.device).log()).clamp(min=1)
    return sdpa_attention_forward(module, query * factor.to(query.dtype), key, value, attention_mask, **kwargs)


def _num_visible(query: Tensor, key: Tensor, mask: Tensor | None) -> Float[Tensor, "#batch 1 new 1"]:
    new, keys = query.shape[2], key.shape[2]
    if mask is None:
        return torch.arange(keys - new + 1, keys + 1, device=query.device, dtype=torch.float32).view(1, 1, new, 1)
    visible = mask if mask.dtype == torch.bool else mask == 0
    return visible.sum(dim=-1, keepdim=True).float()


@torch.no_grad()
def num_scaled_layers(model: PreTrainedModel) -> int:
    """Return the number of layers that call `log_length_attention`; models with their own attention code do not."""
    tokens = torch.arange(1, 5, device=device_of(model))[None] % model.config.get_text_config().vocab_size
    calls = 0

    def count_calls(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return log_length_attention(*args, **kwargs)

    AttentionInterface.register(LOG_LENGTH, count_calls)
    try:
        model.eval()(input_ids=tokens, use_cache=False)
    finally:
        AttentionInterface.register(LOG_LENGTH, log_length_attention)
    return calls


AttentionInterface.register(LOG_LENGTH, log_length_attention)
AttentionMaskInterface.register(LOG_LENGTH, sdpa_mask)
