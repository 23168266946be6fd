"""Predictive position coupling for any causal language model of `transformers` that takes position IDs."""

from typing import Any, ClassVar

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers.utils import can_return_tuple

from lengthwise.core.errors import SettingError
from lengthwise.hf.id_generation import IDGenerationMixin
from lengthwise.hf.input_checks import (
    check_all_ids,
    check_has_head,
    check_id_training,
    check_known_arguments,
    check_log_attention,
    check_no_embeddings,
    check_no_replica,
    check_range,
    check_token_labels,
    warn_frozen_head,
)
from lengthwise.hf.joint_loss import (
    Asked,
    foretold,
    gather_prompts,
    head_precision,
    joint_loss,
    position_loss,
    token_loss,
)
from lengthwise.hf.model_inputs import build_attention_mask, build_prompt_mask, expand_ids, select_logits
from lengthwise.hf.model_parts import LOG_LENGTH, EmbeddingMixin, InputCapture, PrecisionMixin, Segment, device_of
from lengthwise.hf.position_cache import PositionCache, Read
from lengthwise.hf.position_id_support import check_length_scaling, check_position_id_support, check_position_table
from lengthwise.hf.predictive_config import PredictivePositionConfig, PredictivePositionOutput, check_types
from lengthwise.hf.saving import ModelCardMixin
from lengthwise.model.position_heads import POSITION_HEADS, PositionHead


