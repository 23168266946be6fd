"""Our own decoder as a model of `transformers`."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedModel
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
from lengthwise.hf.joint_loss import Asked, IDLoss, gather_prompts, joint_loss, position_loss, token_loss
from lengthwise.hf.lengthwise_config import LengthwiseConfig, build_decoder
from lengthwise.hf.model_inputs import build_prompt_mask, expand_ids, select_logits
from lengthwise.hf.model_parts import PrecisionMixin
from lengthwise.hf.position_cache import PositionCache, Read
from lengthwise.hf.predictive_config import PredictivePositionOutput
from lengthwise.hf.saving import ModelCardMixin
from lengthwise.model.attention_scores import PLAINLY, Looking
from lengthwise.model.decoder import Cache as DecoderCache


class LengthwiseForCausalLM(ModelCardMixin, PrecisionMixin, IDGenerationMixin, PreTrainedModel, GenerationMixin):
    """A decoder of ours with the interface of a causal language model of `transformers`.

    ``position_ids`` are (batch, seq), or (level, batch, seq) where the decoder was built for several levels; in what
    ``generate`` returns, levels come last. Fill before a prompt is hidden by ``attention_mask``.
    """

    config_class = LengthwiseConfig
    config: LengthwiseConfig
    base_model_prefix = "decoder"
    card_kind: ClassVar[str] = "Decoder trained for length generalization"
    main_input_name = "input_ids"
    # Trainers give none: the loss of a batch is its mean.
    accepts_loss_kwargs = False
    # Its angles and heads would tell too few IDs apart in half precision.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["decoder"]

    def __init__(self, config: LengthwiseConfig) -> None:
        super().__init__(config)
        self.decoder = build_decoder(config)
        self.post_init()

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in `transformers`; the configuration names what its weights are."""
        weights = kwargs.get("state_dict")
        self.config.belongs_to = self._digest(self.state_dict() if weights is None else weights)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in `transformers`; ``ModelError`` where weights and configuration were not saved together."""
        model, found = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        # What is not in memory cannot be looked at.
        in_memory = not any(weight.is_meta for weight in model.parameters())
        if in_memory and model.config.belongs_to != model._digest(model.state_dict()):
            raise ModelError(
                f"the weights in {model.config.name_or_path} are not those that its config.json was saved with, or "
                "one of them was changed; export the run again, or save the model again"
            )
        return (model, found) if output_loading_info else model

    def _digest(self, weights: Mapping[str, Tensor]) -> str:
        return self.config.digest_with(weights_digest(weights))

    @can_return_tuple
    def forward(  # noqa: PLR0913, PLR0917
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
        **other: Any,
    ) -> PredictivePositionOutput:
        """Logits, and the joint loss of ``labels`` and ``position_labels``, which has the shape of ``position_ids``.

        As in `PredictivePositionModel`; without ``position_ids`` those of a first call count up where they did in
        training, and a later token's are predicted. Packed rows, hidden states and attention weights are not served:
        ``SettingError``.
        """
        check_no_embeddings(inputs_embeds)
        check_supported_arguments(other)
        check_has_head(self.num_position_heads, position_labels)
        if self.training:
            check_id_training(self.decoder.heads, labels, position_labels)
            if position_labels is not None:
                check_token_labels(labels)
        cache = None if past_key_values is None else PositionCache.of(past_key_values)
        if cache is None and use_cache:
            cache = PositionCache(DynamicCache(config=self.config))
        given = 0 if position_ids is None else position_ids.shape[-1]
        if position_ids is None or given < input_ids.shape[1]:
            check_all_ids(given, input_ids, labels, position_labels)
            return self.forward_token_by_token(input_ids, attention_mask, position_ids, cache, prompt_mask)
        # Those that were counted up are the same on all levels.
        ids = expand_ids(position_ids, len(input_ids)).expand(self.config.num_levels, -1, -1)
        looking = self._looking(input_ids, attention_mask, cache)
        hidden, grown = self.decoder(
            input_ids, ids, None if cache is None else self._decoder_cache(cache), looking=looking
        )
        is_prompt = build_prompt_mask(input_ids, attention_mask, cache, labels, prompt_mask)
        if cache is not None:
            _keep(cache, grown)
            told = prompt_mask is not None or labels is not None
            cache.note(Read(input_ids, _last(ids), is_prompt, hidden.detach(), new_prompt=told))
        logits = self.decoder.token_logits(hidden if labels is not None else select_logits(hidden, logits_to_keep))
        of_tokens = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        of_ids = None
        if position_labels is not None and self.decoder.predicts_ids:
            wanted = position_labels[None] if position_labels.dim() == 2 else position_labels
            pairs = zip(ids, wanted, strict=True)
            asked = [Asked(hidden, input_ids, own_ids, is_prompt, of_level) for own_ids, of_level in pairs]
            of_ids = self._loss_of_levels(asked, num_items_in_batch)
        return PredictivePositionOutput(
            loss=joint_loss(of_tokens, of_ids, self.config.id_weight),
            logits=logits,
            past_key_values=cache,
            token_loss=of_tokens,
            position_loss=None if of_ids is None else of_ids.loss,
            predicted_position_ids=None if of_ids is None else of_ids.predicted,
        )

    def _loss_of_levels(self, asked: list[Asked], num_items: Tensor | int | None) -> IDLoss:
        """The sum over levels, each with its own head."""
        embed = self.decoder.embed_tokens
        levels = [
            position_loss(head, embed, embed, level, num_items)
            for head, level in zip(self.decoder.position_heads(), asked, strict=True)
        ]
        loss = torch.stack([level.loss for level in levels]).sum()
        predicted = [level.predicted for level in levels if level.predicted is not None]
        return IDLoss(loss, _squeezed(torch.stack(predicted)) if predicted else None)

    @property
    def num_position_heads(self) -> int:
        """One per level, or none."""
        return len(self.decoder.heads)

    def next_position_ids(self, past_key_values: PositionCache, tokens: Int[Tensor, "batch 1"]) -> Tensor:
        """Return the IDs of tokens that were just chosen, on every level; without a head the last ones plus one."""
        known = past_key_values.settle()
        assert known is not None
        own_ids = _first(known.position_ids[:, -1:])
        if not self.decoder.predicts_ids:
            if self.config.first_counted_id is None:
                raise SettingError(
                    "this decoder predicts no IDs, and those of its training do not count up; give position_ids of all "
                    "tokens, those to be written included"
                )
            return _squeezed(own_ids + 1)
        if past_key_values.prompts is None:
            past_key_values.prompts = [
                gather_prompts(head, self.decoder.embed_tokens, known.tokens, level, known.is_prompt)
                for head, level in zip(self.decoder.position_heads(), _first(known.position_ids), strict=True)
            ]
        hidden = past_key_values.last_hidden()
        levels = self.decoder.next_ids(hidden, own_ids, tokens, past_key_values.prompts)
        return _squeezed(torch.stack([level.most_likely().clamp(min=0) for level in levels]))

    def get_input_embeddings(self) -> nn.Module:
        """None that is a module: the decoder's embeddings are a parameter."""
        raise NotImplementedError("our own decoder's embeddings are a parameter, and no module")

    def _init_weights(self, module: nn.Module) -> None:
        # Weights start as the decoder's own constructors say. What is not saved (slopes of ALiBi, windows) is made
        # again: loading builds the model without values.
        own = dict(module.named_buffers(recurse=False))
        if own:
            where = next(name for name, part in self.decoder.named_modules() if part is module)
            made = build_decoder(self.config).get_submodule(where)
            for name, buffer in own.items():
                buffer.copy_(getattr(made, name))

    def _looking(self, tokens: Tensor, attention_mask: Tensor | None, cache: PositionCache | None) -> Looking:
        if attention_mask is None or bool(attention_mask.all()):
            return PLAINLY
        if self.decoder.settings.previous_token_mix:
            raise SettingError(
                "this decoder mixes each token with the one before it, fill included; give prompts of one length, "
                "without an attention_mask"
            )
        new, past = tokens.shape[1], 0 if cache is None else cache.num_read
        hidden = ~attention_mask.bool()[:, None].expand(-1, new, -1).clone()
        # Fill sees itself: a softmax over nothing is no number.
        hidden.diagonal(past, 1, 2).fill_(False)
        return Looking(added=torch.zeros(hidden.shape, device=tokens.device).masked_fill_(hidden, -torch.inf))

    def _decoder_cache(self, cache: PositionCache) -> DecoderCache | None:
        known = cache.settle()
        if known is None:
            return None
        layers: Any = cache.layers
        separators = torch.tensor(self.decoder.separators, device=known.tokens.device)
        seen = torch.isin(known.tokens, separators).sum(dim=1, keepdim=True)
        return DecoderCache(
            position_ids=_first(known.position_ids),
            last_embedding=self.decoder.embed_tokens(known.tokens[:, -1:]),
            separators_seen=seen.clamp(max=len(separators)),
            keys=[layer.keys for layer in layers],
            values=[layer.values for layer in layers],
        )


def _keep(cache: PositionCache, grown: DecoderCache) -> None:
    """Put the decoder's keys and values into the layers of a cache of `transformers`."""
    layers: Any = cache.layers
    for layer, key, value in zip(layers, grown.keys, grown.values, strict=True):
        if not hasattr(layer, "crop"):
            raise SettingError("this decoder needs a cache that grows; leave out cache_implementation")
        if not layer.is_initialized:
            layer.lazy_initialization(key, value)
        layer.keys, layer.values = key, value


def _last(levels: Shaped[Tensor, "level batch seq"]) -> Tensor:
    """Levels last, so that rows come first; none for a single level."""
    return levels[0] if len(levels) == 1 else levels.movedim(0, -1)


def _first(ids: Tensor) -> Shaped[Tensor, "level batch seq"]:
    return ids[None] if ids.dim() == 2 else ids.movedim(-1, 0)


def _squeezed(levels: Shaped[Tensor, "level batch seq"]) -> Tensor:
    return levels[0] if len(levels) == 1 else levels
