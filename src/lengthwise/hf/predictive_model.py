"""Predictive position coupling for any causal `transformers` language model that accepts position IDs."""

from typing import Any, ClassVar

from jaxtyping import Int, Shaped
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Cache, GenerationMixin, PreTrainedModel
from transformers.utils import can_return_tuple

from lengthwise.core.errors import SettingError
from lengthwise.hf import input_checks, model_parts
from lengthwise.hf.id_generation import IDGenerationMixin
from lengthwise.hf.joint_loss import (
    HeadInputs,
    gather_prompts,
    head_precision,
    joint_loss,
    position_loss,
    shift_labels,
    token_loss,
)
from lengthwise.hf.model_card import ModelCardMixin
from lengthwise.hf.model_inputs import build_attention_mask, build_prompt_mask, expand_ids, select_logits
from lengthwise.hf.model_parts import LOG_LENGTH_ATTENTION, EmbeddingMixin, InputCapture, PrecisionMixin, Segment
from lengthwise.hf.position_cache import CachedTokens, PositionCache
from lengthwise.hf.position_id_support import (
    check_length_scaling,
    check_log_length_from,
    check_position_id_support,
    check_position_table,
)
from lengthwise.hf.predictive_config import PredictivePositionConfig, PredictivePositionOutput, check_option_types
from lengthwise.model.position_heads import POSITION_HEADS


