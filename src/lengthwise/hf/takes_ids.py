"""Whether position IDs of one's own reach all that a model does with positions."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lengthwise.core.errors import LengthwiseError, ModelError, SettingError
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.devices import check_one_device, device_of
from lengthwise.hf.id_generation import PredictsIDs
from lengthwise.hf.length_scaling import scaled_layers
from lengthwise.hf.suitability import narrowest_window, whole_context

SPARE = 2


def check_takes_ids(model: PreTrainedModel) -> None:
    """Raise ``ModelError`` with the reason.

    It is no plain model of `transformers`, is on several devices, counts positions itself, looks back by token index,
    or balances experts by the mask of a call.
    """
    _check_plain(model)
    config = model.config.get_text_config()
    name = _name_of(config)
    check_one_device(name, model)
    if window := narrowest_window(config):
        raise ModelError(
            f"{name} looks back {window} tokens by token index, whatever their IDs; give it the whole context "
            f"({whole_context(config)} in its configuration), or choose another model"
        )
    if getattr(config, "output_router_logits", False):
        raise ModelError(
            f"{name} balances its experts by the mask that it is called with, and would read ours wrongly; set "
            "output_router_logits=False in its configuration"
        )
    _check_angles(config)
    # Asked as for influence: tokens can be hidden, IDs can jump, and with a cache it is the same.
    _asked(model, name, lambda: CausalLM(model, name))
    check_follows_ids(model)


def _check_plain(model: Any) -> None:
    """Raise ``ModelError`` for what is no model of `transformers`, or one that is wrapped already."""
    if hasattr(model, "get_base_model"):
        raise ModelError(
            "this model has adapters; wrap the model within first and add them afterwards: "
            "get_peft_model(PredictivePositionModel.wrap(model), ...)"
        )
    if isinstance(model, PredictsIDs):
        raise ModelError(
            f"this {type(model).__name__} is wrapped already, or has a position head of its own; use it as it is, or "
            "wrap a plain causal model"
        )
    if not isinstance(model, PreTrainedModel):
        raise ModelError(f"{type(model).__name__} is no model of transformers; give one that AutoModelForCausalLM made")


def _check_angles(config: Any) -> None:
    """Raise ``ModelError`` for a model whose angles depend on the IDs of a call."""
    rope = str((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default"))
    if rope in ("longrope", "dynamic"):
        raise ModelError(
            f"{_name_of(config)} turns by other angles once a call has large IDs (rope_type {rope}), so that a cache "
            "would hold keys of both kinds; give a model with default, linear, llama3 or yarn angles"
        )


def check_follows_ids(model: PreTrainedModel) -> None:
    """Raise ``ModelError`` for a model that predicts the same whatever IDs it is given.

    One whose weights are elsewhere (sharded, or not loaded yet) is not asked.
    """
    if any(weight.device.type == "meta" or not weight.numel() for weight in model.parameters()):
        return
    name = _name_of(model.config.get_text_config())
    if not _asked(model, name, lambda: _follows_ids(model)):
        raise ModelError(
            f"{name} takes position_ids and does not use them: it counts positions itself (as ALiBi by token "
            "index does); give a model with rotary or learned positions, such as Llama or GPT-NeoX"
        )


def _asked(model: PreTrainedModel, name: str, ask: Callable[[], Any]) -> Any:
    """The answer; the model is left as it was. ``ModelError`` for one that cannot be asked so."""
    attention = model.config.get_text_config()._attn_implementation
    modes = [(part, part.training) for part in model.modules()]
    try:
        return ask()
    except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, ArithmeticError) as error:
        if isinstance(error, (LengthwiseError, torch.OutOfMemoryError)):
            raise
        line = str(error).strip().split("\n")[0][:160]
        raise ModelError(
            f"{name} cannot be asked with IDs and a mask of one's own ({type(error).__name__}: {line}); give a model "
            "such as Llama, Qwen, OLMo or GPT-NeoX"
        ) from None
    finally:
        for part, training in modes:
            part.training = training
        if attention != model.config.get_text_config()._attn_implementation:
            model.set_attn_implementation(attention)


def _name_of(config: Any) -> str:
    return str(config.name_or_path or config.model_type)


def check_scales(model: PreTrainedModel, before: str) -> None:
    """Raise ``SettingError`` for a model with an attention of its own, which does not ask which one is set.

    It gets back the attention that it had ``before``.
    """
    config = model.config.get_text_config()
    found = 0
    try:
        found = _asked(model, _name_of(config), lambda: scaled_layers(model))
    finally:
        if found < config.num_hidden_layers:
            model.set_attn_implementation(before)
    if found < config.num_hidden_layers:
        raise SettingError(
            f"length_scaling='log' does nothing in {config.model_type}, which has an attention of its own; leave it "
            "out, or choose another model, such as a Llama, Qwen, OLMo or GPT-NeoX"
        )


def check_table(model: PreTrainedModel, most: int, num_position_ids: int) -> None:
    """Raise ``SettingError`` for IDs beyond those that a model has a table of; computed angles have no end."""
    tokens = model.get_input_embeddings()
    learned = [len(part.weight) for part in model.modules() if isinstance(part, nn.Embedding) and part is not tokens]
    # Of GPT-J and its like: angles that are looked up.
    computed = [len(table) for name, table in model.named_buffers() if name.endswith("embed_positions")]
    # A table may hold a few more, which stand for fill.
    if num_position_ids > most and any(most <= rows <= most + SPARE for rows in learned + computed):
        raise SettingError(
            f"num_position_ids {num_position_ids} is more than the {most} positions that the model has a table "
            f"of; use at most {most}, or a model that computes rotary angles"
        )


@torch.no_grad()
def _follows_ids(model: Any) -> bool:
    """Whether the same tokens under other IDs get another prediction, where other tokens do."""
    model.eval()
    if model.config.get_text_config()._attn_implementation not in ("sdpa", "eager"):
        # The others take no mask of one's own.
        model.set_attn_implementation("sdpa")
    device = device_of(model)
    tokens = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [5, 3, 2, 4, 1]], device=device)
    ids = torch.tensor([[0, 1, 2, 3, 4], [0, 2, 2, 1, 5], [0, 1, 2, 3, 4]], device=device)
    tokens = tokens % model.config.get_text_config().vocab_size
    # With a mask, if of ones, no packed texts are looked for in the IDs.
    asked = {"input_ids": tokens, "position_ids": ids, "attention_mask": torch.ones_like(ids)}
    same, moved, other = model(**asked, use_cache=False).logits[:, -1]
    return not torch.equal(same, moved) or torch.equal(same, other)
