"""Predictive position coupling for any causal `transformers` language model that accepts position IDs."""

import inspect
import math
from dataclasses import fields
from typing import Any, ClassVar, no_type_check

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, Cache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.configuration_utils import SubConfigSpec
from transformers.utils import can_return_tuple
from transformers.utils.generic import TransformersKwargs

from lengthwise.core.errors import ModelError, SettingError, unknown_name_error
from lengthwise.core.type_checks import check_setting_value
from lengthwise.hf.joint_loss import (
    PredictivePositionOutput,
    build_joint_output,
    gather_prompt_keys,
    position_head_precision,
    position_loss,
)
from lengthwise.hf.model_card import ModelCardMixin
from lengthwise.hf.model_inputs import (
    build_attention_mask,
    build_prompt_mask,
    check_id_range,
    check_is_tensor,
    check_labels,
    check_no_embeddings,
    check_not_packed,
    expand_ids,
    packed_texts,
    select_logits,
)
from lengthwise.hf.model_parts import LOG_LENGTH_ATTENTION, KeepPrecisionMixin, device_of, use_maskable_attention
from lengthwise.hf.position_cache import CachedTokens, PositionCache
from lengthwise.hf.position_id_generation import PositionIDGenerationMixin
from lengthwise.hf.position_id_support import (
    check_length_scaling,
    check_log_length_from,
    check_position_id_support,
    check_position_table,
)
from lengthwise.model.position_heads import POSITION_HEADS

LENGTH_SCALINGS = ("none", "log")
# Options of ``wrap``.
OPTIONS = (
    *("head", "num_position_ids", "segments", "length_scaling", "log_length_from"),
    *("condition_on_token", "id_weight", "count_prompt_from"),
)
# Text boundaries that data collators of `transformers` add to packed rows.
PACKING_ARGUMENTS = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
# Arguments that `transformers` passes to a configuration, or adds to its dictionary, in addition to its fields.
EXTRA_ARGUMENTS = {
    "_name_or_path",
    "model_type",
    "attn_implementation",
    "experts_implementation",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "torch_dtype",
}


def _text_model_setting(name: str) -> property:
    return property(
        lambda config: getattr(config.text_config, name), lambda config, value: setattr(config.text_config, name, value)
    )


# The class accepts all entries of a saved configuration, including entries that are not fields.
@no_type_check
@strict
class PredictivePositionConfig(PreTrainedConfig):
    """Configuration of `PredictivePositionModel`: the wrapped model's configuration (``text_config``) and options.

    - ``head``: position head: ``pointer``, ``wide_pointer``, ``state_pointer``, ``rank``, ``increment``, ``search``,
      ``class``, or None to predict no IDs.
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
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    vocab_size = _text_model_setting("vocab_size")
    hidden_size = _text_model_setting("hidden_size")
    num_hidden_layers = _text_model_setting("num_hidden_layers")
    num_attention_heads = _text_model_setting("num_attention_heads")

    def __post_init__(self, **kwargs: Any) -> None:
        if unknown := sorted(kwargs.keys() - EXTRA_ARGUMENTS):
            raise unknown_name_error("option", unknown[0], OPTIONS)
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
            raise unknown_name_error("head", self.head, POSITION_HEADS)
        if self.length_scaling not in LENGTH_SCALINGS:
            raise unknown_name_error("length_scaling", self.length_scaling, LENGTH_SCALINGS)
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


def _active_module(module: Any) -> Any:
    """Return the module, or the copy that active PEFT adapters train instead of it (``modules_to_save``)."""
    adapter_copies = getattr(module, "modules_to_save", None)
    if adapter_copies is None:
        return module
    return module.original_module if module.disable_adapters else adapter_copies[module.active_adapters[0]]


class _InputCapture:
    """Forward pre-hook that stores the first argument of a module."""

    def __init__(self) -> None:
        self.value: Tensor | None = None
        self.module: nn.Module | None = None

    def attach(self, module: nn.Module) -> None:
        """Register the hook, unless this module already has it. Adapters may replace a module."""
        if self.module is not module:
            module.register_forward_pre_hook(self)
            self.module = module

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Store the first argument of the call."""
        self.value = args[0]

    def take(self) -> Tensor:
        """Return the stored argument and clear it."""
        value, self.value = self.value, None
        assert value is not None
        return value


