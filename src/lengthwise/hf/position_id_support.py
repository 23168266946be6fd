"""Checks that a model and a position scheme support custom position IDs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from lengthwise.core.errors import LengthwiseError, ModelError, SettingError
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.language_model import CALL_ERRORS, check_exact_hiding, first_line
from lengthwise.hf.causal_lm import (
    FULL_ATTENTION,
    WINDOWED_ATTENTION,
    CausalLM,
    full_attention_advice,
    smallest_attention_window,
)
from lengthwise.hf.model_parts import (
    ATTENTIONS_WITH_MASK,
    LOG_LENGTH_ATTENTION,
    count_log_scaled_layers,
    device_of,
    use_maskable_attention,
)
from lengthwise.hf.position_id_generation import PositionIDGenerationMixin
from lengthwise.positions import DiscoveredCoupling, PositionScheme

# Extra rows that a position table may have for padding.
SPARE_ROWS = 2
# Attributes of `Examples` that a data set column can provide, with one integer per token.
SCHEME_COLUMNS = ("coupling", "step_index")


def check_position_id_support(model: PreTrainedModel) -> None:
    """Raise ``ModelError`` unless the model supports a position head.

    Unsupported models include classes outside `transformers`, models on several devices, models that count positions
    themselves, attention windows by token index, and a load-balancing loss that depends on the attention mask.
    """
    _check_class(model)
    config = model.config.get_text_config()
    name = _model_name(config)
    devices = sorted({str(weight.device) for weight in model.parameters() if weight.device.type != "meta"})
    if len(devices) > 1:
        raise ModelError(
            f"{name} is split over {', '.join(devices)}, but a position head needs its first and last layer on one "
            "device; load it onto one device (layers may be offloaded to the CPU or to disk)"
        )
    if window := smallest_attention_window(config):
        raise ModelError(
            f"{name} attends to the last {window} tokens by token index, regardless of their IDs; use full attention "
            f"({full_attention_advice(config)} in its configuration), or choose another model"
        )
    if getattr(config, "output_router_logits", False):
        raise ModelError(
            f"the load-balancing loss of {name} depends on the attention mask, which the wrapper changes; set "
            "output_router_logits=False in its configuration"
        )
    rope_type = str((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default"))
    if rope_type in ("longrope", "dynamic"):
        raise ModelError(
            f"{name} changes its rotary angles with the largest ID of a call (rope_type {rope_type}), so a cache would "
            "mix different angles; use a model with default, linear, llama3 or yarn angles"
        )
    # A position head has the requirements of a study: hidden tokens, IDs with gaps, and an exact cache.
    _call_and_restore(model, lambda: check_exact_hiding(CausalLM(model, name)))
    check_uses_position_ids(model)


def _check_class(model: Any) -> None:
    if hasattr(model, "get_base_model"):
        raise ModelError(
            "this model has adapters; wrap the base model first, then add them: "
            "get_peft_model(PredictivePositionModel.wrap(model), ...)"
        )
    if isinstance(model, PositionIDGenerationMixin):
        raise ModelError(
            f"this {type(model).__name__} is wrapped already, or is a decoder of this library; use it without wrapping"
        )
    if not isinstance(model, PreTrainedModel):
        raise ModelError(f"{type(model).__name__} is not a transformers model; load one with AutoModelForCausalLM")
    if model.get_output_embeddings() is None:
        raise ModelError(f"{type(model).__name__} has no output layer; load the model with AutoModelForCausalLM")


def check_uses_position_ids(model: PreTrainedModel) -> None:
    """Raise ``ModelError`` if position IDs do not change predictions; models with offloaded weights are not checked."""
    if any(weight.device.type == "meta" or not weight.numel() for weight in model.parameters()):
        return
    if not _call_and_restore(model, lambda: _uses_position_ids(model)):
        raise ModelError(
            f"{_model_name(model.config.get_text_config())} accepts position_ids but ignores them (ALiBi, for example, "
            "counts token indexes); use a model with rotary or learned positions, such as Llama or GPT-NeoX"
        )


def _call_and_restore(model: PreTrainedModel, function: Callable[[], Any]) -> Any:
    """Call a function, then restore the model's modes and attention. Raises ``ModelError`` if the call fails."""
    config = model.config.get_text_config()
    attention = config._attn_implementation
    training_modes = [(submodule, submodule.training) for submodule in model.modules()]
    try:
        return function()
    except (LengthwiseError, torch.OutOfMemoryError):
        raise
    except CALL_ERRORS as error:
        raise ModelError(
            f"{_model_name(config)} cannot be called with position IDs and a mask ({type(error).__name__}: "
            f"{first_line(error)}); use a model such as Llama, Qwen, OLMo or GPT-NeoX"
        ) from None
    finally:
        for submodule, was_training in training_modes:
            submodule.training = was_training
        if attention != model.config.get_text_config()._attn_implementation:
            model.set_attn_implementation(attention)