class PredictivePositionModel(
    ModelCardMixin, PrecisionMixin, IDGenerationMixin, EmbeddingMixin, PreTrainedModel, GenerationMixin
):
    """A causal language model that also predicts the position ID of each token it writes (PPC, section 5.2).

    ``wrap`` puts it around a model; ``from_pretrained`` loads what ``save_pretrained`` has written. Every call passes
    an explicit mask made from token indexes, so that IDs may repeat, jump and fall.
    """

    config_class = PredictivePositionConfig
    config: PredictivePositionConfig
    base_model_prefix = "model"
    card_kind: ClassVar[str] = "Causal language model that predicts its position IDs"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True
    # Half precision tells too few IDs apart. Kept by `PrecisionMixin`, and by loading.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["position_head"]

    def __init__(self, config: PredictivePositionConfig, model: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        config.check_options()
        self.model = AutoModelForCausalLM.from_config(config.text_config) if model is None else model
        inner = self.model.config.get_text_config()
        self.position_head = (
            None if config.head is None else POSITION_HEADS[config.head](inner.hidden_size, config.num_position_ids)
        )
        self.segment = Segment(inner.hidden_size) if config.segments else None
        if config.length_scaling == "log":
            inner.log_length_from = config.log_length_from
            self.model.set_attn_implementation(LOG_LENGTH)
        elif inner._attn_implementation not in ("sdpa", "eager"):
            # The others take no mask of one's own.
            self.model.set_attn_implementation("sdpa")
        self._output_input = InputCapture()
        if model is not None:
            # Its weights stay as they are, whoever put them there.
            for part in (*model.modules(), *model.parameters()):
                part._is_hf_initialized = True
        self.post_init()

    @classmethod
    def wrap(  # noqa: PLR0913
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
        """Put a position head around a model; for the options see `PredictivePositionConfig`.

        The model is kept as it is. IDs stay below its ``max_position_embeddings`` unless ``num_position_ids`` is given.
        Raises ``ModelError`` for a model that cannot be wrapped, and ``SettingError`` for a wrong option.
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
        check_types(options)
        check_position_id_support(model)
        most = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if num_position_ids is None:
            options["num_position_ids"] = PredictivePositionConfig.num_position_ids if most is None else int(most)
        elif most is not None:
            check_position_table(model, most, num_position_ids)
        # A configuration that is made of another forgets it.
        attention = model.config.get_text_config()._attn_implementation
        config = PredictivePositionConfig(text_config=model.config, **options | {"id_weight": float(id_weight)})
        model.config.get_text_config()._attn_implementation = attention
        made = cls(config, model)
        if length_scaling == "log":
            check_length_scaling(model, attention)
        made.generation_config = model.generation_config
        # What is new goes to where it is used; of the model itself nothing is moved or rounded.
        device = device_of(model)
        if made.position_head is not None:
            made.position_head.to(device)
        if made.segment is not None:
            made.segment.to(device=device, dtype=made.get_input_embeddings().weight.dtype)
        return made

    @can_return_tuple
    def forward(  # noqa: PLR0913, PLR0917
        self,
        input_ids: Int[Tensor, "batch new"],
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "rows given"] | None = None,
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
        """Logits, and with ``labels`` and ``position_labels`` (both unshifted, -100 where not scored) the joint loss.

        ``attention_mask``, (batch, seq) with 0 at fill, covers the tokens in the cache too; one of (batch, 1, new, seq)
        is taken as it is. One row of ``position_ids`` is for all rows; the IDs of tokens behind those that they cover
        are predicted, one after another. ``sequence_ids`` say to which of several texts packed into a row a token
        belongs, -1 is fill. The prompt, whose tokens a head may point to, is ``prompt_mask``, or what stands before the
        first label, or all of a first call.
        """
        check_no_embeddings(inputs_embeds)
        self._check_call(labels, position_labels, kwargs)
        cache = self._cache(past_key_values, use_cache)
        position_ids = self._given_ids(input_ids, attention_mask, position_ids, cache, sequence_ids)
        given = 0 if position_ids is None else position_ids.shape[1]
        if position_ids is None or given < input_ids.shape[1]:
            check_all_ids(given, input_ids, labels, position_labels, sequence_ids)
            made = self.forward_token_by_token(input_ids, attention_mask, position_ids, cache, prompt_mask, **kwargs)
            made.logits = select_logits(made.logits, logits_to_keep)
            return made
        mask = build_attention_mask(input_ids, attention_mask, cache, sequence_ids, self.dtype)
        is_prompt = build_prompt_mask(input_ids, attention_mask, cache, labels, prompt_mask, sequence_ids)
        # What predicts the next ID need not be among the logits that are chosen by a tensor.
        chosen = isinstance(logits_to_keep, Tensor) and cache is not None
        all_logits = labels is not None or position_labels is not None or chosen
        made = self._ask(
            self._embed(input_ids, is_prompt),
            attention_mask=mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=0 if all_logits else logits_to_keep,
            **kwargs,
        )
        hidden = self._output_input.take()
        if cache is not None:
            told = prompt_mask is not None or labels is not None
            cache.note(Read(input_ids, position_ids, is_prompt, hidden.detach(), new_prompt=told))
        of_tokens = of_ids = None
        if labels is not None:
            of_tokens = token_loss(made.logits, foretold(labels, sequence_ids), num_items_in_batch)
        if position_labels is not None and self.position_head is not None:
            asked = Asked(hidden, input_ids, position_ids, is_prompt, position_labels)
            asked = asked if sequence_ids is None else asked.apart(sequence_ids)
            head = self._head_in_use()
            of_ids = position_loss(head, self._embed_for_head, self._embed_next, asked, num_items_in_batch)
        return PredictivePositionOutput(
            loss=joint_loss(of_tokens, of_ids, self.config.id_weight),
            logits=select_logits(made.logits, logits_to_keep) if chosen and labels is None else made.logits,
            past_key_values=cache,
            hidden_states=made.hidden_states,
            attentions=made.attentions,
            token_loss=of_tokens,
            position_loss=None if of_ids is None else of_ids.loss,
            predicted_position_ids=None if of_ids is None or sequence_ids is not None else of_ids.predicted,
        )

    @property
    def num_position_heads(self) -> int:
        """One, or none."""
        return 0 if self.position_head is None else 1

    def next_position_ids(
        self, past_key_values: PositionCache, tokens: Int[Tensor, "batch 1"]
    ) -> Int[Tensor, "batch 1"]:
        """The IDs of tokens that were just chosen: the head's most likely ones, or without a head the last plus one."""
        own_ids = past_key_values.last_ids()
        # Behind its end a row is written on with fill, whose IDs mean nothing and have to be some all the same.
        most = self.config.num_position_ids
        if self.position_head is None:
            fill = self.generation_config.pad_token_id
            check_range(own_ids + 1 if fill is None else (own_ids + 1)[tokens != fill], most)
            return (own_ids + 1).clamp(max=most - 1)
        head = self._head_in_use()
        hidden = past_key_values.last_hidden().float()
        with head_precision(head, hidden.device):
            if past_key_values.prompts is None:
                known = past_key_values.settle()
                assert known is not None
                prompt = gather_prompts(head, self._embed_for_head, known.tokens, known.position_ids, known.is_prompt)
                past_key_values.prompts = [prompt]
            asked = head(hidden, own_ids, self._embed_next(tokens), past_key_values.prompts[0])
        return asked.most_likely().clamp(0, most - 1)

    def step_inputs(
        self, tokens: Int[Tensor, "batch new"], cache: PositionCache, attention_mask: Tensor | None
    ) -> dict[str, Any]:
        """A step's mask is made here where its cache has a fixed length, so that a compiled step is always the same."""
        if cache.is_compileable:
            return {"attention_mask": build_attention_mask(tokens, attention_mask, cache, None, self.dtype)}
        return super().step_inputs(tokens, cache, attention_mask)

    def _init_weights(self, module: nn.Module) -> None:
        # What is new here starts as its own constructor says; the model within begins with its own.
        return

    def _given_ids(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: PositionCache | None,
        sequence_ids: Tensor | None,
    ) -> Int[Tensor, "batch given"] | None:
        """Return those of all rows; without any, and without a head, those of a first call count up."""
        first = cache is None or not cache.has_read
        if position_ids is not None:
            if position_ids.is_floating_point():
                raise SettingError(f"position_ids are {position_ids.dtype}; give whole numbers")
            position_ids = expand_ids(position_ids, len(tokens))
        elif self.position_head is None and sequence_ids is None and first:
            position_ids = self.default_prompt_ids(tokens, attention_mask)
        # A single one behind others was predicted, mostly, and generating does not stop to look.
        if position_ids is not None and (first or position_ids.shape[1] > 1):
            check_range(position_ids, self.config.num_position_ids)
        return position_ids

    def _check_call(self, labels: Tensor | None, position_labels: Tensor | None, other: dict[str, Any]) -> None:
        check_no_replica(self)
        check_known_arguments(other, self.model)
        check_log_attention(self.config.length_scaling, self.model.config.get_text_config()._attn_implementation)
        check_has_head(self.num_position_heads, position_labels)
        if not self.training:
            return
        head = None if self.position_head is None else self._head_in_use()
        check_id_training(head, labels, position_labels)
        if position_labels is not None:
            check_token_labels(labels)
            warn_frozen_head(head)

    def _cache(self, past_key_values: Cache | None, use_cache: bool | None) -> PositionCache | None:
        if past_key_values is not None:
            return PositionCache.of(past_key_values)
        return PositionCache(DynamicCache(config=self.config.get_text_config())) if use_cache else None

    def _ask(self, embeddings: Float[Tensor, "batch new d_model"], **inputs: Any) -> Any:
        self._output_input.attach(self.get_output_embeddings())
        return self.model(inputs_embeds=embeddings, **inputs, return_dict=True)

    def _head_in_use(self) -> PositionHead:
        """The head or, where adapters train a copy of it, that copy."""
        head: Any = self.position_head
        copies = getattr(head, "modules_to_save", None)
        if copies is None:
            return head
        return head.original_module if head.disable_adapters else copies[head.active_adapters[0]]

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """As anywhere, but for length scaling, which is an attention of its own: ``SettingError``."""
        if self.config.length_scaling == "log" and attn_implementation != LOG_LENGTH:
            raise SettingError(
                f"attention {attn_implementation} would leave out length_scaling='log'; wrap the model without it"
            )
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