class PredictivePositionModel(
    ModelCardMixin, PrecisionMixin, IDGenerationMixin, EmbeddingMixin, PreTrainedModel, GenerationMixin
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
    # Half precision cannot distinguish many IDs. `PrecisionMixin` and ``from_pretrained`` keep float32.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["position_head"]

    def __init__(self, config: PredictivePositionConfig, model: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        config.check_options()
        self.model = AutoModelForCausalLM.from_config(config.text_config) if model is None else model
        text_config = self.model.config.get_text_config()
        d_model = text_config.hidden_size
        head, num_ids = config.head, config.num_position_ids
        self.position_head = None if head is None else POSITION_HEADS[head](d_model, num_ids)
        self.segment = Segment(d_model) if config.segments else None
        if config.length_scaling == "log":
            text_config.log_length_from = config.log_length_from
            self.model.set_attn_implementation(LOG_LENGTH_ATTENTION)
        else:
            model_parts.use_mask_attention(self.model)
        self._output_layer_input = InputCapture()
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
        options = {
            "head": head,
            "num_position_ids": num_position_ids,
            "segments": segments,
            "length_scaling": length_scaling,
            "log_length_from": log_length_from,
            "condition_on_token": condition_on_token,
            "id_weight": id_weight,
            "count_prompt_from": count_prompt_from,
        }
        check_option_types(options)
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
        device = model_parts.device_of(model)
        if wrapper.position_head is not None:
            wrapper.position_head.to(device)
        if wrapper.segment is not None:
            wrapper.segment.to(device=device, dtype=wrapper.get_input_embeddings().weight.dtype)
        return wrapper

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch new"],
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
        predicts the missing IDs one by one. ``sequence_ids`` numbers the packed texts of a row (-1: padding).
        ``prompt_mask`` marks the tokens from which heads choose IDs. It defaults to the tokens before the first label,
        or, without labels, to all tokens of a call without cached tokens.
        """
        input_checks.check_no_embeddings(inputs_embeds)
        self._check_call(labels, position_labels, kwargs)
        cache = self.open_cache(past_key_values, use_cache)
        position_ids = self._resolve_position_ids(input_ids, attention_mask, position_ids, cache, sequence_ids)
        num_ids = 0 if position_ids is None else position_ids.shape[1]
        if position_ids is None or num_ids < input_ids.shape[1]:
            input_checks.check_all_ids(num_ids, input_ids, labels, position_labels, sequence_ids)
            output = self.forward_token_by_token(input_ids, attention_mask, position_ids, cache, prompt_mask, **kwargs)
            output.logits = select_logits(output.logits, logits_to_keep)
            return output
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
        loss_of_tokens = loss_of_ids = None
        if labels is not None:
            loss_of_tokens = token_loss(output.logits, shift_labels(labels, sequence_ids), num_items_in_batch)
        if position_labels is not None and self.position_head is not None:
            head_inputs = HeadInputs(hidden, input_ids, position_ids, is_prompt, position_labels)
            head_inputs = head_inputs if sequence_ids is None else head_inputs.unpack(sequence_ids)
            head = model_parts.active_module(self.position_head)
            loss_of_ids = position_loss(head, self._embed_for_head, self._embed_next, head_inputs, num_items_in_batch)
        selects = selects_after_forward and labels is None
        logits = select_logits(output.logits, logits_to_keep) if selects else output.logits
        return PredictivePositionOutput(
            loss=joint_loss(loss_of_tokens, loss_of_ids, self.config.id_weight),
            logits=logits,
            past_key_values=cache,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
            token_loss=loss_of_tokens,
            position_loss=None if loss_of_ids is None else loss_of_ids.loss,
            predicted_position_ids=loss_of_ids.predicted_ids if loss_of_ids and sequence_ids is None else None,
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
            input_checks.check_range(
                last_ids + 1 if pad_token is None else (last_ids + 1)[tokens != pad_token], max_id + 1
            )
            return (last_ids + 1).clamp(max=max_id)
        head = model_parts.active_module(self.position_head)
        hidden = past_key_values.last_hidden().float()
        with head_precision(head, hidden.device):
            if past_key_values.prompts is None:
                cached = past_key_values.all_tokens()
                assert cached is not None
                prompt_inputs = cached.tokens, cached.position_ids, cached.is_prompt
                past_key_values.prompts = [gather_prompts(head, self._embed_for_head, *prompt_inputs)]
            id_distribution = head(hidden, last_ids, self._embed_next(tokens), past_key_values.prompts[0])
        return id_distribution.most_likely_ids().clamp(0, max_id)

    def step_inputs(
        self, tokens: Int[Tensor, "batch new"], cache: PositionCache, attention_mask: Tensor | None
    ) -> dict[str, Any]:
        """Return the attention mask of a decoding step. With a static cache, its shape is constant for compilation."""
        if cache.is_compileable:
            return {"attention_mask": build_attention_mask(tokens, attention_mask, cache, None, self.dtype)}
        return super().step_inputs(tokens, cache, attention_mask)

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
        input_checks.check_is_tensor(position_ids)
        if position_ids is not None:
            if position_ids.is_floating_point():
                raise SettingError(f"position_ids have the type {position_ids.dtype}; use an integer type")
            position_ids = expand_ids(position_ids, len(tokens))
            input_checks.check_num_ids(position_ids.shape[-1], tokens)
        elif self.position_head is None and sequence_ids is None and is_first_call:
            position_ids = self.default_prompt_ids(tokens, attention_mask)
        # A single ID after a cache is usually predicted; checking it would slow down generation.
        if position_ids is not None and (is_first_call or position_ids.shape[1] > 1):
            input_checks.check_range(position_ids, self.config.num_position_ids)
        return position_ids

    def _check_call(self, labels: Tensor | None, position_labels: Tensor | None, kwargs: dict[str, Any]) -> None:
        input_checks.check_no_replica(self)
        input_checks.check_known_arguments(kwargs, self.model)
        input_checks.check_log_attention(
            self.config.length_scaling, self.model.config.get_text_config()._attn_implementation
        )
        input_checks.check_has_head(self.num_position_heads, position_labels)
        if not self.training:
            return
        head = model_parts.active_module(self.position_head)
        input_checks.check_id_training(head, labels, position_labels)
        if position_labels is not None:
            input_checks.check_token_labels(labels)
            input_checks.warn_frozen_head(head)

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Set the attention implementation. Raises ``SettingError`` if it ignores ``length_scaling="log"``."""
        if self.config.length_scaling == "log" and attn_implementation != LOG_LENGTH_ATTENTION:
            raise SettingError(
                f"attention {attn_implementation} would disable length_scaling='log'; wrap with length_scaling='none'"
            )
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