class _Segment(nn.Module):
    """Learned vector of d_model numbers that is added to the embeddings of response tokens."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(d_model))

    def forward(self, embeddings: Tensor, is_prompt: Tensor) -> Tensor:
        """Return ``embeddings``, with the learned vector added to the tokens outside the prompt."""
        return embeddings + (~is_prompt)[..., None] * self.weight


class PredictivePositionModel(
    ModelCardMixin, KeepPrecisionMixin, PositionIDGenerationMixin, PreTrainedModel, GenerationMixin
):
    """Causal language model that also predicts the position ID of each generated token (PPC, predictive coupling).

    ``wrap`` adds a position head to a model; ``from_pretrained`` loads a saved model. The attention mask depends on
    token indexes instead of position IDs, so IDs may repeat, skip values and decrease.
    """

    config_class = PredictivePositionConfig
    config: PredictivePositionConfig
    base_model_prefix = "model"
    model_description: ClassVar[str] = "Causal language model that predicts its position IDs"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True
    # Half precision cannot distinguish many IDs. `KeepPrecisionMixin` and ``from_pretrained`` keep float32.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["position_head"]

    def __init__(self, config: PredictivePositionConfig, model: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        config.check_options()
        self.model = AutoModelForCausalLM.from_config(config.text_config) if model is None else model
        text_config = self.model.config.get_text_config()
        d_model = text_config.hidden_size
        head, num_ids = config.head, config.num_position_ids
        self.position_head = None if head is None else POSITION_HEADS[head](d_model, num_ids)
        self.segment = _Segment(d_model) if config.segments else None
        if config.length_scaling == "log":
            text_config.log_length_from = config.log_length_from
            self.model.set_attn_implementation(LOG_LENGTH_ATTENTION)
        else:
            use_maskable_attention(self.model)
        self._output_layer_input = _InputCapture()
        if model is not None:
            # Prevent `transformers` from initializing the weights of the model again.
            for module_or_parameter in (*model.modules(), *model.parameters()):
                module_or_parameter._is_hf_initialized = True
        self.post_init()

    @classmethod
    def wrap(
        cls,
        model: PreTrainedModel,
        *,
        head: str | None = "pointer",
        num_position_ids: int | None = None,
        segments: bool = False,
        length_scaling: str = "none",
        log_length_from: int | None = None,
        condition_on_token: bool = True,
        id_weight: float = 1.0,
        count_prompt_from: int | None = None,
    ) -> "PredictivePositionModel":
        """Add a position head to a model, without changing its weights. `PredictivePositionConfig` has the options.

        ``num_position_ids`` defaults to the model's ``max_position_embeddings``. ``length_scaling="log"`` needs
        ``log_length_from`` if the weights of the model were loaded. Raises ``ModelError`` for an unsupported model,
        and ``SettingError`` for an invalid option.
        """
        given = locals()
        options = {name: given[name] for name in OPTIONS}
        parameters = inspect.signature(cls.wrap).parameters
        for name, value in options.items():
            check_setting_value(name, value, parameters[name].annotation)
        if length_scaling == "log":
            check_log_length_from(model, log_length_from)
        check_position_id_support(model)
        max_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if num_position_ids is None:
            default_num_ids = PredictivePositionConfig.num_position_ids
            options["num_position_ids"] = default_num_ids if max_positions is None else int(max_positions)
        elif max_positions is not None:
            check_position_table(model, max_positions, num_position_ids)
        # Creating a configuration from another configuration resets the attention.
        attention_name = model.config.get_text_config()._attn_implementation
        config = PredictivePositionConfig(text_config=model.config, **options | {"id_weight": float(id_weight)})
        model.config.get_text_config()._attn_implementation = attention_name
        wrapper = cls(config, model)
        if length_scaling == "log":
            check_length_scaling(model, attention_name)
        wrapper.generation_config = model.generation_config
        # Move only the new modules; the model keeps its device and precision.
        device = device_of(model)
        if wrapper.position_head is not None:
            wrapper.position_head.to(device)
        if wrapper.segment is not None:
            wrapper.segment.to(device=device, dtype=wrapper.get_input_embeddings().weight.dtype)
        return wrapper

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch new"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "rows ids"] | None = None,
        past_key_values: Cache | None = None,
        labels: Int[Tensor, "batch new"] | None = None,
        position_labels: Int[Tensor, "batch new"] | None = None,
        sequence_ids: Int[Tensor, "batch new"] | None = None,
        prompt_mask: Shaped[Tensor, "batch new"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: None = None,
        **kwargs: Any,
    ) -> PredictivePositionOutput:
        """Return the logits, and the joint loss if there are labels (unshifted; -100: not scored).

        ``attention_mask`` (batch, seq) is 0 at padding and includes cached tokens; a 4-D mask is used unchanged.
        ``position_ids`` has one row per sequence, or one row for all. If it is shorter than ``input_ids``, the model
        predicts the missing IDs one by one. ``sequence_ids`` numbers the packed texts of a row (-1: padding); text
        boundaries of `transformers` (``seq_idx``, ``cu_seq_lens_q``) have the same effect. In a call with ``labels``
        and without a mask, IDs that restart as in packed texts also separate texts if the model has no head; with a
        head and without ``position_labels``, they raise ``SettingError``.
        ``prompt_mask`` marks the tokens from which heads choose IDs. It defaults to the tokens before the first label,
        or, without labels, to all tokens of a call without cached tokens.
        """
        check_no_embeddings(inputs_embeds)
        if input_ids is None:
            raise SettingError("input_ids are missing; pass the tokens of each sequence")
        boundaries = {name: kwargs.pop(name) for name in PACKING_ARGUMENTS if name in kwargs}
        self._check_call(kwargs)
        head = _active_module(self.position_head)
        check_labels(head, self.num_position_heads, labels, position_labels, is_training=self.training)
        cache = self.get_or_create_cache(past_key_values, use_cache)
        position_ids = self._resolve_position_ids(input_ids, attention_mask, position_ids, cache, sequence_ids)
        num_ids = 0 if position_ids is None else position_ids.shape[1]
        if position_ids is None or num_ids < input_ids.shape[1]:
            targets = (labels, position_labels, sequence_ids)
            call_inputs = (input_ids, attention_mask, position_ids, cache, prompt_mask)
            return self.forward_token_by_token(*call_inputs, logits_to_keep, *targets, **kwargs)
        # Coupled IDs of one text may restart too, so only IDs of a loss or a training step can mark packed texts.
        is_loss = cache is None and attention_mask is None and (labels is not None or self.training)
        if sequence_ids is None and (boundaries or (is_loss and self.position_head is None)):
            sequence_ids = packed_texts(position_ids, boundaries)
        elif sequence_ids is None and is_loss and position_labels is None:
            check_not_packed(position_ids)
        mask = build_attention_mask(input_ids, attention_mask, cache, sequence_ids, self.dtype)
        is_prompt = build_prompt_mask(input_ids, attention_mask, cache, labels, prompt_mask, sequence_ids)
        # A tensor may exclude the last token, but the next ID depends on the hidden state of this token.
        selects_after_forward = isinstance(logits_to_keep, Tensor) and cache is not None
        needs_all_logits = labels is not None or position_labels is not None or selects_after_forward
        self._output_layer_input.attach(self.get_output_embeddings())
        output = self.model(
            inputs_embeds=self._embed(input_ids, is_prompt),
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=0 if needs_all_logits else logits_to_keep,
            return_dict=True,
            **kwargs,
        )
        hidden = self._output_layer_input.take()
        if cache is not None:
            has_prompt = prompt_mask is not None or labels is not None
            cache.append(CachedTokens(input_ids, position_ids, is_prompt, hidden.detach(), extends_prompt=has_prompt))
        id_losses = []
        if position_labels is not None:
            call = CachedTokens(input_ids, position_ids, is_prompt, hidden)
            loss_inputs = (call, position_labels, num_items_in_batch, sequence_ids)
            id_losses.append(position_loss(head, self._embed_for_head, self._embed_next, *loss_inputs))
        selects = selects_after_forward and labels is None
        return build_joint_output(
            select_logits(output.logits, logits_to_keep) if selects else output.logits,
            labels,
            id_losses,
            num_items_in_batch,
            sequence_ids,
            id_weight=self.config.id_weight,
            past_key_values=cache,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    @property
    def num_position_heads(self) -> int:
        """Number of position heads: 1 or 0."""
        return 0 if self.position_head is None else 1

    def next_position_ids(
        self, past_key_values: PositionCache, tokens: Int[Tensor, "batch 1"]
    ) -> Int[Tensor, "batch 1"]:
        """Return the most likely ID of the new token in each sequence, or the last ID plus one without a head."""
        last_ids = past_key_values.last_ids()
        max_id = self.config.num_position_ids - 1
        if self.position_head is None:
            # Padding after the end of a sequence needs an ID, but this ID has no effect.
            pad_token = self.generation_config.pad_token_id
            check_id_range(last_ids + 1 if pad_token is None else (last_ids + 1)[tokens != pad_token], max_id + 1)
            return (last_ids + 1).clamp(max=max_id)
        head = _active_module(self.position_head)
        hidden = past_key_values.last_hidden().float()
        with position_head_precision(head, hidden.device):
            if past_key_values.prompts is None:
                cached = past_key_values.all_tokens()
                assert cached is not None
                past_key_values.prompts = [gather_prompt_keys(head, self._embed_for_head, cached)]
            id_distribution = head(hidden, last_ids, self._embed_next(tokens), past_key_values.prompts[0])
        return id_distribution.most_likely_ids().clamp(0, max_id)

    def decoding_step_inputs(
        self, tokens: Int[Tensor, "batch new"], cache: PositionCache, attention_mask: Tensor | None
    ) -> dict[str, Any]:
        """Return the attention mask of a decoding step. With a static cache, its shape is constant for compilation."""
        if cache.is_compileable:
            return {"attention_mask": build_attention_mask(tokens, attention_mask, cache, None, self.dtype)}
        return super().decoding_step_inputs(tokens, cache, attention_mask)

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing, because all parts initialize their own weights."""

    def _resolve_position_ids(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: PositionCache | None,
        sequence_ids: Tensor | None,
    ) -> Int[Tensor, "batch ids"] | None:
        """Return the position IDs of each sequence. Without a head, a call with an empty cache has default IDs."""
        is_first_call = cache is None or not cache.has_tokens
        check_is_tensor(position_ids)
        if position_ids is not None:
            if position_ids.is_floating_point():
                raise SettingError(f"position_ids have the type {position_ids.dtype}; use an integer type")
            position_ids = expand_ids(position_ids, len(tokens))
            if (num_ids := position_ids.shape[-1]) > tokens.shape[1]:
                raise SettingError(
                    f"position_ids has {num_ids} IDs for {tokens.shape[1]} tokens; pass one ID per token"
                )
        elif self.position_head is None and sequence_ids is None and is_first_call:
            position_ids = self.default_prompt_ids(tokens, attention_mask)
        # A single ID after a cache is usually predicted; checking it would slow down generation.
        if position_ids is not None and (is_first_call or position_ids.shape[1] > 1):
            check_id_range(position_ids, self.config.num_position_ids)
        return position_ids

    def _check_call(self, kwargs: dict[str, Any]) -> None:
        if getattr(self, "_is_replica", False):
            raise SettingError(
                "torch.nn.DataParallel is not supported, because its copies share state; start one process per device "
                "(torchrun, or accelerate launch), or make one device visible"
            )
        if kwargs and not torch.compiler.is_compiling():
            forward_parameters = inspect.signature(type(self.model).forward).parameters
            known = {*forward_parameters, *TransformersKwargs.__annotations__, "return_dict"}
            if unknown := sorted(kwargs.keys() - known):
                raise SettingError(
                    f"unknown arguments {', '.join(unknown)}; leave them out (forward also accepts position_ids, "
                    "labels, position_labels, sequence_ids and prompt_mask), or set data_collator to a "
                    "PositionCollator, which reads the columns of a data set"
                )
        if self.config.length_scaling == "log" and kwargs.get("output_attentions", self.config.output_attentions):
            raise SettingError(
                "length_scaling='log' computes no attention weights; leave out output_attentions, or wrap with "
                "length_scaling='none' and the attention eager"
            )
        attention = self.model.config.get_text_config()._attn_implementation
        if self.config.length_scaling == "log" and attention != LOG_LENGTH_ATTENTION:
            raise SettingError(
                f"the wrapped model uses the attention {attention}, which disables length_scaling='log'; call "
                f"model.model.set_attn_implementation({LOG_LENGTH_ATTENTION!r})"
            )

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Set the attention implementation. Raises ``SettingError`` if it ignores ``length_scaling="log"``."""
        if self.config.length_scaling == "log" and attn_implementation != LOG_LENGTH_ATTENTION:
            raise SettingError(
                f"attention {attn_implementation} would disable length_scaling='log'; wrap with length_scaling='none'"
            )
        super().set_attn_implementation(attn_implementation, *args, **kwargs)

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer of the wrapped model."""
        output_layer: nn.Module = self.model.get_output_embeddings()
        return output_layer

    def set_output_embeddings(self, value: nn.Module) -> None:
        """Replace the output layer of the wrapped model."""
        self.model.set_output_embeddings(value)

    def _embed(self, tokens: Tensor, is_prompt: Tensor) -> Float[Tensor, "batch new d_model"]:
        embeddings: Tensor = self.get_input_embeddings()(tokens)
        return embeddings if self.segment is None else self.segment(embeddings, is_prompt)

    def _embed_for_head(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        embeddings: Tensor = self.get_input_embeddings()(tokens)
        return embeddings.float()

    def _embed_next(self, tokens: Int[Tensor, "batch query"]) -> Float[Tensor, "batch query d_model"]:
        """Return embeddings of the tokens whose IDs a head predicts; zeros if ``condition_on_token`` is False."""
        embeddings = self._embed_for_head(tokens)
        return embeddings if self.config.condition_on_token else torch.zeros_like(embeddings)
