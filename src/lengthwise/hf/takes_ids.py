"""Whether position IDs of one's own reach all that a model does with positions."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lengthwise.errors import ModelError, SettingError
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.devices import check_one_device, device_of
from lengthwise.hf.masks import causal_mask
from lengthwise.hf.suitability import narrowest_window

SPARE = 2


def check_takes_ids(model: PreTrainedModel) -> None:
    """Raise ``ModelError`` with the reason.

    That is: the model is on several devices, counts positions itself, or looks back by token index.
    """
    config = model.config.get_text_config()
    name = str(config.name_or_path or config.model_type)
    check_one_device(name, model)
    if window := narrowest_window(config):
        raise ModelError(
            f"{name} looks back {window} tokens by token index, whatever their IDs; give it the whole context "
            "(sliding_window=None in its configuration), or choose another model"
        )
    rope = str((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default"))
    if rope in ("longrope", "dynamic"):
        raise ModelError(
            f"{name} turns by other angles once a call has large IDs (rope_type {rope}), so that a cache would hold "
            "keys of both kinds; give a model with default, linear, llama3 or yarn angles"
        )
    modes, attention = [(part, part.training) for part in model.modules()], config._attn_implementation
    try:
        # Asked as for influence: tokens can be hidden, IDs can jump, and with a cache it is the same.
        CausalLM(model, name)
        if not _follows_ids(model):
            raise ModelError(
                f"{name} takes position_ids and does not use them: it counts positions itself (as ALiBi by token "
                "index does); give a model with rotary or learned positions, such as Llama or GPT-NeoX"
            )
    finally:
        for part, training in modes:
            part.training = training
        if attention != config._attn_implementation:
            model.set_attn_implementation(attention)


def check_table(model: PreTrainedModel, most: int, num_position_ids: int) -> None:
    """Raise ``SettingError`` for IDs beyond those that a model has learned vectors for; angles have no such end."""
    tokens = model.get_input_embeddings()
    tables = (part for part in model.modules() if isinstance(part, nn.Embedding) and part is not tokens)
    # A table may hold a few more, which stand for fill.
    if num_position_ids > most and any(most <= table.num_embeddings <= most + SPARE for table in tables):
        raise SettingError(
            f"num_position_ids {num_position_ids} is more than the {most} positions that the model has learned vectors "
            f"for; use at most {most}, or a model with rotary positions"
        )


@torch.no_grad()
def _follows_ids(model: Any) -> bool:
    """Whether the same tokens under other IDs get another prediction."""
    device = device_of(model)
    tokens = torch.arange(1, 6, device=device)[None] % model.config.get_text_config().vocab_size
    ids = torch.tensor([[0, 1, 2, 3, 4], [0, 2, 2, 1, 5]], device=device)
    mask = causal_mask(torch.ones_like(ids, dtype=torch.bool), dtype=model.dtype)
    made = model(input_ids=tokens.expand(2, -1), position_ids=ids, attention_mask=mask, use_cache=False)
    return not torch.equal(made.logits[0, -1], made.logits[1, -1])