def _model_name(config: Any) -> str:
    return str(config.name_or_path or config.model_type)


def check_length_scaling(model: PreTrainedModel, previous_attention: str) -> None:
    """Raise ``SettingError`` if a layer ignores log-length scaling, after setting ``previous_attention`` again."""
    config = model.config.get_text_config()
    try:
        if _call_and_restore(model, lambda: count_log_scaled_layers(model)) < config.num_hidden_layers:
            raise SettingError(
                f"length_scaling='log' has no effect in {config.model_type}, which has its own attention code; leave "
                "length_scaling out, or use a model such as Llama, Qwen, OLMo or GPT-NeoX"
            )
    except BaseException:
        model.set_attn_implementation(previous_attention)
        raise


def check_log_length_from(model: PreTrainedModel, log_length_from: int | None) -> None:
    """Raise ``SettingError`` if log scaling without a reference length would change what a loaded model learned."""
    config = model.config.get_text_config()
    if log_length_from is not None or config._attn_implementation == LOG_LENGTH_ATTENTION:
        return
    # `transformers` marks the parameters that it reads from a file; a name also has a model with random weights.
    if any(getattr(parameter, "_is_hf_initialized", False) for parameter in model.parameters()):
        max_positions = getattr(config, "max_position_embeddings", None)
        example = "" if max_positions is None else f", for example log_length_from={max_positions}"
        raise SettingError(
            f"{_model_name(config)} has trained weights, and length_scaling='log' alone would change all its "
            f"predictions; set log_length_from to the number of tokens of its longest training texts{example}"
        )


def check_position_table(model: PreTrainedModel, max_positions: int, num_position_ids: int) -> None:
    """Raise ``SettingError`` for more IDs than the model has table rows; computed angles have no table."""
    token_embeddings = model.get_input_embeddings()
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    learned_rows = [len(table.weight) for table in tables if table is not token_embeddings]
    # Tables of angles, as in GPT-J.
    computed_rows = [len(table) for name, table in model.named_buffers() if name.endswith("embed_positions")]
    row_counts = learned_rows + computed_rows
    has_table = any(max_positions <= num_rows <= max_positions + SPARE_ROWS for num_rows in row_counts)
    if num_position_ids > max_positions and has_table:
        raise SettingError(
            f"num_position_ids {num_position_ids} exceeds the model's table of {max_positions} positions; use at most "
            f"{max_positions}, or a model that computes rotary angles"
        )


@torch.no_grad()
def _uses_position_ids(model: Any) -> bool:
    """Return True if other IDs change the prediction, or if the check means nothing: other tokens do not change it."""
    model.eval()
    use_maskable_attention(model)
    device = device_of(model)
    tokens = torch.tensor([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [5, 3, 2, 4, 1]], device=device)
    ids = torch.tensor([[0, 1, 2, 3, 4], [0, 2, 2, 1, 5], [0, 1, 2, 3, 4]], device=device)
    tokens = tokens % model.config.get_text_config().vocab_size
    # With a mask, `transformers` does not search the IDs for packed texts.
    inputs = {"input_ids": tokens, "position_ids": ids, "attention_mask": torch.ones_like(ids)}
    logits, logits_of_other_ids, logits_of_other_tokens = model(**inputs, use_cache=False).logits[:, -1]
    return not torch.equal(logits, logits_of_other_ids) or torch.equal(logits, logits_of_other_tokens)


