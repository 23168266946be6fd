"""Decoder of this library as a `transformers` model, and its configuration."""

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar, no_type_check

import numpy as np
import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from transformers import Cache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.utils import can_return_tuple

from lengthwise.core.checkpoint import weights_digest
from lengthwise.core.errors import ModelError, PromptWarning, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import NoPE
from lengthwise.experiments.experiment import Experiment, build_from_json, num_levels, to_dict
from lengthwise.hf.joint_loss import (
    PredictivePositionOutput,
    build_joint_output,
    drop_single_level,
    gather_prompt_keys,
    position_loss,
)
from lengthwise.hf.model_card import ModelCardMixin
from lengthwise.hf.model_inputs import (
    build_prompt_mask,
    check_labels,
    check_left_padding,
    check_no_embeddings,
    check_not_packed,
    expand_ids,
    select_logits,
)
from lengthwise.hf.model_parts import KeepPrecisionMixin
from lengthwise.hf.position_cache import CachedTokens, PositionCache
from lengthwise.hf.position_id_generation import PositionIDGenerationMixin
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks
from lengthwise.model.cache import KVCache as DecoderCache
from lengthwise.model.decoder import Decoder, build_decoder_in_memory
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.positions import SCHEMES, DiscoveredCoupling
from lengthwise.positions.scheme import SchemeWithLevels
from lengthwise.tasks import HasFilesToSave, JSONLTask
from lengthwise.tasks.coupling.answer_steps import NUM_UNKNOWN_STEPS
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_table import MARK, START

# Fields that must match the saved weights. The digest in ``belongs_to`` includes them.
DIGEST_FIELDS = (
    "decoder_settings",
    "encoding_settings",
    "symbols",
    "separators",
    "num_predicted_ids",
    "num_levels",
    "count_prompt_from",
    "run",
)
# Number of prompts per length from which `find_first_prompt_position_id` determines whether IDs are consecutive.
NUM_PROMPTS = 16
# Number of IDs that a decoder without position heads supports, unless its encoding has a table.
UNBOUNDED_IDS = 1 << 31


# The class accepts all entries of a saved configuration, including entries that are not fields.
@no_type_check
@strict
class LengthwiseConfig(PreTrainedConfig):
    """Settings of a `Decoder`, and the run that it was exported from.

    ``symbols`` is the vocabulary in the order of the tokens. ``run`` contains the experiment, the facts and the files
    of a run folder, for `import_hf`; it is None if the decoder does not come from a run. ``belongs_to`` is the digest
    of these fields and of the saved weights. ``count_prompt_from`` is the first prompt ID if evaluation IDs are
    consecutive, and None otherwise. ``prompt_end`` contains the symbols that end every prompt of the task.
    """

    model_type = "lengthwise"
    keys_to_ignore_at_inference = ("past_key_values", "token_loss", "position_loss", "predicted_position_ids")

    decoder_settings: dict[str, Any] | None = None
    encoding_settings: dict[str, Any] | None = None
    symbols: list[str] | None = None
    separators: list[str] | None = None
    num_predicted_ids: int | None = None
    num_levels: int = 1
    id_weight: float = 1.0
    count_prompt_from: int | None = None
    prompt_end: list[str] | None = None
    run: dict[str, Any] | None = None
    belongs_to: str | None = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    @property
    def predicts_ids(self) -> bool:
        """True if the decoder has position heads."""
        return self.num_predicted_ids is not None

    @property
    def num_position_ids(self) -> int:
        """Upper bound (exclusive) of the IDs of the position heads or of a learned encoding; else a large number."""
        return self.num_predicted_ids or (self.encoding_settings or {}).get("num_position_ids") or UNBOUNDED_IDS

    @property
    def prompt_scheme(self) -> DiscoveredCoupling | None:
        """Scheme whose rule gives the default prompt IDs, or None."""
        settings = (self.run or {}).get("experiment", {}).get("scheme", {})
        return build_from_json("scheme", settings) if settings.get("name") == DiscoveredCoupling.name else None

    @property
    def first_default_prompt_id(self) -> int | None:
        """Default first ID of consecutive prompt IDs; None if the caller must pass the prompt IDs."""
        return self.count_prompt_from


