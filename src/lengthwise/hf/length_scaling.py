"""Attention of `transformers` models whose scores grow with the logarithm of the number of visible keys."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lengthwise.hf.devices import device_of

# Under this name a model chooses it, as it would choose "sdpa".
LOG_LENGTH = "lengthwise_log"


def log_length_attention(
    module: nn.Module,
    query: Float[Tensor, "batch heads new d_head"],
    key: Float[Tensor, "batch key_heads key d_head"],
    value: Float[Tensor, "batch key_heads key d_head"],
    attention_mask: Tensor | None,
    **also: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention with queries times ``log(n + 1)``, n being the number of visible keys of each.

    (Scalable softmax: Nakanishi 2025, arXiv 2501.19399.) A model that was trained without it, on texts of
    ``log_length_from`` tokens (an attribute of the model's configuration), gets ``log(n + 1)`` over that of its longest
    text, and 1 below it.
    """
    factor = (_visible(query, key, attention_mask) + 1.0).log()
    if trained := getattr(module.config, "log_length_from", None):
        factor = (factor / torch.tensor(trained + 1.0, device=factor.device).log()).clamp(min=1)
    return sdpa_attention_forward(module, query * factor.to(query.dtype), key, value, attention_mask, **also)


def _visible(query: Tensor, key: Tensor, mask: Tensor | None) -> Float[Tensor, "#batch 1 new 1"]:
    new, keys = query.shape[2], key.shape[2]
    if mask is None:
        return torch.arange(keys - new + 1, keys + 1, device=query.device, dtype=torch.float32).view(1, 1, new, 1)
    seen = mask if mask.dtype == torch.bool else mask == 0
    return seen.sum(dim=-1, keepdim=True).float()


@torch.no_grad()
def scaled_layers(model: PreTrainedModel) -> int:
    """How many layers scale their queries in a call; some models have an attention of their own."""
    tokens = torch.arange(1, 5, device=device_of(model))[None] % model.config.get_text_config().vocab_size
    asked = 0

    def counted(*args: Any, **also: Any) -> Any:
        nonlocal asked
        asked += 1
        return log_length_attention(*args, **also)

    AttentionInterface.register(LOG_LENGTH, counted)
    try:
        model.eval()(input_ids=tokens, use_cache=False)
    finally:
        AttentionInterface.register(LOG_LENGTH, log_length_attention)
    return asked


AttentionInterface.register(LOG_LENGTH, log_length_attention)
AttentionMaskInterface.register(LOG_LENGTH, sdpa_mask)
