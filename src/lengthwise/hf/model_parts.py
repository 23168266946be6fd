"""Devices and precision of `transformers` models, and attention with log-length scaling."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

# Attention implementations that accept any mask and do not infer text boundaries from the IDs.
ATTENTIONS_WITH_MASK = ("sdpa", "eager")
# Name of the attention implementation with log-length scaling.
LOG_LENGTH_ATTENTION = "lengthwise_log"


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first weight in memory; offloaded weights move there when they are used."""
    devices = (weight.device for weight in model.parameters() if weight.device.type != "meta")
    return next(devices, torch.device("cpu"))


def use_maskable_attention(model: PreTrainedModel) -> None:
    """Switch the model to sdpa attention, unless its current attention implementation accepts any mask."""
    if model.config.get_text_config()._attn_implementation not in ATTENTIONS_WITH_MASK:
        model.set_attn_implementation("sdpa")


class KeepPrecisionMixin(nn.Module):
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
    if attention_mask is None:
        num_queries, num_keys = query.shape[2], key.shape[2]
        num_visible = torch.arange(num_keys - num_queries + 1, num_keys + 1, device=query.device)[:, None]
    else:
        visible = attention_mask if attention_mask.dtype == torch.bool else attention_mask == 0
        num_visible = visible.sum(dim=-1, keepdim=True)
    factor = (num_visible.float() + 1.0).log()
    if reference_length := getattr(module.config, "log_length_from", None):
        factor = (factor / torch.tensor(reference_length + 1.0, device=factor.device).log()).clamp(min=1)
    return sdpa_attention_forward(module, query * factor.to(query.dtype), key, value, attention_mask, **kwargs)


@torch.no_grad()
def count_log_scaled_layers(model: PreTrainedModel) -> int:
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
