"""Decoder with pre-norm blocks and one encoding; for PPC, it also has one position head per level."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lengthwise.core.devices import check_memory, compile_function, constant_tensor
from lengthwise.core.errors import PositionIDError, PositionRangeError, SettingError
from lengthwise.encodings import ENCODINGS, EncodingSettings, EncodingSize, NoPE
from lengthwise.encodings.multi_level import MultiLevelEncoding
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks
from lengthwise.model.block import RMSNorm, TransformerBlock
from lengthwise.model.cache import KVCache
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.fast.embedding import look_up_rows
from lengthwise.model.fast.switch import fast_paths_enabled
from lengthwise.model.position_heads import (
    POSITION_HEADS,
    NextIDDistribution,
    PositionHead,
    PromptKeys,
    build_prompt_keys,
)
from lengthwise.model.sequence_groups import SequenceGroup, join_tokens, split_queries

# Bytes per weight in training: the weight, its gradient and two moments of AdamW.
BYTES_PER_WEIGHT = 16


@dataclass(frozen=True, slots=True)
class PositionIDRequirements:
    """Requirements of a decoder on position IDs: number of levels, exclusive upper limit or None, and number type."""

    encoding: str
    num_levels: int
    num_position_ids: int | None
    real_valued: bool

    def __call__(self, tokens: Int[Tensor, "batch seq"], position_ids: Tensor) -> Real[Tensor, "level batch seq"]:
        """Return the IDs with a leading level axis; raise ``PositionIDError`` or ``PositionRangeError`` if invalid."""
        ids = position_ids[None] if position_ids.dim() == 2 else position_ids
        if ids.dim() != 3 or ids.shape[1:] != tokens.shape:
            raise PositionIDError(
                f"position IDs have shape {tuple(position_ids.shape)} but tokens have shape {tuple(tokens.shape)}; "
                f"pass (batch, seq), or (level, batch, seq) with {self.num_levels} level(s)"
            )
        if len(ids) != self.num_levels:
            raise PositionIDError(
                f"position IDs have {len(ids)} level(s) but this decoder was built for {self.num_levels}; "
                f"pass IDs with {self.num_levels} level(s), or build the decoder with num_levels={len(ids)}"
            )
        if ids.is_complex() or ids.dtype == torch.bool:
            raise PositionIDError(f"position IDs have the invalid type {ids.dtype}; pass whole or real numbers")
        if ids.is_floating_point() and not self.real_valued:
            raise PositionIDError(
                f"position IDs are real numbers ({ids.dtype}) but the encoding {self.encoding} needs whole numbers; "
                "use a scheme with whole IDs, or an encoding for real IDs, such as rotary"
            )
        # Distances between unsigned or small integer types would overflow.
        ids = ids.double() if ids.is_floating_point() else ids.long()
        # Reading values would synchronize a GPU, and stop the export of a graph. IDs on a GPU come from a batch that
        # was checked on the CPU.
        if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():
            self._check_values(ids)
        return ids

    def _check_values(self, ids: Tensor) -> None:
        smallest_id, largest_id = ids.min().item(), ids.max().item()
        if not (smallest_id >= 0 and largest_id < math.inf):
            invalid_id = largest_id if smallest_id >= 0 else smallest_id
            raise PositionIDError(f"position ID {invalid_id} is negative, infinite or NaN; IDs start at 0")
        if self.num_position_ids is not None and largest_id >= self.num_position_ids:
            raise PositionRangeError(
                f"position ID {largest_id} is beyond the {self.num_position_ids} IDs of the encoding {self.encoding}; "
                f"set its num_position_ids to at least {largest_id + 1}"
            )


class Decoder(nn.Module):
    """Decoder from tokens and position IDs to hidden states, for ``token_logits`` and ``next_id_distributions``.

    If ``num_predicted_ids`` is set, each level has a position head for IDs below this number. The causal mask depends
    only on the token index; only the encoding and the position heads use the IDs.
    """

    def __init__(
        self,
        settings: DecoderSettings,
        encoding: EncodingSettings,
        *,
        vocabulary_size: int,
        separators: tuple[int, ...] = (),
        num_predicted_ids: int | None = None,
        num_levels: int = 1,
    ) -> None:
        super().__init__()
        d_model = settings.d_model
        d_head, num_layers = d_model // settings.num_heads, settings.num_layers
        size = EncodingSize(d_model=d_model, num_heads=settings.num_heads, d_head=d_head, num_layers=num_layers)
        self.settings = settings
        self.separators = separators
        # True: ``forward_batches`` and the loss of its tokens are compiled, for the training of large models on a GPU.
        self.compiles_training = False
        self.check_ids = PositionIDRequirements(
            encoding.name, num_levels, encoding.num_position_ids, encoding.real_valued
        )
        self.embedding = nn.Parameter(torch.randn(vocabulary_size, d_model).div_(math.sqrt(d_model)))
        self.segment = nn.Parameter(torch.zeros(len(separators) + 1, d_model)) if settings.segments else None
        self.previous_share = nn.Parameter(torch.zeros(d_model)) if settings.previous_token_mix else None
        self.encoding = MultiLevelEncoding(encoding, size, num_levels, one_per_head=settings.level_per_head)
        self.predicts_ids = num_predicted_ids is not None
        self.uses_position_ids = self.predicts_ids or self.encoding.uses_position_ids
        self.blocks = nn.ModuleList(TransformerBlock(settings, layer) for layer in range(num_layers))
        self.norm = RMSNorm(d_model)
        self.output = None if settings.tied_output else nn.Linear(d_model, vocabulary_size, bias=False)
        self.heads = nn.ModuleList(
            POSITION_HEADS[settings.head](d_model, num_predicted_ids)
            for _ in range(num_levels)
            if num_predicted_ids is not None
        )

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Tensor,
        cache: KVCache | None = None,
        *,
        query_start: int = 0,
        hooks: AttentionHooks = NO_HOOKS,
        keep_indices: Int[Tensor, "entries new_seq"] | None = None,
    ) -> tuple[Float[Tensor, "entries query d_model"], KVCache]:
        """Return the hidden states of ``tokens``, which follow the tokens in ``cache``, and the extended cache.

        ``position_ids`` has shape (batch, seq) or (level, batch, seq). Raises ``PositionIDError`` for a wrong shape or
        type or a negative ID, and ``PositionRangeError`` for an ID beyond the encoding's table. The last block computes
        only hidden states from index ``query_start`` on, which must be 0 with ``hooks``. After the embeddings, the
        decoder keeps only the tokens at ``keep_indices``, which increase; several rows may belong to one sequence.
        """
        ids = self.check_ids(tokens, position_ids)
        x, new_cache = self.embed_inputs(tokens, ids, cache)
        if keep_indices is not None:
            entries = torch.arange(len(keep_indices), device=keep_indices.device)[:, None]
            sequence = entries // (len(keep_indices) // len(tokens))
            x, ids = x[sequence, keep_indices], ids[:, sequence, keep_indices]
            new_cache.position_ids = ids
        group = SequenceGroup(position_ids=ids, key_ids=new_cache.position_ids, query_start=query_start)
        (hidden,) = self._run_blocks([x], [group], new_cache, cache, hooks)
        return hidden, new_cache

    def forward_batches(
        self,
        tokens: Sequence[Int[Tensor, "_batch _seq"]],
        position_ids: Sequence[Tensor],
        query_starts: Sequence[int],
        places: Sequence[range | None] | None = None,
    ) -> list[Float[Tensor, "_batch _query d_model"]]:
        """Return the hidden states of several batches, the same as ``forward`` for each batch, but in less time.

        ``places`` are the indexes of each batch's sequences in a larger batch, if they are a share of it; see
        ``SequenceGroup``.
        """
        pairs = zip(tokens, position_ids, strict=True)
        embedded = [self.embed_inputs(part, self.check_ids(part, ids), None) for part, ids in pairs]
        xs, caches = zip(*embedded, strict=True)
        places = [None] * len(xs) if places is None else places
        groups = [
            SequenceGroup(position_ids=cache.position_ids, key_ids=cache.position_ids, query_start=start, places=place)
            for cache, start, place in zip(caches, query_starts, places, strict=True)
        ]
        run = compile_function(TransformerBlock.forward) if self.compiles_training else TransformerBlock.__call__
        return self._run_blocks(xs, groups, caches[-1], None, NO_HOOKS, run)

    def _run_blocks(
        self,
        xs: Sequence[Float[Tensor, "_batch _seq d_model"]],
        groups: Sequence[SequenceGroup],
        cache: KVCache,
        past: KVCache | None,
        hooks: AttentionHooks,
        run: Callable[..., tuple[Tensor, Tensor, Tensor]] = TransformerBlock.__call__,
    ) -> list[Float[Tensor, "_batch _query d_model"]]:
        """Return the hidden states of each group, and add the keys and values of the last group to ``cache``.

        ``run`` calls a block with its arguments.
        """
        hidden = embedded = join_tokens(xs)
        whole_groups = [replace(group, query_start=0) for group in groups]
        passes = self.unrolled_blocks
        for index, block in enumerate(passes):
            pass_groups = groups if index == len(passes) - 1 else whole_groups
            extend = None if past is None else partial(past.extend_layer, index)
            # The input of a loop after the first includes the embeddings.
            if index > 0 and index % len(self.blocks) == 0:
                hidden = hidden + embedded
            hidden, key, value = run(block, hidden, pass_groups, self.encoding, extend, hooks)
            cache.keys.append(key)
            cache.values.append(value)
        return split_queries(self.norm(hidden), groups)

    @property
    def unrolled_blocks(self) -> list[TransformerBlock]:
        """Block of each pass; a looped decoder passes through its blocks several times."""
        return [block for block in self.blocks if isinstance(block, TransformerBlock)] * self.settings.loops

    @property
    def allows_near_attention(self) -> bool:
        """True if ``NearAttention`` can replace the attention: one pass, softmax, and scores by ID distance."""
        has_one_pass, uses_softmax = len(self.unrolled_blocks) == 1, self.unrolled_blocks[0].weight_function is None
        is_relative = self.encoding.is_relative and not self.encoding.has_scores
        return fast_paths_enabled() and has_one_pass and uses_softmax and is_relative

    def token_logits(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Return the logits of the next token for each hidden state, in float32."""
        logits: Tensor = hidden @ self.embedding.T if self.output is None else self.output(hidden)
        return logits.float()

    def build_prompt_keys(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "level batch seq"],
        prompt_length: Int[Tensor, " batch"],
        max_prompt_length: int | None = None,
    ) -> list[PromptKeys]:
        """Return the prompts of each level as ``next_id_distributions`` requires them; call this once per batch.

        If ``max_prompt_length`` is given, no prompt may be longer, and a GPU does not have to wait for any number.
        """
        stop = int(prompt_length.max()) if max_prompt_length is None else max_prompt_length
        embeddings = self.embed_tokens(tokens[:, :stop])
        pairs = zip(self.position_heads(), position_ids[:, :, :stop], strict=True)
        return [build_prompt_keys(head, embeddings, ids, prompt_length, max_prompt_length) for head, ids in pairs]

    def next_id_distributions(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        current_ids: Int[Tensor, "level batch query"],
        next_tokens: Int[Tensor, "batch query"],
        prompts: list[PromptKeys],
    ) -> list[NextIDDistribution]:
        """Return the distribution over the ID of each next token on each level.

        ``hidden`` and ``current_ids`` belong to the tokens just before ``next_tokens``.
        """
        embeddings = self.embed_tokens(next_tokens)
        levels = zip(self.position_heads(), current_ids, prompts, strict=True)
        return [head(hidden, ids, embeddings, prompt) for head, ids, prompt in levels]

    def most_likely_ids(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        current_ids: Int[Tensor, "level batch query"],
        next_tokens: Int[Tensor, "batch query"],
        prompts: list[PromptKeys],
    ) -> Int[Tensor, "level batch query"]:
        """Return the most likely ID of each next token on each level; arguments as of ``next_id_distributions``."""
        embeddings = self.embed_tokens(next_tokens)
        levels = zip(self.position_heads(), current_ids, prompts, strict=True)
        return torch.stack([head.most_likely_ids(hidden, ids, embeddings, prompt) for head, ids, prompt in levels])

    def position_heads(self) -> list[PositionHead]:
        """Return the position head of each level; raise ``SettingError`` if the decoder has none."""
        if not self.predicts_ids:
            raise SettingError("this decoder has no position head; train it with the scheme 'predicted'")
        return [head for head in self.heads if isinstance(head, PositionHead)]

    def embed_tokens(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """Return the token embeddings, without positions and segments."""
        return look_up_rows(self.embedding, tokens)

    def embed_inputs(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Real[Tensor, "level batch seq"], cache: KVCache | None
    ) -> tuple[Float[Tensor, "batch seq d_model"], KVCache]:
        """Return the input of the first block, and the extended cache without keys and values."""
        x = embeddings = self.embed_tokens(tokens)
        previous = x.new_zeros(x[:, :1].shape) if cache is None else cache.last_embedding
        num_separators = torch.zeros_like(tokens[:, :1]) if cache is None else cache.num_separators
        if self.previous_share is not None:
            x = x + self.previous_share * torch.cat([previous, embeddings[:, :-1]], dim=1)
        # ONNX has no torch.isin.
        is_separator = (tokens[..., None] == constant_tensor(self.separators, tokens.device)).any(dim=-1)
        separators = num_separators + is_separator.cumsum(dim=1)
        if self.segment is not None:
            # A separator belongs to the segment that it ends. In the next segment, a head that reads only the prompt
            # would miss it, although the end token can depend on it: see test_a_separator_has_the_segment_that_it_ends.
            x = x + look_up_rows(self.segment, (separators - is_separator.long()).clamp(max=len(self.separators)))
        x = self.encoding.embed(x, position_ids)
        if cache is None:
            return x, KVCache(position_ids, embeddings[:, -1:], separators[:, -1:])
        all_ids = cache.extend_ids(position_ids)
        return x, KVCache(all_ids, embeddings[:, -1:], separators[:, -1:], buffers=cache.buffers)


def build_decoder_in_memory(settings: DecoderSettings, encoding: EncodingSettings, **sizes: Any) -> Decoder:
    """Return a decoder with initial weights; ``sizes`` are the other arguments of `Decoder`.

    Raises ``SettingError`` before it allocates a decoder whose training needs more memory than the machine has.
    """
    size = count_weights(settings, encoding, **sizes)
    advice = "use a smaller num_layers, d_model or num_position_ids"
    check_memory(BYTES_PER_WEIGHT * size, f"a decoder of {size:,} weights", advice)
    return Decoder(settings, encoding, **sizes)


def count_weights(settings: DecoderSettings, encoding: EncodingSettings, **sizes: Any) -> int:
    """Return the number of weights of a decoder without allocating them; those of a custom encoding do not count."""
    # The class of a custom encoding may not support tensors without values.
    known_encoding = encoding if type(encoding) in ENCODINGS.values() else NoPE()
    with torch.device("meta"), _WithoutValues():
        return sum(weights.numel() for weights in Decoder(settings, known_encoding, **sizes).parameters())


class _WithoutValues(TorchFunctionMode):
    """Creation of tensors whose values do not matter; computing them on ``meta`` would import sympy for a second."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if function is torch.randn:
            return torch.empty(*args, **kwargs)
        is_in_place = function.__name__.endswith("_") and not function.__name__.endswith("__")
        return args[0] if is_in_place and args else function(*args, **kwargs)
