"""Mixin for ``generate`` of `transformers`, for models that predict a position ID for each new token."""

from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationMixin
from transformers.utils import ModelOutput

from lengthwise.core.errors import SettingError
from lengthwise.hf.model_inputs import (
    check_is_tensor,
    check_left_padding,
    check_no_embeddings,
    expand_ids,
    select_logits,
)
from lengthwise.hf.position_cache import PositionCache

# Outputs with one tensor per layer.
LAYER_OUTPUTS = ("hidden_states", "attentions")
# Settings that enable assisted decoding, which drafts tokens from the prompt or with a part of the model.
ASSISTED_DECODING_SETTINGS = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")


class PositionIDGenerationMixin(GenerationMixin):
    """Mixin for greedy decoding, sampling and beam search with predicted IDs; each hypothesis has its own IDs.

    ``generate(input_ids, position_ids=...)`` accepts IDs of the prompt, or of the prompt and the first new tokens. By
    default, prompt IDs are consecutive from ``config.first_default_prompt_id``. If this property is None, a call
    without ``position_ids`` raises ``SettingError``, unless the model has a found rule for its prompts. With
    ``return_dict_in_generate=True``, the output also contains ``position_ids``. The ID of the last token is -1, because
    it is not predicted yet. Padding after the end of a sequence has arbitrary IDs.
    """

    @property
    def num_position_heads(self) -> int:
        """Number of position heads: one per level, or 0."""
        raise NotImplementedError

    def next_position_ids(
        self, past_key_values: PositionCache, tokens: Int[Tensor, "batch 1"]
    ) -> Int[Tensor, "*level batch 1"]:
        """Return the IDs of new tokens that continue the tokens in the cache."""
        raise NotImplementedError

    def get_or_create_cache(self, past_key_values: Cache | None, use_cache: bool | None) -> PositionCache | None:
        """Return the caller's cache, a new cache if ``use_cache`` is True, or None."""
        if past_key_values is not None:
            return PositionCache.wrap(past_key_values)
        return PositionCache(DynamicCache(config=self.config.get_text_config())) if use_cache else None

    def decoding_step_inputs(
        self, tokens: Int[Tensor, "batch new"], cache: PositionCache, attention_mask: Tensor | None
    ) -> dict[str, Any]:
        """Return the inputs of a decoding step other than the tokens, their IDs and the cache."""
        return {} if attention_mask is None else {"attention_mask": attention_mask}

    def default_prompt_ids(
        self, tokens: Int[Tensor, "batch new"], attention_mask: Tensor | None
    ) -> Int[Tensor, "batch new"]:
        """Return the default IDs of prompts. Raises ``SettingError`` if the configuration defines no default."""
        first_id = self.config.first_default_prompt_id
        if first_id is None:
            raise SettingError(
                "position_ids are missing, and this model has no default prompt IDs; pass position_ids, for example "
                "from PositionCollator.prompts, or set config.count_prompt_from=0 if prompt IDs are consecutive from 0 "
                "in training"
            )
        if attention_mask is not None and attention_mask.ndim != 2:
            raise SettingError(
                "a 4-D attention_mask does not mark the first token of a sequence; pass position_ids too"
            )
        is_token = torch.ones_like(tokens) if attention_mask is None else attention_mask
        # Padding on the left has the ID of the first token.
        return (is_token.long().cumsum(dim=1) - 1).clamp(min=0) + first_id

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Generate tokens as in `transformers`; `PositionIDGenerationMixin` describes the arguments and the output."""
        check_no_embeddings(kwargs.get("inputs_embeds"))
        check_is_tensor(kwargs.get("position_ids"))
        ids = kwargs.get("position_ids")
        if ids is not None and ids.numel() and (smallest := ids.min().item()) < -1:
            raise SettingError(
                f"position_ids contain {smallest}; use IDs from 0 on (-1 marks IDs that are to be predicted)"
            )
        targets = ("labels", "position_labels", "sequence_ids")
        if names := [name for name in targets if kwargs.get(name) is not None]:
            raise SettingError(
                f"generate received {', '.join(names)}, so the batch already contains answers; pass a batch of "
                "prompts, such as PositionCollator.prompts(rows)"
            )
        check_left_padding(kwargs.get("attention_mask"))
        if kwargs.get("assistant_model") is not None:
            raise SettingError("assisted decoding cannot predict the IDs of draft tokens; leave out assistant_model")
        _restore_cached_ids(kwargs)
        tokens = kwargs.get("input_ids") if inputs is None else inputs
        if isinstance(tokens, Tensor) and kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = expand_ids(kwargs["position_ids"], len(tokens))
        if isinstance(tokens, Tensor) and kwargs.get("prompt_mask") is None:
            attention_mask = kwargs.get("attention_mask")
            mask = torch.ones_like(tokens, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
            if isinstance(cache := kwargs.get("past_key_values"), PositionCache):
                # Tokens after the cache do not belong to the prompt, unless the caller passes prompt_mask.
                mask = torch.nn.functional.pad(mask[:, : cache.num_tokens], (0, mask.shape[1] - cache.num_tokens))
            kwargs["prompt_mask"] = mask
        output: Any = super().generate(inputs, *args, **kwargs)
        cache = output.get("past_key_values") if isinstance(output, ModelOutput) else None
        if isinstance(cache, PositionCache) and cache.num_tokens:
            output["position_ids"] = _collect_position_ids(output, cache)
        return output

    def forward_token_by_token(
        self,
        tokens: Int[Tensor, "batch new"],
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: PositionCache | None,
        prompt_mask: Tensor | None,
        logits_to_keep: int | Tensor,
        *targets: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """Call the model on all tokens with an ID, then once per other token, whose ID is predicted before the call.

        Without a cache and without IDs, all tokens get the default prompt IDs. ``targets`` (labels and packed texts)
        must be None, because they need one ID per token.
        """
        if any(target is not None for target in targets):
            given = "are missing"
            if position_ids is not None and position_ids.shape[-1]:
                given = f"has {position_ids.shape[-1]} IDs for {tokens.shape[1]} tokens"
            raise SettingError(
                f"position_ids {given}; calls with labels or packed texts need one ID per token, for example from "
                "PositionCollator"
            )
        model: Any = self
        position_cache = self.get_or_create_cache(cache, use_cache=True)
        assert position_cache is not None
        num_cached, num_ids = position_cache.num_tokens, 0 if position_ids is None else position_ids.shape[-1]
        if num_cached == 0 and num_ids == 0:
            position_ids, num_ids = self.default_prompt_ids(tokens, attention_mask), tokens.shape[1]
        outputs = []
        call_ends = [*([num_ids] if num_ids else []), *range(num_ids + 1, tokens.shape[1] + 1)]
        for call_start, call_end in zip([0, *call_ends], call_ends, strict=False):
            piece = slice(call_start, call_end)
            output = model(
                tokens[:, piece],
                None if attention_mask is None else attention_mask[:, : num_cached + call_end],
                position_ids if call_start < num_ids else self.next_position_ids(position_cache, tokens[:, piece]),
                past_key_values=position_cache,
                prompt_mask=None if prompt_mask is None else prompt_mask[:, piece],
                **kwargs,
            )
            outputs.append(output)
        logits = torch.cat([output.logits for output in outputs], dim=1)
        joined = {"logits": select_logits(logits, logits_to_keep)}
        joined |= {name: _join_layers([output[name] for output in outputs]) for name in LAYER_OUTPUTS if name in output}
        return type(output)(**joined, **({} if cache is None else {"past_key_values": cache}))

    def prepare_inputs_for_generation(
        self,
        input_ids: Int[Tensor, "batch seq"],
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        is_first_iteration: bool | None = False,
        prompt_mask: Bool[Tensor, "batch prompt"] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the inputs of the next ``forward`` call, including the predicted IDs of new tokens."""
        # `generate` passes on the tokenizer that finds stop strings.
        inputs = {name: value for name, value in kwargs.items() if value is not None and name != "tokenizer"}
        tokens = input_ids if next_sequence_length is None else input_ids[:, -next_sequence_length:]
        inputs["input_ids"] = tokens.clone(memory_format=torch.contiguous_format)
        seq = tokens.shape[1]
        num_cached = past_key_values.num_tokens if isinstance(past_key_values, PositionCache) else 0
        if prompt_mask is not None and num_cached < prompt_mask.shape[1]:
            new_mask = prompt_mask[:, num_cached : num_cached + seq]
            inputs["prompt_mask"] = torch.nn.functional.pad(new_mask, (0, seq - new_mask.shape[1]))
        if not isinstance(past_key_values, PositionCache):
            ids = None if position_ids is None else position_ids[..., :seq]
            return inputs | {"attention_mask": attention_mask, "position_ids": ids, "use_cache": False}
        inputs["past_key_values"] = past_key_values
        if is_first_iteration and num_cached and position_ids is not None and position_ids.shape[-1] == seq:
            # The caller passed IDs for a chunk of a long prompt, or for new tokens after a cache.
            inputs["position_ids"] = position_ids
        else:
            inputs["position_ids"] = self._step_ids(tokens, position_ids, past_key_values)
        if is_first_iteration or num_cached == 0:
            return inputs | {"attention_mask": attention_mask}
        return inputs | self.decoding_step_inputs(tokens, past_key_values, attention_mask)

    def _step_ids(self, tokens: Int[Tensor, "batch new"], ids: Tensor | None, cache: PositionCache) -> Tensor | None:
        num_cached = cache.num_tokens
        if ids is not None and ids.shape[-1] >= num_cached + tokens.shape[1]:
            return ids[..., num_cached : num_cached + tokens.shape[1]]
        if num_cached == 0 and ids is not None:
            raise SettingError(
                f"position_ids has {ids.shape[-1]} IDs for {tokens.shape[1]} prompt tokens; pass one ID per token"
            )
        return self.next_position_ids(cache, tokens) if num_cached and tokens.shape[1] == 1 else None

    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> Any:
        settings, other_arguments = super()._prepare_generation_config(*args, **kwargs)
        if used := [name for name in ASSISTED_DECODING_SETTINGS if getattr(settings, name, None)]:
            raise SettingError(f"assisted decoding cannot predict the IDs of draft tokens; leave out {', '.join(used)}")
        if getattr(settings, "guidance_scale", None) not in (None, 1):
            raise SettingError("guidance needs a second prompt, which has no position IDs; leave out guidance_scale")
        return settings, other_arguments

    def _prepare_attention_mask_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        # Without a mask, `transformers` builds a mask from the pad tokens.
        mask = super()._prepare_attention_mask_for_generation(*args, **kwargs)
        check_left_padding(mask)
        return mask

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        tokens = model_kwargs.get("input_ids", inputs_tensor)
        return self.default_prompt_ids(tokens, model_kwargs.get("attention_mask"))

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ``SettingError``, because continuous batching assigns consecutive IDs to all tokens."""
        raise SettingError(
            "continuous batching assigns consecutive position IDs, but this model predicts IDs; use generate"
        )

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> Any:
        result = super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        if isinstance(cache := model_kwargs.get("past_key_values"), Cache):
            model_kwargs["past_key_values"] = PositionCache.wrap(cache)
        return result

    def _update_model_kwargs_for_generation(
        self, outputs: ModelOutput, model_kwargs: dict[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        # `transformers` would extend the IDs by counting up.
        ids = model_kwargs.pop("position_ids", None)
        new_kwargs: dict[str, Any] = super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)
        return new_kwargs if ids is None else new_kwargs | {"position_ids": ids}


def _join_layers(calls: list[tuple[Tensor | None, ...]]) -> tuple[Tensor | None, ...]:
    """Join the hidden states, or the attention weights, of several calls; earlier calls have fewer keys."""
    if len(calls) == 1:
        # Copies would get no gradient of the logits.
        return calls[0]
    joined: list[Tensor | None] = []
    for pieces in zip(*calls, strict=True):
        if pieces[0] is None:
            # A call with a list of layers in output_hidden_states has no output for the others.
            joined.append(None)
            continue
        # The last axis is d_model in hidden states, and the key in attention weights.
        size = pieces[-1].shape[-1]
        padded = [torch.nn.functional.pad(piece, (0, size - piece.shape[-1])) for piece in pieces]
        joined.append(torch.cat(padded, dim=-2))
    return tuple(joined)


def _restore_cached_ids(kwargs: dict[str, Any]) -> None:
    """Replace missing ``position_ids`` by the cached IDs, and drop all IDs from the first -1 (not predicted yet) on."""
    ids, cache = kwargs.get("position_ids"), kwargs.get("past_key_values")
    if ids is None and isinstance(cache, PositionCache) and (cached_tokens := cache.all_tokens()) is not None:
        ids = cached_tokens.position_ids
        kwargs["position_ids"] = ids if ids.dim() == 2 else ids.movedim(-1, 0)
    elif ids is not None and bool((ids < 0).any()):
        num_assigned = (ids >= 0).flatten(0, -2).all(dim=0).long().cumprod(dim=0).sum()
        kwargs["position_ids"] = ids[..., : int(num_assigned)]


def _collect_position_ids(output: ModelOutput, cache: PositionCache) -> Shaped[Tensor, "rows seq *level"]:
    """Return the ID of every token of the sequences; in beam search, a sequence changes its row between calls."""
    sequences, first_call_ids = output["sequences"], cache.steps[0]
    ids = first_call_ids.new_full((*sequences.shape, *first_call_ids.shape[2:]), -1)
    beams = output.get("beam_indices")
    if beams is None:
        cached_ids = torch.cat(cache.steps, dim=1)[:, : sequences.shape[1]]
        ids[:, : cached_ids.shape[1]] = cached_ids
        return ids
    # A long prompt may take several calls.
    prompt_length, num_calls = sequences.shape[1] - beams.shape[1], 1
    while sum(call_ids.shape[1] for call_ids in cache.steps[:num_calls]) < prompt_length:
        num_calls += 1
    ids[:, :prompt_length] = torch.cat(cache.steps[:num_calls], dim=1)[beams[:, 0].long()]
    # The next call assigns the ID of a generated token, in the row from which the sequence continues.
    for call_index, call_ids in enumerate(cache.steps[num_calls:], start=1):
        if call_index >= beams.shape[1]:
            break
        beam_rows = beams[:, call_index].long()
        ids[:, prompt_length + call_index - 1] = call_ids[beam_rows.clamp(min=0), 0]
        ids[beam_rows < 0, prompt_length + call_index - 1] = -1
    return ids
