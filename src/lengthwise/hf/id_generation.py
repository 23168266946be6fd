"""`generate` of `transformers` for models that assign a position ID to each token they generate."""

from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationMixin
from transformers.utils import ModelOutput

from lengthwise.core.errors import SettingError
from lengthwise.hf.input_checks import check_left_padding, check_no_embeddings, check_prompts_only
from lengthwise.hf.model_inputs import count_ids, expand_ids
from lengthwise.hf.position_cache import PositionCache

# Settings of assisted decoding, which drafts tokens with the prompt or a part of the model.
DRAFTING = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")


class IDGenerationMixin(GenerationMixin):
    """Greedy decoding, sampling and beam search with predicted IDs; each hypothesis has its own IDs.

    ``generate(input_ids, position_ids=...)`` takes the IDs of the prompt, or of the prompt and the first new tokens.
    Without IDs, they count from ``config.first_counted_id``; if it is None, ``SettingError`` is raised. With
    ``return_dict_in_generate=True``, the output has ``position_ids`` next to ``sequences``. They are -1 at the last
    token, which has no ID yet, and arbitrary at padding after the end.
    """

    @property
    def num_position_heads(self) -> int:
        """Number of position heads: one per level, or 0."""
        raise NotImplementedError

    def next_position_ids(
        self, past_key_values: PositionCache, tokens: Int[Tensor, "batch 1"]
    ) -> Int[Tensor, "*level batch 1"]:
        """Return the IDs of new tokens that follow those in the cache."""
        raise NotImplementedError

    def open_cache(self, past_key_values: Cache | None, use_cache: bool | None) -> PositionCache | None:
        """Return the cache of a call: the caller's, or a new one with ``use_cache``."""
        if past_key_values is not None:
            return PositionCache.wrap(past_key_values)
        model: Any = self
        return PositionCache(DynamicCache(config=model.config.get_text_config())) if use_cache else None

    def step_inputs(
        self, tokens: Int[Tensor, "batch new"], cache: PositionCache, attention_mask: Tensor | None
    ) -> dict[str, Any]:
        """Return the inputs of a decoding step other than tokens, IDs and cache."""
        return {} if attention_mask is None else {"attention_mask": attention_mask}

    def default_prompt_ids(
        self, tokens: Int[Tensor, "batch new"], attention_mask: Tensor | None
    ) -> Int[Tensor, "batch new"]:
        """Return the IDs of prompts without IDs. Raises ``SettingError`` if the model has no rule for them."""
        model: Any = self
        first = model.config.first_counted_id
        if first is None:
            raise SettingError(
                "position_ids are missing and the model has no rule for the IDs of a prompt; pass position_ids (from "
                "PositionCollator.prompts; pipelines forward them), or set config.count_prompt_from=0 if prompts "
                "count 0, 1, 2, ... in training"
            )
        return count_ids(tokens, attention_mask) + first

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Generate as in `transformers`; see the class for ``position_ids``."""
        check_no_embeddings(kwargs.get("inputs_embeds"))
        check_prompts_only(kwargs)
        check_left_padding(kwargs.get("attention_mask"))
        if kwargs.get("assistant_model") is not None:
            raise SettingError("assisted decoding cannot predict IDs of drafts; leave out assistant_model")
        _resume_ids(kwargs)
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
            output["position_ids"] = _ids_of_sequences(output, cache)
        return output

    def forward_token_by_token(
        self,
        tokens: Int[Tensor, "batch new"],
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: PositionCache | None,
        prompt_mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """Call the model on tokens without IDs one by one, predicting each ID from the tokens before it."""
        model: Any = self
        state = self.open_cache(cache, use_cache=True)
        assert state is not None
        past, num_ids = state.num_tokens, 0 if position_ids is None else position_ids.shape[-1]
        if past == 0 and num_ids == 0:
            position_ids, num_ids = self.default_prompt_ids(tokens, attention_mask), tokens.shape[1]
        logits = []
        ends = [*([num_ids] if num_ids else []), *range(num_ids + 1, tokens.shape[1] + 1)]
        for begin, end in zip([0, *ends], ends, strict=False):
            piece = slice(begin, end)
            output = model(
                tokens[:, piece],
                None if attention_mask is None else attention_mask[:, : past + end],
                position_ids if begin < num_ids else self.next_position_ids(state, tokens[:, piece]),
                past_key_values=state,
                prompt_mask=None if prompt_mask is None else prompt_mask[:, piece],
                **kwargs,
            )
            logits.append(output.logits)
        others = {name: value for name, value in output.items() if name not in ("logits", "past_key_values")}
        caches = {} if cache is None else {"past_key_values": cache}
        return type(output)(**others, **caches, logits=torch.cat(logits, dim=1))

    def prepare_inputs_for_generation(  # noqa: PLR0913, PLR0917
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
        """Return the inputs of the next `forward`, with the predicted IDs of the new tokens."""
        inputs = {name: value for name, value in kwargs.items() if value is not None}
        tokens = input_ids if next_sequence_length is None else input_ids[:, -next_sequence_length:]
        inputs["input_ids"] = tokens.clone(memory_format=torch.contiguous_format)
        seq = tokens.shape[1]
        past = past_key_values.num_tokens if isinstance(past_key_values, PositionCache) else 0
        if prompt_mask is not None and past < prompt_mask.shape[1]:
            rest = prompt_mask[:, past : past + seq]
            inputs["prompt_mask"] = torch.nn.functional.pad(rest, (0, seq - rest.shape[1]))
        if not isinstance(past_key_values, PositionCache):
            ids = None if position_ids is None else position_ids[..., :seq]
            return inputs | {"attention_mask": attention_mask, "position_ids": ids, "use_cache": False}
        inputs["past_key_values"] = past_key_values
        if is_first_iteration and past and position_ids is not None and position_ids.shape[-1] == seq:
            # A chunk of a long prompt, or new tokens after a cache, with their own IDs.
            inputs["position_ids"] = position_ids
        else:
            inputs["position_ids"] = self._step_ids(tokens, past, position_ids, past_key_values)
        if is_first_iteration or past == 0:
            return inputs | {"attention_mask": attention_mask}
        return inputs | self.step_inputs(tokens, past_key_values, attention_mask)

    def _step_ids(
        self, tokens: Int[Tensor, "batch new"], past: int, position_ids: Tensor | None, cache: PositionCache
    ) -> Tensor | None:
        if position_ids is not None and position_ids.shape[-1] >= past + tokens.shape[1]:
            return position_ids[..., past : past + tokens.shape[1]]
        if past == 0 and position_ids is not None:
            raise SettingError(
                f"position_ids has {position_ids.shape[-1]} IDs for {tokens.shape[1]} prompt tokens; pass one per token"
            )
        return self.next_position_ids(cache, tokens) if past and tokens.shape[1] == 1 else None

    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> Any:
        settings, rest = super()._prepare_generation_config(*args, **kwargs)
        drafting = [name for name in DRAFTING if getattr(settings, name, None)]
        if drafting:
            raise SettingError(f"assisted decoding cannot predict IDs of drafts; leave out {', '.join(drafting)}")
        if getattr(settings, "guidance_scale", None) not in (None, 1):
            raise SettingError("guidance calls the model with a prompt without IDs; leave out guidance_scale")
        return settings, rest

    def _prepare_attention_mask_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        # Without a mask, `transformers` makes one from the pad tokens.
        mask = super()._prepare_attention_mask_for_generation(*args, **kwargs)
        check_left_padding(mask)
        return mask

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        tokens = model_kwargs.get("input_ids", inputs_tensor)
        return self.default_prompt_ids(tokens, model_kwargs.get("attention_mask"))

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ``SettingError``: continuous batching counts the IDs of all tokens."""
        raise SettingError("continuous batching counts position IDs, but this model predicts them; use generate")

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> Any:
        result = super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        if isinstance(cache := model_kwargs.get("past_key_values"), Cache):
            model_kwargs["past_key_values"] = PositionCache.wrap(cache)
        return result

    def _update_model_kwargs_for_generation(
        self, outputs: ModelOutput, model_kwargs: dict[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        # `transformers` would continue the IDs by counting.
        ids = model_kwargs.pop("position_ids", None)
        updated: dict[str, Any] = super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs)
        return updated if ids is None else updated | {"position_ids": ids}


def _resume_ids(kwargs: dict[str, Any]) -> None:
    """Take the IDs of cached tokens from the cache, and drop IDs of -1, which `generate` returns for unread tokens."""
    ids, cache = kwargs.get("position_ids"), kwargs.get("past_key_values")
    if ids is None and isinstance(cache, PositionCache) and (cached := cache.all_tokens()) is not None:
        ids = cached.position_ids
        kwargs["position_ids"] = ids if ids.dim() == 2 else ids.movedim(-1, 0)
    elif ids is not None and bool((ids < 0).any()):
        num_known = (ids >= 0).flatten(0, -2).all(dim=0).long().cumprod(dim=0).sum()
        kwargs["position_ids"] = ids[..., : int(num_known)]


def _ids_of_sequences(output: ModelOutput, cache: PositionCache) -> Shaped[Tensor, "rows seq *level"]:
    """Return the ID of every token of the sequences; under beam search, follow the row of each call."""
    sequences, prompt = output["sequences"], cache.steps[0]
    ids = prompt.new_full((*sequences.shape, *prompt.shape[2:]), -1)
    beams = output.get("beam_indices")
    if beams is None:
        cached = torch.cat(cache.steps, dim=1)[:, : sequences.shape[1]]
        ids[:, : cached.shape[1]] = cached
        return ids
    # A long prompt may take several calls.
    prompt_length, num_calls = sequences.shape[1] - beams.shape[1], 1
    while sum(step.shape[1] for step in cache.steps[:num_calls]) < prompt_length:
        num_calls += 1
    ids[:, :prompt_length] = torch.cat(cache.steps[:num_calls], dim=1)[beams[:, 0].long()]
    # The call after the one that chose a token assigns its ID, in the row from which the sequence continued.
    for place, step in enumerate(cache.steps[num_calls:], start=1):
        if place >= beams.shape[1]:
            break
        row = beams[:, place].long()
        ids[:, prompt_length + place - 1] = step[row.clamp(min=0), 0]
        ids[row < 0, prompt_length + place - 1] = -1
    return ids
