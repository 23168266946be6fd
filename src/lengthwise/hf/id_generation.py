"""`generate` of `transformers` for models that say which position ID each token they write gets."""

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

# Settings that have tokens drafted by another model, by a part of this one, or from the prompt.
DRAFTING = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")


class IDGenerationMixin(GenerationMixin):
    """Greedy decoding, sampling and beams; each hypothesis goes on with IDs of its own.

    ``generate(input_ids, position_ids=...)`` takes the IDs of the prompt, or of the prompt and of what follows. Without
    any they count up from ``config.first_counted_id``; where that is None, prompts have IDs of another kind, and
    ``SettingError`` is raised. With ``return_dict_in_generate=True`` the answer has
    ``position_ids`` beside ``sequences``, -1 where a token was not read again (the last one). Fill behind the end of a
    sequence has IDs as well, which mean nothing.
    """

    @property
    def num_position_heads(self) -> int:
        """How many position heads there are: one per level, none where IDs are given."""
        raise NotImplementedError

    def next_position_ids(
        self, past_key_values: PositionCache, tokens: Int[Tensor, "batch 1"]
    ) -> Int[Tensor, "*level batch 1"]:
        """The IDs of tokens that were just chosen."""
        raise NotImplementedError

    def step_inputs(
        self, tokens: Int[Tensor, "batch new"], cache: PositionCache, attention_mask: Tensor | None
    ) -> dict[str, Any]:
        """What a decoding step is given beside tokens, IDs and the cache."""
        return {} if attention_mask is None else {"attention_mask": attention_mask}

    def default_prompt_ids(
        self, tokens: Int[Tensor, "batch new"], attention_mask: Tensor | None
    ) -> Int[Tensor, "batch new"]:
        """IDs of prompts that came without any; ``SettingError`` where the model has no rule for them."""
        model: Any = self
        first = model.config.first_counted_id
        if first is None:
            raise SettingError(
                "this model was not told how the IDs of a prompt are made, and position_ids are missing; give "
                "position_ids (PositionCollator.prompts makes them; a pipeline passes them on), or set "
                "config.count_prompt_from=0 if prompts count 0, 1, 2, ... in its training"
            )
        return count_ids(tokens, attention_mask) + first

    @torch.no_grad()
    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in `transformers`; see the class for ``position_ids``."""
        check_no_embeddings(kwargs.get("inputs_embeds"))
        check_prompts_only(kwargs)
        check_left_padding(kwargs.get("attention_mask"))
        if kwargs.get("assistant_model") is not None:
            raise SettingError("drafted tokens would get counted IDs; leave out assistant_model")
        _resume_ids(kwargs)
        tokens = kwargs.get("input_ids") if inputs is None else inputs
        if isinstance(tokens, Tensor) and kwargs.get("position_ids") is not None:
            kwargs["position_ids"] = expand_ids(kwargs["position_ids"], len(tokens))
        if isinstance(tokens, Tensor) and kwargs.get("prompt_mask") is None:
            inside = kwargs.get("attention_mask")
            mask = torch.ones_like(tokens, dtype=torch.bool) if inside is None else inside.bool()
            if isinstance(cache := kwargs.get("past_key_values"), PositionCache):
                # What was written, and read or not, is no prompt. New questions are what the caller says they are.
                mask = torch.nn.functional.pad(mask[:, : cache.num_read], (0, mask.shape[1] - cache.num_read))
            kwargs["prompt_mask"] = mask
        written: Any = super().generate(inputs, *args, **kwargs)
        cache = written.get("past_key_values") if isinstance(written, ModelOutput) else None
        if isinstance(cache, PositionCache) and cache.num_read:
            written["position_ids"] = _ids_of_sequences(written, cache)
        return written

    def forward_token_by_token(
        self,
        tokens: Int[Tensor, "batch new"],
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        cache: PositionCache | None,
        prompt_mask: Tensor | None,
        **also: Any,
    ) -> Any:
        """A call with tokens behind those whose IDs are given: each one's ID is predicted from all before it."""
        model: Any = self
        state = PositionCache(DynamicCache(config=model.config.get_text_config())) if cache is None else cache
        past, given = state.num_read, 0 if position_ids is None else position_ids.shape[-1]
        if past == 0 and given == 0:
            position_ids, given = self.default_prompt_ids(tokens, attention_mask), tokens.shape[1]
        logits = []
        ends = [*([given] if given else []), *range(given + 1, tokens.shape[1] + 1)]
        for begin, end in zip([0, *ends], ends, strict=False):
            piece = slice(begin, end)
            made = model(
                tokens[:, piece],
                None if attention_mask is None else attention_mask[:, : past + end],
                position_ids if begin < given else self.next_position_ids(state, tokens[:, piece]),
                past_key_values=state,
                prompt_mask=None if prompt_mask is None else prompt_mask[:, piece],
                **also,
            )
            logits.append(made.logits)
        known = {name: value for name, value in made.items() if name not in ("logits", "past_key_values")}
        kept = {} if cache is None else {"past_key_values": cache}
        return type(made)(**known, **kept, logits=torch.cat(logits, dim=1))

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
        """What `forward` gets next: a step's ID is predicted here, where its token is known."""
        made = {name: value for name, value in kwargs.items() if value is not None}
        tokens = input_ids if next_sequence_length is None else input_ids[:, -next_sequence_length:]
        made["input_ids"] = tokens.clone(memory_format=torch.contiguous_format)
        seq = tokens.shape[1]
        past = past_key_values.num_read if isinstance(past_key_values, PositionCache) else 0
        if prompt_mask is not None and past < prompt_mask.shape[1]:
            rest = prompt_mask[:, past : past + seq]
            made["prompt_mask"] = torch.nn.functional.pad(rest, (0, seq - rest.shape[1]))
        if not isinstance(past_key_values, PositionCache):
            given = None if position_ids is None else position_ids[..., :seq]
            return made | {"attention_mask": attention_mask, "position_ids": given, "use_cache": False}
        made["past_key_values"] = past_key_values
        if is_first_iteration and past and position_ids is not None and position_ids.shape[-1] == seq:
            # A chunk of a long prompt, or new tokens behind a cache: the IDs are theirs.
            made["position_ids"] = position_ids
        else:
            made["position_ids"] = self._given_or_next(tokens, past, position_ids, past_key_values)
        if is_first_iteration or past == 0:
            return made | {"attention_mask": attention_mask}
        return made | self.step_inputs(tokens, past_key_values, attention_mask)

    def _given_or_next(
        self, tokens: Int[Tensor, "batch new"], past: int, given: Tensor | None, cache: PositionCache
    ) -> Tensor | None:
        if given is not None and given.shape[-1] >= past + tokens.shape[1]:
            return given[..., past : past + tokens.shape[1]]
        if past == 0 and given is not None:
            raise SettingError(
                f"position_ids are given for {given.shape[-1]} of {tokens.shape[1]} prompt tokens; give one for each"
            )
        return self.next_position_ids(cache, tokens) if past and tokens.shape[1] == 1 else None

    def _prepare_generation_config(self, *args: Any, **kwargs: Any) -> Any:
        settings, rest = super()._prepare_generation_config(*args, **kwargs)
        # Each asks the model for tokens without saying their IDs.
        drafting = [name for name in DRAFTING if getattr(settings, name, None)]
        if drafting:
            raise SettingError(f"drafted tokens would get counted IDs; leave out {' and '.join(drafting)}")
        if getattr(settings, "guidance_scale", None) not in (None, 1):
            raise SettingError("guidance asks the model for a second prompt without IDs; leave out guidance_scale")
        return settings, rest

    def _prepare_attention_mask_for_generation(self, *args: Any, **kwargs: Any) -> Any:
        # Made of the pad tokens of a call without a mask.
        made = super()._prepare_attention_mask_for_generation(*args, **kwargs)
        check_left_padding(made)
        return made

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
        tokens = model_kwargs.get("input_ids", inputs_tensor)
        return self.default_prompt_ids(tokens, model_kwargs.get("attention_mask"))

    def init_continuous_batching(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: continuous batching counts the IDs of all tokens."""
        raise SettingError("continuous batching counts position IDs, and this model has others; use generate")

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any) -> Any:
        made = super()._prepare_cache_for_generation(generation_config, model_kwargs, *args)
        if isinstance(cache := model_kwargs.get("past_key_values"), Cache):
            model_kwargs["past_key_values"] = PositionCache.of(cache)
        return made

    def _update_model_kwargs_for_generation(
        self, outputs: ModelOutput, model_kwargs: dict[str, Any], **also: Any
    ) -> dict[str, Any]:
        # `transformers` would count the given IDs up.
        given = model_kwargs.pop("position_ids", None)
        updated: dict[str, Any] = super()._update_model_kwargs_for_generation(outputs, model_kwargs, **also)
        return updated if given is None else updated | {"position_ids": given}


def _resume_ids(kwargs: dict[str, Any]) -> None:
    """IDs that are not known, as ``generate`` gives them for what it did not read again, are predicted."""
    given, cache = kwargs.get("position_ids"), kwargs.get("past_key_values")
    if given is None and isinstance(cache, PositionCache) and (known := cache.settle()) is not None:
        kwargs["position_ids"] = (
            known.position_ids if known.position_ids.dim() == 2 else known.position_ids.movedim(-1, 0)
        )
    elif given is not None and bool((given < 0).any()):
        known_columns = (given >= 0).flatten(0, -2).all(dim=0).long().cumprod(dim=0).sum()
        kwargs["position_ids"] = given[..., : int(known_columns)]


def _ids_of_sequences(written: ModelOutput, cache: PositionCache) -> Shaped[Tensor, "rows seq *level"]:
    """The IDs under which the tokens of each sequence were read, call by call; of beams, in the rows they had there."""
    sequences, prompt = written["sequences"], cache.steps[0]
    ids = prompt.new_full((*sequences.shape, *prompt.shape[2:]), -1)
    beams = written.get("beam_indices")
    if beams is None:
        read = torch.cat(cache.steps, dim=1)[:, : sequences.shape[1]]
        ids[:, : read.shape[1]] = read
        return ids
    # A long prompt may have been read in pieces.
    prompt_length, pieces = sequences.shape[1] - beams.shape[1], 1
    while sum(step.shape[1] for step in cache.steps[:pieces]) < prompt_length:
        pieces += 1
    ids[:, :prompt_length] = torch.cat(cache.steps[:pieces], dim=1)[beams[:, 0].long()]
    # A token was read in the call after the one that chose it, in the row that its sequence then went on from.
    for place, step in enumerate(cache.steps[pieces:], start=1):
        if place >= beams.shape[1]:
            break
        row = beams[:, place].long()
        ids[:, prompt_length + place - 1] = step[row.clamp(min=0), 0]
        ids[row < 0, prompt_length + place - 1] = -1
    return ids
