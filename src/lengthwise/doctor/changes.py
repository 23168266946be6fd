"""Changes of a model, one per possible cause of a failure at long contexts, as edits of its configuration.

An edited model is what `transformers` builds from the edited configuration and the same weights, so a change that helps
here helps after an edit of ``config.json``.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from lengthwise.hf.causal_lm import WINDOW_SETTINGS, CausalLM, smallest_attention_window
from lengthwise.hf.model_parts import LOG_LENGTH_ATTENTION, count_log_scaled_layers

# Layers of a model with several kinds of attention that read far tokens.
FAR_LAYERS = "full_attention"
# Numbers of first tokens that stay if the middle is dropped.
NUM_FIRST_TOKENS = 64
# Names of changes that other changes contain, or that contain others.
DROPPED, RESTORED = "first tokens kept, middle dropped", "angles from the configuration"
SCALED = "its rotary angles at these distances did not occur in training"
KEPT_ROPE_SETTINGS = ("rope_theta", "partial_rotary_factor")
# Values of rope_theta in published models; a converted model may have lost its own.
COMMON_THETAS = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: settings of the configuration to replace, or a change of the tokens or IDs of each window.

    ``cause`` completes the sentence "The model fails because ...". ``kept_first`` is the number of first tokens to keep
    when the middle is dropped (None: the window is unchanged), and ``first_token`` the one to put first in each window.
    A change that repairs a fault at all lengths is ``everywhere``, so it is measured at the shortest length. A placebo
    should have no effect.
    """

    name: str
    cause: str
    edit: Mapping[str, Any] = field(default_factory=dict)
    attention: str | None = None
    kept_first: int | None = None
    first_token: int | None = None
    shifts_ids: bool = False
    everywhere: bool = False
    is_placebo: bool = False

    @property
    def is_of_input(self) -> bool:
        """True if the change replaces tokens or IDs, and leaves the model as it is."""
        return self.kept_first is not None or self.first_token is not None or self.shifts_ids

    @property
    def explains_length(self) -> bool:
        """True if the change may help at one length and not at another."""
        return not self.is_placebo and not self.everywhere

    def lines(self) -> list[str]:
        """Return the lines of ``config.json`` to write."""
        return [f'"{name}": {json.dumps(value)}' for name, value in self.edit.items()]


def rope_settings(config: PreTrainedConfig) -> dict[str, Any] | None:
    """Return the rotary settings of the layers that read far tokens, or None for a model without rotary encoding."""
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        return None
    settings = parameters.get(FAR_LAYERS, parameters)
    return dict(settings) if settings and "rope_theta" in settings else None


def list_changes(
    model: PreTrainedModel | None, trained: int, *, has_start: bool = True
) -> tuple[list[Change], list[str]]:
    """Return the changes for a model, the most promising first, and a sentence per change that is impossible.

    ``model`` is None for a run of this library, whose encoding is fixed by training. ``has_start`` is True if the
    tokenizer starts each text with a special token.
    """
    changes, impossible = list[Change](), list[str]()
    shift = Change(
        name="shifted IDs", cause="its predictions depend on absolute position IDs", shifts_ids=True, is_placebo=True
    )
    dropped = Change(
        name=DROPPED,
        cause="more tokens than it was trained on disturb its attention",
        kept_first=NUM_FIRST_TOKENS,
    )
    if model is None:
        return [dropped, shift], ["A run of this library keeps the encoding of its training; train it on longer texts."]
    config = model.config.get_text_config()
    if (rope := rope_settings(config)) is None:
        impossible.append(
            "The model has no rotary encoding, so its position IDs cannot be scaled; only shorter inputs or training "
            "can help."
        )
    else:
        theta, kept = rope["rope_theta"], {name: rope[name] for name in KEPT_ROPE_SETTINGS if name in rope}

        def add(
            name: str, max_positions: int, cause: str = SCALED, *, everywhere: bool = False, **settings: Any
        ) -> None:
            edited = {**kept, **settings}
            if FAR_LAYERS in config.rope_parameters:
                edited = {**config.rope_parameters, FAR_LAYERS: edited}
            edit = {"rope_parameters": edited, "max_position_embeddings": max_positions}
            changes.append(Change(name=name, cause=cause, edit=edit, everywhere=everywhere))

        add("YaRN 2x", 2 * trained, rope_type="yarn", factor=2.0, original_max_position_embeddings=trained)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
        if dim > 2:
            # The scaling starts at max_position_embeddings.
            add("dynamic NTK 2x", trained, rope_type="dynamic", factor=2.0)
            add("NTK 2x", 2 * trained, rope_type="default", rope_theta=theta * 2 ** (dim / (dim - 2)))
        else:
            impossible.append(f"NTK scaling divides by zero for {dim} rotary features per head, so it was left out.")
        cause = "its rotary angles in memory are not those of its file"
        changes.append(Change(name=RESTORED, cause=cause))
        add("compressed IDs 2x", 2 * trained, rope_type="linear", factor=2.0)
        add("YaRN 4x", 4 * trained, rope_type="yarn", factor=4.0, original_max_position_embeddings=trained)
        add("compressed IDs 4x", 4 * trained, rope_type="linear", factor=4.0)
        if rope.get("rope_type", "default") == "default":
            cause, limit = "its rope_theta is not that of its training", config.max_position_embeddings
            for other in sorted({*COMMON_THETAS} - {theta}):
                add(f"rope_theta {other:,.0f}", limit, cause, everywhere=True, rope_type="default", rope_theta=other)
    if smallest_attention_window(config) is not None:
        widened = {name: 2 * value for name in WINDOW_SETTINGS if (value := getattr(config, name, None))}
        changes.insert(1, Change(name="attention window 2x", cause="its attention window is too short", edit=widened))
    if _supports_log_scaling(model):
        changes.append(
            Change(
                name="log-length scaling",
                cause="its attention spreads over more keys than in training",
                edit={"log_length_from": trained},
                attention=LOG_LENGTH_ATTENTION,
            )
        )
    else:
        impossible.append("The attention code of the model does not support log-length scaling.")
    changes.insert(min(2, len(changes)), dropped)
    if not has_start and isinstance(config.bos_token_id, int):
        token, cause = config.bos_token_id, "its tokenizer omits the start token"
        changes.append(Change(name=f"start token {token}", cause=cause, first_token=token, everywhere=True))
    return [*changes, shift], impossible


def _supports_log_scaling(model: PreTrainedModel) -> bool:
    attention = model.config.get_text_config()._attn_implementation
    try:
        model.set_attn_implementation(LOG_LENGTH_ATTENTION)
        return count_log_scaled_layers(model) > 0
    except (ValueError, RuntimeError, TypeError):
        return False
    finally:
        model.set_attn_implementation(attention)


@torch.no_grad()
def build_edited_model(model: PreTrainedModel, change: Change, name: str) -> CausalLM:
    """Return the model that `transformers` loads from the edited configuration; it shares the weights of ``model``."""
    config: PreTrainedConfig = copy.deepcopy(model.config)
    for setting, value in copy.deepcopy(dict(change.edit)).items():
        setattr(config.get_text_config(), setting, value)
    settings: Any = logging
    verbosity, has_progress_bar = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        edited: Any = type(model).from_pretrained(None, config=config, state_dict=model.state_dict(), dtype=model.dtype)
    finally:
        settings.set_verbosity(verbosity)
        if has_progress_bar:
            settings.enable_progress_bar()
    causal = CausalLM(edited.to(next(model.parameters()).device), f"{name} with {change.name}")
    if change.attention is not None:
        causal.model.set_attn_implementation(change.attention)
    return causal
