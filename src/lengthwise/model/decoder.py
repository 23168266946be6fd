"""Decoder with pre-norm blocks and one encoding; for PPC, it also has one position head per level."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.encodings import EncodingSettings, EncodingSize
from lengthwise.encodings.levels import LevelEncoding
from lengthwise.model.attention import attend, attend_with_scores, dilute_attention
from lengthwise.model.attention_scores import NO_HOOKS, AttentionHooks, LengthScale, ScoreChunks
from lengthwise.model.attention_weights import make_weight_function, softmax
from lengthwise.model.cache import Cache, ExtendLayer
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.near_attention import LayerInputs
from lengthwise.model.position_heads import POSITION_HEADS, NextIDs, PositionHead, Prompt, read_prompt
from lengthwise.model.position_id_check import IDCheck
from lengthwise.model.rms_norm import RMSNorm
from lengthwise.model.token_groups import TokenGroup, join_tokens, select_queries, split_queries, split_tokens


class Block(nn.Module):
    """Attention with normalized queries and keys, then an MLP; the initial outputs of both are zero."""

    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__()
        d_model, d_head = settings.d_model, settings.d_model // settings.num_heads
        self.settings = settings
        self.attention_norm = RMSNorm(d_model)
        self.project = nn.Linear(d_model, 3 * d_model, bias=False)
        self.query_norm = RMSNorm(d_head)
        self.key_norm = RMSNorm(d_head)
        self.log_temperature = nn.Parameter(torch.full((settings.num_heads, 1, 1), math.log(settings.temperature)))
        self.length_scale = LengthScale(settings.num_heads) if settings.length_scaling == "learned" else None
        self.weight_function = make_weight_function(settings.weights, k=settings.top_k, alpha=settings.entmax_alpha)
        self.mix_heads = nn.Linear(d_model, d_model, bias=False)
        self.mlp_norm = RMSNorm(d_model)
        self.widen = nn.Linear(d_model, settings.mlp_factor * d_model)
        self.narrow = nn.Linear(settings.mlp_factor * d_model, d_model)
        for output in (self.mix_heads, self.narrow):
            nn.init.zeros_(output.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(
        self,
        x: Float[Tensor, "token d_model"],
        groups: Sequence[TokenGroup],
        encoding: LevelEncoding,
        extend: ExtendLayer | None,
        hooks: AttentionHooks,
    ) -> tuple[Float[Tensor, "query d_model"], Tensor, Tensor]:
        """Return the hidden states of the groups' queries, and the keys and values of the last group.

        ``extend`` adds the keys and values of earlier tokens; it requires a single group.
        """
        normalized, d_model, weight = self.attention_norm(x), x.shape[1], self.project.weight
        split_heads = partial(rearrange, pattern="b s (part h d) -> part b h s d", h=self.settings.num_heads)
        if not any(group.query_start for group in groups):
            projected = [split_heads(part, part=3) for part in split_tokens(self.project(normalized), groups)]
        else:
            queries = nn.functional.linear(select_queries(normalized, groups), weight[:d_model])
            keys_values = nn.functional.linear(normalized, weight[d_model:])
            pairs = zip(split_queries(queries, groups), split_tokens(keys_values, groups), strict=True)
            projected = [(*split_heads(query, part=1), *split_heads(pair, part=2)) for query, pair in pairs]
        attended = []
        for group, (raw_query, raw_key, new_value) in zip(groups, projected, strict=True):
            query, key = self._rotate(raw_query, raw_key, group, encoding)
            value = new_value
            if extend is not None:
                key, value = extend(key, value)
            length_factor = self.length_factor(query.shape[2], key.shape[2], hooks, query.device)
            scales = self.log_temperature.exp() * length_factor
            if hooks.near is None:
                heads = self.attend(query * scales, key, value, group.position_ids, encoding, hooks)
            else:
                unrotated = self.query_norm(raw_query), self.key_norm(raw_key)
                inputs = LayerInputs(split_tokens(x, groups)[0], *unrotated, query, key, value, scales)
                heads = hooks.near.attend(inputs, encoding, group.position_ids)
            attended.append(rearrange(heads, "b h s d -> b s (h d)"))
        x = select_queries(x, groups) + self.mix_heads(join_tokens(attended))
        return x + self.narrow(nn.functional.gelu(self.widen(self.mlp_norm(x)))), key, value

    def _rotate(self, query: Tensor, key: Tensor, group: TokenGroup, encoding: LevelEncoding) -> tuple[Tensor, Tensor]:
        """Return normalized and rotated queries and keys, each (batch, heads, seq, d_head)."""
        new_ids = group.position_ids[:, :, group.position_ids.shape[2] - group.seq :]
        query, key = self.query_norm(query), self.key_norm(key)
        if group.query_start == 0:
            # Rotate queries and keys together to compute the angles once; for one token, they dominate the time.
            query, key = encoding.rotate(torch.cat([query, key], dim=1), new_ids).chunk(2, dim=1)
            return query, key
        return encoding.rotate(query, new_ids[:, :, group.query_start :]), encoding.rotate(key, new_ids)

    def attend(
        self,
        query: Float[Tensor, "batch heads query d_head"],
        key: Float[Tensor, "batch heads key d_head"],
        value: Float[Tensor, "batch heads key d_head"],
        key_ids: Real[Tensor, "level batch key"],
        encoding: LevelEncoding,
        hooks: AttentionHooks,
    ) -> Float[Tensor, "batch heads query d_head"]:
        """Return the output of attention for queries that are multiplied by the temperature and the length factor."""
        if hooks is NO_HOOKS and not (encoding.has_bias or encoding.has_scores or self.weight_function):
            attended = attend(query.to(value.dtype), key.to(value.dtype), value)
            return self._dilute(attended, value)
        query_ids = key_ids[:, :, key_ids.shape[2] - query.shape[2] :]
        chunks = ScoreChunks(encoding, query, key, query_ids, key_ids, hooks.score_bias)
        weight_function = softmax if self.weight_function is None else self.weight_function
        if hooks.on_weights is not None:
            hooks.on_weights(chunks.weights(weight_function))
        if encoding.has_scores or self.weight_function is not None:
            attended = attend_with_scores(chunks.scores, value, query.shape[2], weight_function)
        else:
            bias = chunks.bias if chunks.has_bias else None
            attended = attend(query.to(value.dtype), key.to(value.dtype), value, bias)
        return self._dilute(attended, value)

    def _dilute(self, attended: Tensor, value: Tensor) -> Tensor:
        if self.training and self.settings.dilution:
            return dilute_attention(attended, value, self.settings.dilution)
        return attended

    def length_factor(
        self, num_queries: int, num_keys: int, hooks: AttentionHooks, device: torch.device
    ) -> Float[Tensor, "*batch heads seq 1"] | Float[Tensor, "seq 1"] | float:
        """Return the factor of the last queries' scores for their numbers of visible keys."""
        if self.settings.length_scaling == "none":
            return 1.0
        num_visible = torch.arange(num_keys - num_queries + 1, num_keys + 1, device=device)
        if hooks.visible_counts is not None:
            num_visible = hooks.visible_counts[:, None]
        elif hooks.score_bias is not None:
            num_visible = (num_visible - hooks.score_bias.isneginf().tril(num_keys - num_queries).sum(dim=-1))[:, None]
        log_num_keys = (num_visible + 1).log()[..., None]
        return log_num_keys if self.length_scale is None else self.length_scale(log_num_keys)


