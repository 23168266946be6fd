"""What the wrapper for PPC is configured with, and what it answers."""

from dataclasses import dataclass
from typing import Any, ClassVar, no_type_check

from huggingface_hub.dataclasses import strict
from jaxtyping import Float, Int
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec
from transformers.modeling_outputs import CausalLMOutputWithPast

from lengthwise.errors import ModelError, SettingError, unknown_name
from lengthwise.position_heads import POSITION_HEADS

LENGTH_SCALINGS = ("none", "log")


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
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        inner = self.text_config
        assert isinstance(inner, PreTrainedConfig)
        self.tie_word_embeddings = bool(getattr(inner, "tie_word_embeddings", False))
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(inner, name, None))

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As anywhere; ``ModelError`` for what another model was saved with."""
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise ModelError(
                f"this is a saved {found}, and no model that predicts IDs; load it as what it is and wrap it"
            )
        return super().from_dict(config_dict, **kwargs)

    def check_options(self) -> None:
        """Raise ``SettingError`` for options that are none."""
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


@dataclass
class PredictivePositionOutput(CausalLMOutputWithPast):
    """The joint loss and its two parts, in nats: of the tokens, and of their IDs.

    ``predicted_position_ids``, of the shape of ``position_labels``, are those that the head would have given the
    labelled tokens; -1 elsewhere. None in training and of packed rows.
    """

    token_loss: Float[Tensor, ""] | None = None
    position_loss: Float[Tensor, ""] | None = None
    predicted_position_ids: Int[Tensor, "*level batch seq"] | None = None
