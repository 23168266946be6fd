"""Decoder of this library as a `transformers` model."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from transformers import Cache, GenerationMixin, PreTrainedModel
from transformers.utils import can_return_tuple

from lengthwise.core.checkpoint import weights_digest
from lengthwise.core.errors import ModelError, SettingError
from lengthwise.hf.id_generation import IDGenerationMixin
from lengthwise.hf.input_checks import (
    check_all_ids,
    check_has_head,
    check_id_training,
    check_no_embeddings,
    check_supported_arguments,
    check_token_labels,
)
from lengthwise.hf.joint_loss import (
    HeadInputs,
    IDLoss,
    gather_prompts,
    joint_loss,
    position_loss,
    shift_labels,
    token_loss,
)
from lengthwise.hf.lengthwise_config import LengthwiseConfig, decoder_from_config
from lengthwise.hf.model_card import ModelCardMixin
from lengthwise.hf.model_inputs import build_prompt_mask, expand_ids, select_logits
from lengthwise.hf.model_parts import PrecisionMixin
from lengthwise.hf.position_cache import CachedTokens, PositionCache
from lengthwise.hf.predictive_config import PredictivePositionOutput
from lengthwise.hf.prompt_rule import prompt_ids_by_rule
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks
from lengthwise.model.cache import Cache as DecoderCache


class LengthwiseForCausalLM(ModelCardMixin, PrecisionMixin, IDGenerationMixin, PreTrainedModel, GenerationMixin):
    """Decoder of this library with the interface of a causal `transformers` language model.

    ``position_ids`` have shape (batch, seq), or (level, batch, seq) for a decoder with several levels. In the
    output of ``generate``, their shape is (batch, seq, level). ``attention_mask`` hides left padding.
    """

    config_class = LengthwiseConfig
    config: LengthwiseConfig
    base_model_prefix = "decoder"
    model_description: ClassVar[str] = "Decoder trained for length generalization"
    main_input_name = "input_ids"
    # `Trainer` must not pass the number of labels, because the loss is the mean over a batch.
    accepts_loss_kwargs = False
    # In half precision, angles and position heads cannot distinguish many IDs.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["decoder"]

    def __init__(self, config: LengthwiseConfig) -> None:
        super().__init__(config)
        self.decoder = decoder_from_config(config)
        self.post_init()

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model as in `transformers`, with a digest of the weights in the configuration."""
        weights = kwargs.get("state_dict")
        self.config.belongs_to = self._digest(self.state_dict() if weights is None else weights)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load as in `transformers`; raise ``ModelError`` if weights and configuration were not saved together."""
        model, loading_info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        # Offloaded weights have no digest.
        is_in_memory = not any(weight.is_meta for weight in model.parameters())
        if is_in_memory and model.config.belongs_to != model._digest(model.state_dict()):
            raise ModelError(
                f"the weights in {model.config.name_or_path} do not match its config.json, so one of them was changed; "
                "export the run again, or save the model again"
            )
        return (model, loading_info) if output_loading_info else model

    def _digest(self, weights: Mapping[str, Tensor]) -> str:
        return self.config.combine_digest(weights_digest(weights))

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch new"],
        attention_mask: Shaped[Tensor, "batch seq"] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Int[Tensor, "batch new"] | None = None,
        position_labels: Tensor | None = None,
        prompt_mask: Shaped[Tensor, "batch new"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        inputs_embeds: None = None,
        **kwargs: Any,
    ) -> PredictivePositionOutput:
        """Return the logits, and the joint loss of ``labels`` and ``position_labels`` (shape of ``position_ids``).

        `PredictivePositionModel` describes the arguments. If ``position_ids`` are missing and the cache is empty, the
        tokens get the default prompt IDs of the configuration. Missing IDs of tokens after the cache are predicted.
        Packed rows and requests for hidden states or attention weights raise ``SettingError``.
        """
        check_no_embeddings(inputs_embeds)
        check_supported_arguments(kwargs)
        check_has_head(self.num_position_heads, position_labels)
        if self.training:
            check_id_training(self.decoder.heads, labels, position_labels)
            if position_labels is not None:
                check_token_labels(labels)
        cache = self.open_cache(past_key_values, use_cache)
        num_ids = 0 if position_ids is None else position_ids.shape[-1]
        if position_ids is None or num_ids < input_ids.shape[1]:
            check_all_ids(num_ids, input_ids, labels, position_labels)
            return self.forward_token_by_token(input_ids, attention_mask, position_ids, cache, prompt_mask)
        # IDs without a level axis apply to all levels.
        ids = expand_ids(position_ids, len(input_ids)).expand(self.config.num_levels, -1, -1)
        hooks = self._hooks(input_ids, attention_mask, cache)
        hidden, decoder_cache = self.decoder(input_ids, ids, self._decoder_cache(cache), hooks=hooks)
        is_prompt = build_prompt_mask(input_ids, attention_mask, cache, labels, prompt_mask)
        if cache is not None:
            _update_layers(cache, decoder_cache)
            extends = prompt_mask is not None or labels is not None
            cached_ids = _move_levels_last(ids)
            cache.append(CachedTokens(input_ids, cached_ids, is_prompt, hidden.detach(), extends_prompt=extends))
        logits = self.decoder.token_logits(hidden if labels is not None else select_logits(hidden, logits_to_keep))
        loss_of_tokens = loss_of_ids = None
        if labels is not None:
            loss_of_tokens = token_loss(logits, shift_labels(labels), num_items_in_batch)
        if position_labels is not None and self.decoder.predicts_ids:
            targets = position_labels[None] if position_labels.dim() == 2 else position_labels
            levels = zip(ids, targets, strict=True)
            inputs = [HeadInputs(hidden, input_ids, level, is_prompt, target) for level, target in levels]
            loss_of_ids = self._position_loss(inputs, num_items_in_batch)
        return PredictivePositionOutput(
            loss=joint_loss(loss_of_tokens, loss_of_ids, self.config.id_weight),
            logits=logits,
            past_key_values=cache,
            token_loss=loss_of_tokens,
            position_loss=None if loss_of_ids is None else loss_of_ids.loss,
            predicted_position_ids=None if loss_of_ids is None else loss_of_ids.predicted_ids,
        )

    def _position_loss(self, inputs: list[HeadInputs], num_items: Tensor | int | None) -> IDLoss:
        """Return the ID loss, summed over the levels; each level has its own head."""
        embed = self.decoder.embed_tokens
        pairs = zip(self.decoder.position_heads(), inputs, strict=True)
        losses = [position_loss(head, embed, embed, head_inputs, num_items) for head, head_inputs in pairs]
        loss = torch.stack([level_loss.loss for level_loss in losses]).sum()
        predicted_ids = [level_loss.predicted_ids for level_loss in losses if level_loss.predicted_ids is not None]
        return IDLoss(loss, _drop_single_level(torch.stack(predicted_ids)) if predicted_ids else None)

    @property
    def num_position_heads(self) -> int:
        """Number of position heads: one per level, or 0."""
        return len(self.decoder.heads)

    def default_prompt_ids(self, tokens: Int[Tensor, "batch new"], attention_mask: Tensor | None) -> Tensor:
        """Return the IDs by the run's found rule, if it has one, or else consecutive IDs."""
        scheme = self.config.prompt_scheme
        if scheme is None:
            return super().default_prompt_ids(tokens, attention_mask)
        return _drop_single_level(prompt_ids_by_rule(scheme, tokens, attention_mask))

    def next_position_ids(self, past_key_values: PositionCache, tokens: Int[Tensor, "batch 1"]) -> Tensor:
        """Return the most likely ID of each new token on every level; without a position head, the last ID plus one."""
        cached = past_key_values.all_tokens()
        assert cached is not None
        ids = _move_levels_first(cached.position_ids)
        last_ids = ids[..., -1:]
        if not self.decoder.predicts_ids:
            if self.config.first_default_prompt_id is None:
                raise SettingError(
                    "this decoder predicts no IDs, and its IDs in training are not consecutive; pass position_ids for "
                    "all tokens, including the tokens to generate"
                )
            return _drop_single_level(last_ids + 1)
        if past_key_values.prompts is None:
            past_key_values.prompts = [
                gather_prompts(head, self.decoder.embed_tokens, cached.tokens, level_ids, cached.is_prompt)
                for head, level_ids in zip(self.decoder.position_heads(), ids, strict=True)
            ]
        levels = self.decoder.next_ids(past_key_values.last_hidden(), last_ids, tokens, past_key_values.prompts)
        return _drop_single_level(torch.stack([level.most_likely_ids().clamp(min=0) for level in levels]))

    def get_input_embeddings(self) -> nn.Module:
        """Raise ``NotImplementedError``: the embeddings are a parameter of the decoder."""
        raise NotImplementedError("the embeddings of this decoder are a parameter, not a module")

    def _init_weights(self, module: nn.Module) -> None:
        # The decoder initializes its weights. Loading creates buffers without values, so the buffers that are not saved
        # (slopes of ALiBi, windows) are computed again.
        buffers = dict(module.named_buffers(recurse=False))
        if buffers:
            path = next(name for name, part in self.decoder.named_modules() if part is module)
            initial_module = decoder_from_config(self.config).get_submodule(path)
            for name, buffer in buffers.items():
                buffer.copy_(getattr(initial_module, name))

    def _hooks(self, tokens: Tensor, attention_mask: Tensor | None, cache: PositionCache | None) -> AttentionHooks:
        if attention_mask is None or bool(attention_mask.all()):
            return NO_HOOKS
        if self.decoder.settings.previous_token_mix:
            raise SettingError(
                "this decoder mixes each token with the previous token, even if that token is padding; pass prompts of "
                "equal length without an attention_mask"
            )
        num_new, num_cached = tokens.shape[1], 0 if cache is None else cache.num_tokens
        is_hidden = ~attention_mask.bool()[:, None].expand(-1, num_new, -1).clone()
        # Padding attends to itself, because a softmax without keys is NaN.
        is_hidden.diagonal(num_cached, 1, 2).fill_(False)
        score_bias = torch.zeros(is_hidden.shape, device=tokens.device).masked_fill_(is_hidden, -torch.inf)
        return AttentionHooks(score_bias=score_bias)

    def _decoder_cache(self, cache: PositionCache | None) -> DecoderCache | None:
        cached_tokens = None if cache is None else cache.all_tokens()
        if cache is None or cached_tokens is None:
            return None
        layers: Any = cache.layers
        separators = torch.tensor(self.decoder.separators, device=cached_tokens.tokens.device)
        num_separators = torch.isin(cached_tokens.tokens, separators).sum(dim=1, keepdim=True)
        return DecoderCache(
            position_ids=_move_levels_first(cached_tokens.position_ids),
            last_embedding=self.decoder.embed_tokens(cached_tokens.tokens[:, -1:]),
            num_separators=num_separators.clamp(max=len(separators)),
            keys=[layer.keys for layer in layers],
            values=[layer.values for layer in layers],
        )


def _update_layers(cache: PositionCache, decoder_cache: DecoderCache) -> None:
    layers: Any = cache.layers
    for layer, key, value in zip(layers, decoder_cache.keys, decoder_cache.values, strict=True):
        if not hasattr(layer, "crop"):
            raise SettingError("this decoder needs a dynamic cache; leave out cache_implementation")
        if not layer.is_initialized:
            layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value


def _move_levels_last(levels: Shaped[Tensor, "level batch seq"]) -> Tensor:
    """Move levels to the last axis, so that a cache can select rows; drop the axis of a single level."""
    return levels[0] if len(levels) == 1 else levels.movedim(0, -1)


def _move_levels_first(ids: Tensor) -> Shaped[Tensor, "level batch seq"]:
    return ids[None] if ids.dim() == 2 else ids.movedim(-1, 0)


def _drop_single_level(levels: Shaped[Tensor, "level batch seq"]) -> Tensor:
    return levels[0] if len(levels) == 1 else levels