class Decoder(nn.Module):
    """Decoder that maps tokens and position IDs to hidden states, the input of ``token_logits`` and ``next_ids``.

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
        size = EncodingSize(d_model=d_model, num_heads=settings.num_heads, d_head=d_model // settings.num_heads)
        self.settings = settings
        self.separators = separators
        self.check_ids = IDCheck(encoding.name, num_levels, encoding.num_position_ids, encoding.real_valued)
        self.embedding = nn.Parameter(torch.randn(vocabulary_size, d_model) / math.sqrt(d_model))
        self.segment = nn.Parameter(torch.zeros(len(separators) + 1, d_model)) if settings.segments else None
        self.previous_share = nn.Parameter(torch.zeros(d_model)) if settings.previous_token_mix else None
        self.encoding = LevelEncoding(encoding, size, num_levels, one_per_head=settings.level_per_head)
        self.predicts_ids = num_predicted_ids is not None
        self.reads_ids = self.predicts_ids or self.encoding.reads_ids
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.num_layers))
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
        cache: Cache | None = None,
        *,
        query_start: int = 0,
        hooks: AttentionHooks = NO_HOOKS,
        keep_indices: Int[Tensor, "entries new_seq"] | None = None,
    ) -> tuple[Float[Tensor, "entries query d_model"], Cache]:
        """Return the hidden states of ``tokens``, which follow the tokens in ``cache``, and the extended cache.

        ``position_ids`` has shape (batch, seq) or (level, batch, seq). Raises ``PositionIDError`` for a wrong shape or
        type or a negative ID, and ``PositionRangeError`` for an ID beyond the encoding's table. The last block computes
        only hidden states from index ``query_start`` on, which must be 0 with ``hooks``. After the embeddings, the
        decoder keeps only the tokens at ``keep_indices``, which increase; several rows may belong to one sequence.
        """
        x, new_cache = self.embed(tokens, self.check_ids(tokens, position_ids), cache)
        if keep_indices is not None:
            entries = torch.arange(len(keep_indices), device=keep_indices.device)[:, None]
            sequence = entries // (len(keep_indices) // len(tokens))
            x, new_cache.position_ids = x[sequence, keep_indices], new_cache.position_ids[:, sequence, keep_indices]
        (hidden,) = self._run_blocks([x], [new_cache], [query_start], cache, hooks)
        return hidden, new_cache

    def forward_batches(
        self, tokens: Sequence[Int[Tensor, "_batch _seq"]], position_ids: Sequence[Tensor], query_starts: Sequence[int]
    ) -> list[Float[Tensor, "_batch _query d_model"]]:
        """Return the hidden states of several batches, the same as ``forward`` for each batch, but in less time."""
        pairs = zip(tokens, position_ids, strict=True)
        embedded = [self.embed(part, self.check_ids(part, ids), None) for part, ids in pairs]
        xs, caches = zip(*embedded, strict=True)
        return self._run_blocks(xs, caches, query_starts, None, NO_HOOKS)

    def _run_blocks(
        self,
        xs: Sequence[Float[Tensor, "_batch _seq d_model"]],
        caches: Sequence[Cache],
        query_starts: Sequence[int],
        past: Cache | None,
        hooks: AttentionHooks,
    ) -> list[Float[Tensor, "_batch _query d_model"]]:
        """Return the hidden states of each group, and add the keys and values of the last group to its cache."""
        groups = [
            TokenGroup(size=x.shape[0], seq=x.shape[1], position_ids=cache.position_ids)
            for x, cache in zip(xs, caches, strict=True)
        ]
        hidden = join_tokens(xs)
        for layer, block in enumerate(self.blocks):
            if layer == len(self.blocks) - 1:
                starts = zip(groups, query_starts, strict=True)
                groups = [replace(group, query_start=start) for group, start in starts]
            extend = None if past is None else partial(past.extend_layer, layer)
            hidden, key, value = block(hidden, groups, self.encoding, extend, hooks)
            caches[-1].keys.append(key)
            caches[-1].values.append(value)
        return split_queries(self.norm(hidden), groups)

    @property
    def allows_near_attention(self) -> bool:
        """True if ``NearAttention`` can replace the attention: one layer, softmax, and scores by ID distance."""
        first = self.blocks[0]
        uses_softmax = isinstance(first, Block) and first.weight_function is None
        return len(self.blocks) == 1 and uses_softmax and self.encoding.by_distance and not self.encoding.has_scores

    def token_logits(self, hidden: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch vocab"]:
        """Return the logits of the next token for each hidden state, in float32."""
        logits: Tensor = hidden @ self.embedding.T if self.output is None else self.output(hidden)
        return logits.float()

    def read_prompt(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "level batch seq"],
        prompt_length: Int[Tensor, " batch"],
    ) -> list[Prompt]:
        """Return the prompts of each level in the form that ``next_ids`` requires; call this once per batch."""
        embeddings = self.embed_tokens(tokens)
        pairs = zip(self.position_heads(), position_ids, strict=True)
        return [read_prompt(head, embeddings, ids, prompt_length) for head, ids in pairs]

    def next_ids(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        current_ids: Int[Tensor, "level batch query"],
        next_tokens: Int[Tensor, "batch query"],
        prompts: list[Prompt],
    ) -> list[NextIDs]:
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
        prompts: list[Prompt],
    ) -> Int[Tensor, "level batch query"]:
        """Return the most likely ID of each next token on each level; the arguments are those of ``next_ids``."""
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
        return nn.functional.embedding(tokens, self.embedding)

    def embed(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Real[Tensor, "level batch seq"], cache: Cache | None
    ) -> tuple[Float[Tensor, "batch seq d_model"], Cache]:
        """Return the input of the first block, and the extended cache without keys and values."""
        x = embeddings = self.embed_tokens(tokens)
        previous = x.new_zeros(x[:, :1].shape) if cache is None else cache.last_embedding
        num_separators = torch.zeros_like(tokens[:, :1]) if cache is None else cache.num_separators
        if self.previous_share is not None:
            x = x + self.previous_share * torch.cat([previous, embeddings[:, :-1]], dim=1)
        is_separator = torch.isin(tokens, torch.tensor(self.separators, device=tokens.device))
        segments = (num_separators + is_separator.cumsum(dim=1)).clamp(max=len(self.separators))
        if self.segment is not None:
            x = x + nn.functional.embedding(segments, self.segment)
        x = self.encoding.embed(x, position_ids)
        if cache is None:
            return x, Cache(position_ids, embeddings[:, -1:], segments[:, -1:])
        all_ids = cache.extend_ids(position_ids)
        return x, Cache(all_ids, embeddings[:, -1:], segments[:, -1:], buffers=cache.buffers)
