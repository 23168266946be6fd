"""What a collator is refused for: a scheme, or a model that it does not fit."""

from typing import Any

from transformers import PreTrainedConfig

from lengthwise.core.errors import ModelError, SettingError
from lengthwise.hf.suitability import FULL, WINDOWED, narrowest_window
from lengthwise.positions import PositionScheme

# Parts of `Examples` that a column can hold, one number per token.
COLUMNS = ("coupling", "places")
# The others read position IDs that jump as several texts, whatever the mask says, or take no mask of one's own.
ATTENTIONS = (None, "eager", "sdpa")


def check_scheme(scheme: PositionScheme, num_position_ids: int | None) -> None:
    """Raise ``SettingError`` for a scheme whose IDs no column makes, or that lie beyond ``num_position_ids``."""
    if scheme.real_valued:
        raise SettingError(
            f"{scheme.name} gives real numbers and models of transformers take whole IDs; use randomized instead"
        )
    if scheme.needs is not None and scheme.needs not in COLUMNS:
        raise SettingError(f"{scheme.name} needs {scheme.needs}, which no column holds; {' and '.join(COLUMNS)} can be")
    if num_position_ids is None or scheme.num_position_ids is None:
        return
    if scheme.num_position_ids > num_position_ids:
        raise SettingError(
            f"{scheme.name} gives IDs below {scheme.num_position_ids} and num_position_ids is {num_position_ids}; "
            f"set the scheme's to at most {num_position_ids}"
        )


def check_predicts(config: Any, scheme: PositionScheme) -> None:
    """Raise ``ModelError`` where a scheme asks for predicted IDs and the model of a configuration predicts none."""
    if scheme.predicts_ids and not getattr(config, "predicts_ids", False):
        raise ModelError(
            f"{scheme.name} asks the model to predict IDs, and {getattr(config, 'model_type', 'this model')} predicts "
            "none, so it would train without an ID loss; wrap it first (PredictivePositionModel.wrap(model)), or use a "
            "scheme that predicts no IDs, such as Coupled"
        )


def trained_ids(config: PreTrainedConfig, pack_to: int | None) -> int:
    """Return the number of IDs that a model was made for; ``ModelError`` where IDs or masks do not reach attention."""
    attention = getattr(config, "_attn_implementation", None)
    if attention not in ATTENTIONS:
        raise ModelError(
            f"{config.model_type} uses the attention {attention}, which takes IDs that jump for several texts or no "
            'mask of its own; call model.set_attn_implementation("sdpa")'
        )
    text = config.get_text_config()
    trained = getattr(text, "max_position_embeddings", None)
    if trained is None:
        raise ModelError(
            f"{config.model_type} has no max_position_embeddings, so that it may take no position IDs; give a model "
            "that does, such as Llama, Qwen, Mistral, OLMo, GPT-NeoX or GPT-2"
        )
    carried = set(getattr(text, "layer_types", None) or []) - FULL - WINDOWED
    if pack_to is not None and carried:
        raise ModelError(
            f"{config.model_type} has layers of kind {', '.join(sorted(carried))}, which carry a state from one packed "
            "text into the next; leave out pack_to"
        )
    window = narrowest_window(text)
    if pack_to is not None and window is not None and pack_to > window:
        raise SettingError(
            f"pack_to {pack_to} is wider than the window of {window} tokens that some layers of {config.model_type} "
            f"have, and a packed mask takes its place; pack to at most {window}"
        )
    return int(trained)
