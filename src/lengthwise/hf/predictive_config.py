"""Configuration and output of `PredictivePositionModel`."""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, no_type_check

from huggingface_hub.dataclasses import strict
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec
from transformers.modeling_outputs import CausalLMOutputWithPast

from lengthwise.core.errors import ModelError, SettingError, unknown_name
from lengthwise.model.position_heads import POSITION_HEADS

LENGTH_SCALINGS = ("none", "log")
# Options of ``wrap``: the allowed types, and their description in error messages.
OPTIONS: dict[str, tuple[tuple[type, ...], str]] = {
    "head": ((str, type(None)), "a name, or None"),
    "num_position_ids": ((int, type(None)), "an integer"),
    "segments": ((bool,), "True or False"),
    "length_scaling": ((str,), "'none' or 'log'"),
    "log_length_from": ((int, type(None)), "an integer, or None"),
    "condition_on_token": ((bool,), "True or False"),
    "id_weight": ((int, float), "a number"),
    "count_prompt_from": ((int, type(None)), "an integer, or None"),
}
# Arguments that `transformers` passes to a configuration in addition to its fields.
EXTRA_ARGUMENTS = {
    "model_type",
    "attn_implementation",
    "experts_implementation",
    "name_or_path",
    "torch_dtype",
    "use_cache",
}


def check_option_types(options: dict[str, Any]) -> None:
    """Raise ``SettingError`` for an option of the wrong type, and ``UnknownNameError`` for an unknown option."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise unknown_name("option", name, OPTIONS)
        allowed_types, description = OPTIONS[name]
        # In Python, True is an int.
        if not isinstance(value, allowed_types) or (isinstance(value, bool) and bool not in allowed_types):
            raise SettingError(f"invalid {name} {value!r} ({type(value).__name__}); use {description}")


# The class accepts all entries of a saved configuration, including entries that are not fields.
@no_type_check
@strict
class PredictivePositionConfig(PreTrainedConfig):
    """Configuration of `PredictivePositionModel`: the wrapped model's configuration (``text_config``) and options.

    - ``head``: position head: ``pointer``, ``wide_pointer``, ``rank``, ``increment``, ``search``, ``class``, or None to
      predict no IDs.
    - ``num_position_ids``: upper bound (exclusive) of the position IDs, also named ``max_position_embeddings``.
    - ``segments``: add a learned vector to the embeddings of response tokens.
    - ``length_scaling``: "none", or "log" to scale the attention scores by the logarithm of the number of visible
      tokens. ``log_length_from`` is the largest number of tokens without scaling; pretrained weights need it.
    - ``condition_on_token``: predict the ID of a token from the embedding of this token too.
    - ``id_weight``: weight of the ID loss. If a trainer passes the number of token labels in a step, both losses are
      divided by this number, so the ID loss counts less if a step has fewer ID labels than token labels.
    - ``count_prompt_from``: first default prompt ID. Without ``position_ids``, prompt IDs are consecutive from this ID.
      With None, a model with a head requires ``position_ids``, and a model without a head counts from 0.
    """

    model_type = "predictive_position"
    attribute_map: ClassVar = {"max_position_embeddings": "num_position_ids"}
    sub_configs_defaults: ClassVar = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="llama")}
    keys_to_ignore_at_inference: ClassVar = ["past_key_values", "token_loss", "position_loss", "predicted_position_ids"]

    text_config: dict[str, Any] | PreTrainedConfig | None = None
    head: str | None = "pointer"
    num_position_ids: int = 2048
    segments: bool = False
    length_scaling: str = "none"
    log_length_from: int | None = None
    condition_on_token: bool = True
    id_weight: float = 1.0
    count_prompt_from: int | None = None
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        check_option_types({name: value for name, value in kwargs.items() if name not in EXTRA_ARGUMENTS})
        super().__post_init__(**kwargs)
        text_config = self.text_config
        assert isinstance(text_config, PreTrainedConfig)
        self.tie_word_embeddings = bool(getattr(text_config, "tie_word_embeddings", False))
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(text_config, name, None))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Create a configuration from a dictionary. Raises ``ModelError`` for a dictionary of another model type."""
        model_type = config_dict.get("model_type", cls.model_type)
        if model_type != cls.model_type:
            raise ModelError(
                f"the saved model has the type {model_type}, not {cls.model_type}; load it with AutoModelForCausalLM, "
                "then pass it to PredictivePositionModel.wrap"
            )
        # Keep the attributes that a trainer added to the configuration, as `transformers` does.
        known_keys = {config_field.name for config_field in fields(cls)} | EXTRA_ARGUMENTS
        result = super().from_dict({name: value for name, value in config_dict.items() if name in known_keys}, **kwargs)
        config = result[0] if isinstance(result, tuple) else result
        for name in sorted(config_dict.keys() - known_keys):
            setattr(config, name, config_dict[name])
        return result

    @property
    def predicts_ids(self) -> bool:
        """True if the model has a position head."""
        return self.head is not None

    @property
    def first_default_prompt_id(self) -> int | None:
        """First default prompt ID, or None if the caller must pass the prompt IDs."""
        if self.count_prompt_from is None and self.head is None:
            return 0
        return self.count_prompt_from

    def check_options(self) -> None:
        """Raise ``SettingError`` for invalid options, and for options that other options make useless."""
        if self.head is not None and self.head not in POSITION_HEADS:
            raise unknown_name("head", self.head, POSITION_HEADS)
        if self.length_scaling not in LENGTH_SCALINGS:
            raise unknown_name("length_scaling", self.length_scaling, LENGTH_SCALINGS)
        if self.log_length_from is not None and (self.length_scaling == "none" or self.log_length_from < 1):
            raise SettingError(
                f"invalid log_length_from {self.log_length_from} with length_scaling={self.length_scaling!r}; use a "
                "positive number of tokens with length_scaling='log'"
            )
        if self.num_position_ids < 1:
            raise SettingError(f"invalid num_position_ids {self.num_position_ids}; use at least 1")
        if not (math.isfinite(self.id_weight) and self.id_weight >= 0):
            raise SettingError(f"invalid id_weight {self.id_weight}; use a finite number, 0 or more")
        if self.head is None and (self.id_weight != 1 or not self.condition_on_token):
            raise SettingError(
                "head=None predicts no IDs, so id_weight and condition_on_token have no effect; remove these options"
            )
        if self.count_prompt_from is not None and not 0 <= self.count_prompt_from < self.num_position_ids:
            max_id = self.num_position_ids - 1
            raise SettingError(f"invalid count_prompt_from {self.count_prompt_from}; use an ID from 0 to {max_id}")


@dataclass
class PredictivePositionOutput(CausalLMOutputWithPast):
    """Model output with both parts of the joint loss (nats): the token loss and the ID loss.

    ``predicted_position_ids`` has the shape of ``position_labels``. It contains the head's predictions at labelled
    tokens, and -1 elsewhere. It is None in training and for packed rows.
    """

    token_loss: Float[Tensor, ""] | None = None
    position_loss: Float[Tensor, ""] | None = None
    predicted_position_ids: Int[Tensor, "*level batch seq"] | None = None