def build_config(experiment: Experiment, run: dict[str, Any]) -> LengthwiseConfig:
    """Return the configuration of an experiment's decoder, with ``run`` as its field of the same name."""
    vocabulary, settings = list(experiment.task.vocabulary), experiment.decoder
    end_token = vocabulary.index("end") if "end" in vocabulary else None
    return LengthwiseConfig(
        decoder_settings=asdict(settings),
        encoding_settings=to_dict(experiment.encoding),
        symbols=vocabulary,
        separators=list(experiment.task.separators),
        num_predicted_ids=(experiment.scheme.num_position_ids or 1) if experiment.scheme.predicts_ids else None,
        num_levels=num_levels(experiment),
        id_weight=experiment.training.id_weight,
        count_prompt_from=find_first_prompt_position_id(experiment),
        prompt_end=find_prompt_end(experiment),
        run=run,
        vocab_size=len(vocabulary),
        hidden_size=settings.d_model,
        num_hidden_layers=settings.num_unrolled_blocks,
        num_attention_heads=settings.num_heads,
        eos_token_id=end_token,
        pad_token_id=end_token,
    )


def decoder_from_config(config: LengthwiseConfig) -> Decoder:
    """Build a decoder with initial weights. Raises ``ModelError`` for a configuration without decoder settings."""
    if config.decoder_settings is None or config.encoding_settings is None or config.symbols is None:
        raise ModelError("the configuration has no decoder settings; create it with lengthwise export RUN --format hf")
    return build_decoder_in_memory(
        DecoderSettings(**config.decoder_settings),
        build_from_json("encoding", config.encoding_settings),
        vocabulary_size=config.vocab_size,
        separators=tuple(config.symbols.index(separator) for separator in config.separators or ()),
        num_predicted_ids=config.num_predicted_ids,
        num_levels=config.num_levels,
    )


def find_first_prompt_position_id(experiment: Experiment) -> int | None:
    """Return the first prompt ID if all evaluation prompts have consecutive IDs from it; otherwise None.

    If the decoder does not predict IDs, the IDs of the response must also be consecutive.
    """
    scheme = experiment.scheme
    if isinstance(experiment.encoding, NoPE) and not scheme.predicts_ids:
        # The decoder uses no IDs.
        return 0
    if scheme.random_at_evaluation or scheme.real_valued:
        return None
    first_ids: set[int] = set()
    for examples in _sample_examples(experiment):
        rng = random_stream(experiment.seed, "IDs of prompts")
        ids = scheme.assign(examples, rng, training=False).position_ids
        index = np.arange(ids.shape[-1])
        last_index = examples.prompt_length - 1 if scheme.predicts_ids else examples.response_end
        if (((ids - index) != ids[..., :1]) & (index <= last_index[:, None])).any():
            return None
        first_ids |= set(np.unique(ids[..., 0]).tolist())
    return first_ids.pop() if len(first_ids) == 1 else None


def find_prompt_end(experiment: Experiment) -> list[str]:
    """Return the last symbols of a prompt, as far as all sampled prompts share them."""
    if isinstance(experiment.task, JSONLTask):
        return [MARK, START]
    prompts = [
        tokens[:length].tolist()[::-1]
        for examples in _sample_examples(experiment)
        for tokens, length in zip(examples.tokens, examples.prompt_length, strict=True)
    ]
    shared = takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False))
    end = [experiment.task.vocabulary[tokens[0]] for tokens in shared][::-1]
    return [] if isinstance(experiment.task, HasFilesToSave) else end