@check_arguments
def check_scheme(scheme: PositionScheme, num_position_ids: int | None) -> None:
    """Raise ``SettingError`` for a scheme that collators do not support, or with IDs beyond ``num_position_ids``."""
    if scheme.real_valued:
        raise SettingError(
            f"{scheme.name} assigns real-valued IDs, but transformers models accept integers; use the scheme randomized"
        )
    if isinstance(scheme, DiscoveredCoupling):
        raise SettingError(
            "the rule of discovered counts the tokens of its task, not those of a tokenizer; write the coupling into a "
            "file with lengthwise couple FILE.jsonl --out COUPLED.jsonl, and use this file with the scheme predicted"
        )
    if scheme.needs is not None and scheme.needs not in SCHEME_COLUMNS:
        raise SettingError(
            f"{scheme.name} needs {scheme.needs}, which no data set column provides; use a scheme that needs one "
            f"of {', '.join(SCHEME_COLUMNS)}"
        )
    if num_position_ids is not None and (scheme.num_position_ids or 0) > num_position_ids:
        raise SettingError(
            f"{scheme.name} assigns IDs below {scheme.num_position_ids}, but num_position_ids is {num_position_ids}; "
            f"set the scheme's num_position_ids to at most {num_position_ids}"
        )


def check_id_prediction(config: Any, scheme: PositionScheme) -> None:
    """Raise ``ModelError`` if the scheme needs predicted IDs, but the model predicts no IDs."""
    if scheme.predicts_ids and not getattr(config, "predicts_ids", False):
        raise ModelError(
            f"{scheme.name} needs a model that predicts IDs, but {getattr(config, 'model_type', 'this model')} "
            "predicts no IDs and would train without an ID loss; wrap it first (PredictivePositionModel.wrap(model)), "
            "or use a scheme without predicted IDs, such as Coupled"
        )


def position_id_limit(config: PreTrainedConfig, pack_to: int | None) -> int:
    """Return the model's number of position IDs; raise ``ModelError`` if it ignores masks or cannot pack rows."""
    attention = getattr(config, "_attn_implementation", None)
    if attention not in (None, *ATTENTIONS_WITH_MASK):
        raise ModelError(
            f"{config.model_type} uses the attention implementation '{attention}', which ignores the mask or treats "
            'gaps in the IDs as text boundaries; call model.set_attn_implementation("sdpa")'
        )
    text_config = config.get_text_config()
    # A wrapped model has its own bound, which can differ from the bound of the text model in it.
    max_num_ids = getattr(config, "num_position_ids", None) or getattr(text_config, "max_position_embeddings", None)
    if max_num_ids is None:
        raise ModelError(
            f"{config.model_type} has no max_position_embeddings, so it may not support position IDs; use a model "
            "such as Llama, Qwen, Mistral, OLMo, GPT-NeoX or GPT-2"
        )
    recurrent_types = set(getattr(text_config, "layer_types", None) or []) - FULL_ATTENTION - WINDOWED_ATTENTION
    if pack_to is not None and recurrent_types:
        raise ModelError(
            f"{config.model_type} has layers of type {', '.join(sorted(recurrent_types))}, which carry a state from "
            "one packed text into the next; leave out pack_to"
        )
    window = smallest_attention_window(text_config)
    if pack_to is not None and window is not None and pack_to > window:
        raise SettingError(
            f"pack_to {pack_to} exceeds the attention window of {window} tokens in {config.model_type}, but a packed "
            f"mask would replace this window; use at most {window}"
        )
    return int(max_num_ids)
