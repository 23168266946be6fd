"""What the wrapper for PPC is configured with, and what it answers."""

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
# The options of ``wrap``: the types of each, and what an error calls them.
OPTIONS: dict[str, tuple[tuple[type, ...], str]] = {
    "head": ((str, type(None)), "a name, or None"),
    "num_position_ids": ((int, type(None)), "a whole number"),
    "segments": ((bool,), "True or False"),
    "length_scaling": ((str,), "'none' or 'log'"),
    "log_length_from": ((int, type(None)), "a whole number, or None"),
    "condition_on_token": ((bool,), "True or False"),
    "id_weight": ((int, float), "a number"),
    "count_prompt_from": ((int, type(None)), "a whole number, or None"),
}
# What `transformers` itself hands to a configuration besides its fields.
INHERITED = {"model_type", "attn_implementation", "experts_implementation", "name_or_path", "torch_dtype", "use_cache"}


def check_types(options: dict[str, Any]) -> None:
    """Raise ``SettingError`` for an option of the wrong type, and ``UnknownNameError`` for one that does not exist."""
    for name, value in options.items():
        if name not in OPTIONS:
            raise unknown_name("option", name, OPTIONS)
        types, description = OPTIONS[name]
        # True is an int to Python.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise SettingError(f"{name} is {value!r} ({type(value).__name__}); use {description}")


# What is saved has more than the fields, and the class takes it all.
@no_type_check
@strict
class PredictivePositionConfig(PreTrainedConfig):
    """What `PredictivePositionModel` adds to the model of ``text_config``.

    ``head`` is one of ours (``pointer``, ``rank``, ``increment``, ``search``, ``class``), or None for a model whose IDs
    are given. IDs stay below ``num_position_ids``. ``segments`` adds a learned vector to the embeddings of the
    response. ``length_scaling`` is "none" or "log"; "log" leaves texts of up to ``log_length_from`` tokens alone, where
    that is named. ``condition_on_token`` lets an ID depend on the token that has it; ``id_weight`` is the weight of the
    ID loss. Under a trainer that says how many labels a step has, both losses are divided by that number: where fewer
    IDs than tokens are scored, theirs weighs as much less.

    ``count_prompt_from`` is the ID of the first prompt token of a model whose prompts count up in training (0, 1, 2,
    ...); calls without ``position_ids`` then count from it. None: such calls raise an error. A model without a head
    counts from 0 unless another number is set.
    """

    model_type = "predictive_position"
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
        check_types({name: value for name, value in kwargs.items() if name not in INHERITED})
        super().__post_init__(**kwargs)
        inner = self.text_config
        assert isinstance(inner, PreTrainedConfig)
        self.tie_word_embeddings = bool(getattr(inner, "tie_word_embeddings", False))
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(inner, name, None))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in `transformers`; ``ModelError`` for the configuration of another kind of model."""
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise ModelError(
                f"this is a saved {found}, and no model that predicts IDs; load it as what it is and wrap it"
            )
        # Trainers leave attributes of their own in a configuration; they are kept, as in `transformers`.
        known = {part.name for part in fields(cls)} | INHERITED
        extra = {name: value for name, value in config_dict.items() if name not in known}
        made = super().from_dict({name: value for name, value in config_dict.items() if name in known}, **kwargs)
        config = made[0] if isinstance(made, tuple) else made
        for name, value in extra.items():
            setattr(config, name, value)
        return made

    @property
    def predicts_ids(self) -> bool:
        """Whether the model has a position head."""
        return self.head is not None

    @property
    def first_counted_id(self) -> int | None:
        """The first ID of a prompt that comes without any; None where a prompt has to have its own."""
        if self.count_prompt_from is None and self.head is None:
            return 0
        return self.count_prompt_from

    def check_options(self) -> None:
        """Raise ``SettingError`` for values that no option takes, and for options that would have no effect."""
        if self.head is not None and self.head not in POSITION_HEADS:
            raise unknown_name("head", self.head, POSITION_HEADS)
        if self.length_scaling not in LENGTH_SCALINGS:
            raise unknown_name("length_scaling", self.length_scaling, LENGTH_SCALINGS)
        if self.log_length_from is not None and (self.length_scaling == "none" or self.log_length_from < 1):
            raise SettingError(
                f"log_length_from {self.log_length_from} scales nothing; use a number of tokens with "
                f"length_scaling='log'"
            )
        if self.num_position_ids < 1:
            raise SettingError(f"num_position_ids {self.num_position_ids} leaves no ID; use at least 1")
        if not (math.isfinite(self.id_weight) and self.id_weight >= 0):
            raise SettingError(f"id_weight {self.id_weight} is no weight of a loss; use 0 or more")
        if self.head is None and (self.id_weight != 1 or not self.condition_on_token):
            raise SettingError(
                "head=None predicts no IDs, so id_weight and condition_on_token do nothing; leave them out"
            )
        if self.count_prompt_from is not None and not 0 <= self.count_prompt_from < self.num_position_ids:
            last = self.num_position_ids - 1
            raise SettingError(f"count_prompt_from {self.count_prompt_from} is no ID of this model; use 0 to {last}")


@dataclass
class PredictivePositionOutput(CausalLMOutputWithPast):
    """The joint loss and its two parts, in nats: of the tokens, and of their IDs.

    ``predicted_position_ids``, of the shape of ``position_labels``, are those that the head would have given the
    labelled tokens; -1 elsewhere. None in training and of packed rows.
    """

    token_loss: Float[Tensor, ""] | None = None
    position_loss: Float[Tensor, ""] | None = None
    predicted_position_ids: Int[Tensor, "*level batch seq"] | None = None