def _sample_examples(experiment: Experiment) -> list[Examples]:
    task, lengths = experiment.task, experiment.train_lengths
    if isinstance(task, HasFilesToSave):
        # The files may be missing, and a few examples may not represent all examples.
        scheme = experiment.scheme
        # The placeholder does not have the tokens that a found rule counts from.
        counts_up = (
            scheme.needs is None and type(scheme) in SCHEMES.values() and not isinstance(scheme, SchemeWithLevels)
        )
        return [task.placeholder_example()] if counts_up else []
    chosen = sorted({lengths[0], lengths[len(lengths) // 2], lengths[-1]})
    return [
        task.sample(length=length, size=NUM_PROMPTS, rng=random_stream(experiment.seed, "prompts")) for length in chosen
    ]


class LengthwiseForCausalLM(
    ModelCardMixin, KeepPrecisionMixin, PositionIDGenerationMixin, PreTrainedModel, GenerationMixin
):
    """Decoder of this library with the interface of a causal `transformers` language model.

    ``position_ids`` have shape (batch, seq), or (level, batch, seq) for a decoder with several levels. In the
    output of ``generate``, their shape is (batch, seq, level). ``attention_mask`` hides left padding.
    """

    config_class = LengthwiseConfig
    config: LengthwiseConfig
    base_model_prefix = "decoder"
    model_description: ClassVar[str] = "Decoder trained for length generalization"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # `Trainer` must not pass the number of labels, because the loss is the mean over a batch.
    accepts_loss_kwargs = False
    # In half precision, angles and position heads cannot distinguish many IDs.
    _keep_in_fp32_modules_strict: ClassVar[list[str]] = ["decoder"]

    def __init__(self, config: LengthwiseConfig) -> None:
        super().__init__(config)
        self.decoder = decoder_from_config(config)
        self.gradient_checkpointing = False
        self.post_init()

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save the model as in `transformers`, with a digest of the weights in the configuration."""
        weights = kwargs.get("state_dict")
        self.config.belongs_to = self._digest(self.state_dict() if weights is None else weights)
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """Load as in `transformers`; raise ``ModelError`` if weights and configuration were not saved together.

        Without a folder, the weights are in ``state_dict``; it needs all weights.
        """
        source = pretrained_model_name_or_path
        model, loading_info = super().from_pretrained(source, *args, output_loading_info=True, **kwargs)
        # Offloaded weights have no digest.
        is_in_memory = not any(weight.is_meta for weight in model.parameters())
        if source is None:
            source, is_changed = "state_dict", bool(loading_info["missing_keys"])
        else:
            is_changed = is_in_memory and model.config.belongs_to != model._digest(model.state_dict())
        if is_changed:
            raise ModelError(
                f"the weights in {source} do not match the configuration, so one of them was changed; export the run "
                "again, or save the model again"
            )
        return (model, loading_info) if output_loading_info else model

    def _digest(self, weights: Mapping[str, Tensor]) -> str:
        """Return a digest that combines the fields in ``DIGEST_FIELDS`` with the digest of the weights."""
        fields = {name: getattr(self.config, name) for name in DIGEST_FIELDS} | {"weights": weights_digest(weights)}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch new"] | None = None,
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
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> PredictivePositionOutput:
        """Return the logits, and the joint loss of ``labels`` and ``position_labels`` (shape of ``position_ids``).

        `PredictivePositionModel` describes the arguments. If ``position_ids`` are missing and the cache is empty, the
        tokens get the default prompt IDs of the configuration. Missing IDs of tokens after the cache are predicted.
        ``hidden_states`` are the inputs of the blocks, and the output of the last norm. Packed rows and requests for
        attention weights raise ``SettingError``.
        """
        check_no_embeddings(inputs_embeds)
        if input_ids is None:
            raise SettingError("input_ids are missing; pass the tokens of each sequence")
        if names := [name for name, value in kwargs.items() if value is not None and value is not False]:
            raise SettingError(
                f"this decoder does not support {', '.join(names)}; leave them out (pack_to in the collator adds "
                "sequence_ids)"
            )
        heads = self.decoder.heads
        check_labels(heads, self.num_position_heads, labels, position_labels, is_training=self.training)
        cache = self.get_or_create_cache(past_key_values, use_cache)
        num_ids = 0 if position_ids is None else position_ids.shape[-1]
        if position_ids is None or num_ids < input_ids.shape[1]:
            call_inputs = (input_ids, attention_mask, position_ids, cache, prompt_mask)
            options = {"output_hidden_states": output_hidden_states}
            return self.forward_token_by_token(*call_inputs, logits_to_keep, labels, position_labels, **options)
        # IDs without a level axis apply to all levels.
        ids = expand_ids(position_ids, len(input_ids)).expand(self.config.num_levels, -1, -1)
        if attention_mask is None and labels is not None and position_labels is None:
            check_not_packed(ids[0])
        hooks = self._hooks(input_ids, attention_mask, cache)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        block_inputs: list[Tensor] = []
        uses_checkpoints = self.gradient_checkpointing and self.training and cache is None
        checkpoints = self._checkpoint_blocks() if uses_checkpoints else nullcontext()
        recorder = self._record_block_inputs(block_inputs, input_ids.shape) if output_hidden_states else nullcontext()
        with checkpoints, recorder:
            hidden, decoder_cache = self.decoder(input_ids, ids, self._decoder_cache(cache), hooks=hooks)
        layers = (*block_inputs, hidden) if output_hidden_states else None
        is_prompt = build_prompt_mask(input_ids, attention_mask, cache, labels, prompt_mask)
        if cache is not None:
            _update_layers(cache, decoder_cache)
            extends = prompt_mask is not None or labels is not None
            cached_ids = _move_levels_last(ids)
            cache.append(CachedTokens(input_ids, cached_ids, is_prompt, hidden.detach(), extends_prompt=extends))
        logits = self.decoder.token_logits(hidden if labels is not None else select_logits(hidden, logits_to_keep))
        id_losses = []
        if position_labels is not None:
            targets = position_labels[None] if position_labels.dim() == 2 else position_labels
            embed = self.decoder.embed_tokens
            for head, level_ids, level_targets in zip(self.decoder.position_heads(), ids, targets, strict=True):
                call = CachedTokens(input_ids, level_ids, is_prompt, hidden)
                id_losses.append(position_loss(head, embed, embed, call, level_targets, num_items_in_batch))
        weight = self.config.id_weight
        outputs = {"past_key_values": cache, "hidden_states": layers}
        return build_joint_output(logits, labels, id_losses, num_items_in_batch, id_weight=weight, **outputs)

    @contextmanager
    def _checkpoint_blocks(self) -> Iterator[None]:
        for block in self.decoder.blocks:
            block.forward = partial(self._gradient_checkpointing_func, block.forward)
        try:
            yield
        finally:
            for block in self.decoder.blocks:
                del block.forward

    @contextmanager
    def _record_block_inputs(self, inputs: list[Tensor], batch_and_seq: torch.Size) -> Iterator[None]:
        def record(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            # A block reads the tokens of all sequences along one axis. It reads the recorded tensor, which thus gets
            # a gradient.
            inputs.append(args[0].view(*batch_and_seq, -1))
            return (inputs[-1].view(args[0].shape), *args[1:])

        handles = [block.register_forward_pre_hook(record) for block in self.decoder.blocks]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @property
    def num_position_heads(self) -> int:
        """Number of position heads: one per level, or 0."""
        return len(self.decoder.heads)

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """Generate as `PositionIDGenerationMixin` does; warns if a prompt lacks the symbols that end every prompt."""
        tokens = kwargs.get("input_ids") if inputs is None else inputs
        end = self.config.prompt_end
        if end and isinstance(tokens, Tensor) and kwargs.get("past_key_values") is None:
            expected = tokens.new_tensor([(self.config.symbols or []).index(symbol) for symbol in end])
            if tokens.shape[1] < len(end) or bool((tokens[:, -len(end) :] != expected).any()):
                warnings.warn(
                    f"a prompt does not end with {' '.join(end)!r}, as all prompts in training; add these symbols",
                    PromptWarning,
                    stacklevel=2,
                )
        return super().generate(inputs, *args, **kwargs)

    def default_prompt_ids(self, tokens: Int[Tensor, "batch new"], attention_mask: Tensor | None) -> Tensor:
        """Return the IDs by the run's found rule (0 at padding on the left), if it has one, or else consecutive IDs.

        Raises ``PromptError`` for a prompt without a token that the rule counts from.
        """
        scheme = self.config.prompt_scheme
        if scheme is None:
            return super().default_prompt_ids(tokens, attention_mask)
        if attention_mask is not None and attention_mask.ndim != 2:
            raise SettingError("a 4-D attention_mask does not mark the first token of a prompt; pass position_ids too")
        check_left_padding(attention_mask)
        batch, seq = tokens.shape
        counts = [seq] * batch if attention_mask is None else attention_mask.bool().sum(dim=1).tolist()
        ids = tokens.new_zeros(scheme.num_levels, batch, seq)
        for row, count in enumerate(counts):
            prompt = tokens[row, seq - count :].cpu().numpy()
            # The rule looks at what the first, unknown answers need.
            text = np.concatenate([prompt, np.zeros(NUM_UNKNOWN_STEPS, dtype=prompt.dtype)])[None]
            examples = Examples(
                tokens=text, prompt_length=np.array([count]), is_answer=np.zeros(text.shape, dtype=bool)
            )
            assignment = scheme.assign(examples, random_stream(0, "prompt IDs"), training=False)
            ids[:, row, seq - count :] = torch.tensor(assignment.position_ids[:, 0, :count])
        return drop_single_level(ids)

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
            return drop_single_level(last_ids + 1)
        if past_key_values.prompts is None:
            past_key_values.prompts = [
                gather_prompt_keys(head, self.decoder.embed_tokens, replace(cached, position_ids=level_ids))
                for head, level_ids in zip(self.decoder.position_heads(), ids, strict=True)
            ]
        levels = self.decoder.next_id_distributions(
            past_key_values.last_hidden(), last_ids, tokens, past_key_values.prompts
        )
        return drop_single_level(torch.stack([level.most_likely_ids().clamp(min=0) for level in levels]))

    def get_input_embeddings(self) -> nn.Module:
        """Return a module whose weight is the embedding of the decoder, which is a parameter."""
        module = nn.Embedding(0, 0, device="meta")
        module.weight = self.decoder.embedding
        module.num_embeddings, module.embedding_dim = self.decoder.embedding.shape
        return module

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding of the decoder by the weight of a module."""
        weight = value.weight
        assert isinstance(weight, nn.Parameter)
        self.decoder.embedding = weight

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the output layer, or None if the embedding is also the output layer."""
        return self.decoder.output

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replace the output layer."""
        self.decoder.output = value

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
