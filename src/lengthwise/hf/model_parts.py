"""Helpers for `transformers` models: devices, mixins, captured inputs, and attention with log-length scaling."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lengthwise.core.errors import ModelError

# Attention implementations that accept any mask and do not infer text boundaries from the IDs.
ATTENTIONS_WITH_MASK = ("sdpa", "eager")
# Name of the attention implementation with log-length scaling.
LOG_LENGTH_ATTENTION = "lengthwise_log"


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first weight in memory; offloaded weights move there when they are used."""
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
    """Switch the model to sdpa attention, unless its current attention implementation accepts any mask."""
    if model.config.get_text_config()._attn_implementation not in ATTENTIONS_WITH_MASK:
        model.set_attn_implementation("sdpa")


def active_module(module: Any) -> Any:
    """Return the module, or the copy that active PEFT adapters train instead of it (``modules_to_save``)."""
    adapter_copies = getattr(module, "modules_to_save", None)
    if adapter_copies is None:
        return module
    return module.original_module if module.disable_adapters else adapter_copies[module.active_adapters[0]]


class InputCapture:
    """Forward pre-hook that stores the first argument of a module."""

    def __init__(self) -> None:
        self.value: Tensor | None = None
        self.module: nn.Module | None = None

    def attach(self, module: nn.Module) -> None:
        """Register the hook, unless this module already has it. Adapters may replace a module."""
        if self.module is not module:
            module.register_forward_pre_hook(self)
            self.module = module

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Store the first argument of the call."""
        self.value = args[0]

    def take(self) -> Tensor:
        """Return the stored argument and clear it."""
        value, self.value = self.value, None
        assert value is not None
        return value


class PrecisionMixin(nn.Module):
    """Mixin that keeps the precision of the parts in ``_keep_in_fp32_modules_strict`` when the model is cast."""

    _keep_in_fp32_modules_strict: ClassVar[list[str]]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = {name: self._modules[name] for name in self._keep_in_fp32_modules_strict if name in self._modules}
        self._modules.update(dict.fromkeys(kept))
        try:
            super()._apply(fn, recurse)
        finally:
            self._modules.update(kept)

        def move_to_device(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return tensor.to(result.device) if result.dtype != tensor.dtype else result

        for module in kept.values():
            if module is not None and recurse:
                module._apply(move_to_device)
        return self


class Segment(nn.Module):
    """Learned vector of d_model numbers that is added to the embeddings of response tokens."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model))

    def forward(self, embeddings: Tensor, is_prompt: Tensor) -> Tensor:
        """Return ``embeddings``, with the learned vector added to the tokens outside the prompt."""
        return embeddings + (~is_prompt)[..., None] * self.weight


class EmbeddingMixin(nn.Module):
    """Mixin with the embeddings and the output layer of the wrapped model, ``self.model``."""

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
        output_layer: nn.Module = self.model.get_output_embeddings()
        return output_layer

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the output layer of the wrapped model."""
        self.model.set_output_embeddings(value)

    def _embed(self, tokens: Tensor, is_prompt: Tensor) -> Float[Tensor, "batch new d_model"]:
        embeddings: Tensor = self.get_input_embeddings()(tokens)
        return embeddings if self.segment is None else self.segment(embeddings, is_prompt)

    def _embed_for_head(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        embeddings: Tensor = self.get_input_embeddings()(tokens)
        return embeddings.float()

    def _embed_next(self, tokens: Int[Tensor, "batch query"]) -> Float[Tensor, "batch query d_model"]:
        """Return embeddings of the tokens whose IDs a head predicts; zeros if ``condition_on_token`` is False."""
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
    factor = (_count_visible_keys(query, key, attention_mask) + 1.0).log()
    if reference_length := getattr(module.config, "log_length_from", None):
        factor = (factor / torch.tensor(reference_length + 1.0, device=factor.device).log()).clamp(min=1)
    return sdpa_attention_forward(module, query * factor.to(query.dtype), key, value, attention_mask, **kwargs)


def _count_visible_keys(query: Tensor, key: Tensor, mask: Tensor | None) -> Float[Tensor, "#batch 1 new 1"]:
    num_queries, num_keys = query.shape[2], key.shape[2]
    if mask is None:
        num_visible = torch.arange(num_keys - num_queries + 1, num_keys + 1, device=query.device, dtype=torch.float32)
        return num_visible.view(1, 1, num_queries, 1)
    visible = mask if mask.dtype == torch.bool else mask == 0
    return visible.sum(dim=-1, keepdim=True).float()


@torch.no_grad()
def count_scaled_layers(model: PreTrainedModel) -> int:
    """Return the number of layers that call `log_length_attention`; layers with custom attention code do not."""
    tokens = torch.arange(1, 5, device=device_of(model))[None] % model.config.get_text_config().vocab_size
    num_calls = 0

    def count_calls(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        return log_length_attention(*args, **kwargs)

    AttentionInterface.register(LOG_LENGTH_ATTENTION, count_calls)
    try:
        model.eval()(input_ids=tokens, use_cache=False)
    finally:
        AttentionInterface.register(LOG_LENGTH_ATTENTION, log_length_attention)
    return num_calls


AttentionInterface.register(LOG_LENGTH_ATTENTION, log_length_attention)
AttentionMaskInterface.register(LOG_LENGTH_ATTENTION, sdpa_mask)
