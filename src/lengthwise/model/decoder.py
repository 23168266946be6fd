"""The whole decoder: pre-norm blocks, one encoding, and for PPC a position head."""

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.encodings import EncodingSettings, EncodingSize
from lengthwise.encodings.levels import LevelEncoding
from lengthwise.model.attention import attend, attend_by_scores, diluted
from lengthwise.model.attention_scores import PLAINLY, Chunks, LengthScale, Looking
from lengthwise.model.attention_weights import softmax, weighing
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.position_heads import POSITION_HEADS, NextIDs, PositionHead, Prompt, read_prompt
from lengthwise.model.position_id_check import IDCheck
from lengthwise.model.rms_norm import RMSNorm


@dataclass(slots=True)
class Cache:
    """What cached decoding keeps: keys and values per layer, the IDs and tokens behind them."""

    position_ids: Real[Tensor, "level batch seq"]
    last_embedding: Float[Tensor, "batch 1 d_model"]
    separators_seen: Int[Tensor, "batch 1"]
    keys: list[Float[Tensor, "batch heads seq d_head"]] = field(default_factory=list)
    values: list[Float[Tensor, "batch heads seq d_head"]] = field(default_factory=list)


class Block(nn.Module):
    """Attention with normalised queries and keys, then an MLP; both start as zero."""

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
        self.weigh = weighing(settings.weights, k=settings.top_k, alpha=settings.entmax_alpha)
        self.mix_heads = nn.Linear(d_model, d_model, bias=False)
        self.mlp_norm = RMSNorm(d_model)
        self.widen = nn.Linear(d_model, settings.mlp_factor * d_model)
        self.narrow = nn.Linear(settings.mlp_factor * d_model, d_model)
        for output in (self.mix_heads, self.narrow):
            nn.init.zeros_(output.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(
        self,
        x: Float[Tensor, "batch seq d_model"],
        position_ids: Real[Tensor, "level batch key"],
        encoding: LevelEncoding,
        past: tuple[Tensor, Tensor] | None,
        first: int,
        looking: Looking,
    ) -> tuple[Float[Tensor, "batch asked d_model"], Tensor, Tensor]:
        """The hidden states from ``first`` on, and all keys and values; ``position_ids`` are those of all keys."""
        normed, d_model = self.attention_norm(x), x.shape[2]
        split = partial(rearrange, pattern="b s (part h d) -> part b h s d", h=self.settings.num_heads)
        if first == 0:
            query, key, value = split(self.project(normed), part=3)
        else:
            (query,) = split(nn.functional.linear(normed[:, first:], self.project.weight[:d_model]), part=1)
            key, value = split(nn.functional.linear(normed, self.project.weight[d_model:]), part=2)
        new_ids = position_ids[:, :, position_ids.shape[2] - x.shape[1] :]
        asking_ids = new_ids[:, :, first:]
        query, key = self.query_norm(query), self.key_norm(key)
        if first == 0:
            # Angles are worked out once for both: with one new token they cost most of a rotation.
            query, key = encoding.rotate(torch.cat([query, key], dim=1), new_ids).chunk(2, dim=1)
        else:
            query, key = encoding.rotate(query, asking_ids), encoding.rotate(key, new_ids)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        factor = self._length_factor(query.shape[2], key.shape[2], looking, x.device)
        query = query * (self.log_temperature.exp() * factor)

        chunks = Chunks(encoding, query, key, asking_ids, position_ids, looking.added)
        weigh = softmax if self.weigh is None else self.weigh
        if looking.watch is not None:
            looking.watch(chunks.weights(weigh))
        if encoding.has_scores or self.weigh is not None:
            heads = attend_by_scores(chunks.scores, value, query.shape[2], weigh)
        else:
            bias = chunks.bias if chunks.has_bias else None
            heads = attend(query.to(value.dtype), key.to(value.dtype), value, bias)
        x = x[:, first:] + self.mix_heads(rearrange(self._diluted(heads, value), "b h s d -> b s (h d)"))
        return x + self.narrow(nn.functional.gelu(self.widen(self.mlp_norm(x)))), key, value

    def _diluted(
        self, heads: Float[Tensor, "batch heads asked d_head"], value: Float[Tensor, "batch heads key d_head"]
    ) -> Float[Tensor, "batch heads asked d_head"]:
        return diluted(heads, value, self.settings.dilution) if self.training and self.settings.dilution else heads

    def _length_factor(
        self, seq: int, keys: int, looking: Looking, device: torch.device
    ) -> Float[Tensor, "*batch heads seq 1"] | Float[Tensor, "seq 1"] | float:
        if self.settings.length_scaling == "none":
            return 1.0
        visible = torch.arange(keys - seq + 1, keys + 1, device=device)
        if looking.counted is not None:
            visible = looking.counted[:, None]
        elif looking.added is not None:
            visible = (visible - looking.added.isneginf().tril(keys - seq).sum(dim=-1))[:, None]
        log = (visible + 1).log()[..., None]
        return log if self.length_scale is None else self.length_scale(log)


class Decoder(nn.Module):
    """Tokens and their IDs in, hidden states out; ``token_logits`` and ``next_ids`` read these.

    With ``num_predicted_ids`` it has a position head per level, for IDs below that number.
    Token index alone decides causality. IDs go to the encoding, and to the position head.
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
        self.encoding = LevelEncoding(encoding, size, num_levels)
        self.reads_ids = num_predicted_ids is not None or self.encoding.reads_ids
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
        first: int = 0,
        looking: Looking = PLAINLY,
        kept: Int[Tensor, "rows kept"] | None = None,
    ) -> tuple[Float[Tensor, "rows asked d_model"], Cache]:
        """Hidden states of the given tokens, which follow those in the cache, and the cache with them added.

        ``position_ids``: (batch, seq), or (level, batch, seq) with several levels; ``PositionIDError`` for IDs of
        another shape or kind, negative or beyond the encoding's table. Where only hidden states from token index
        ``first`` on are read, the last block computes no others. ``looking`` hides keys or watches weights; ``first``
        is 0 with it. ``kept``: the only token indexes that are read on from the embeddings, rising in each of its rows;
        with ``times`` as many rows as ``tokens``, those of one sequence follow one another.
        """
        x, grown = self._embed(tokens, self.check_ids(tokens, position_ids), cache)
        if kept is not None:
            sequence = torch.arange(len(kept), device=kept.device)[:, None] // (len(kept) // len(tokens))
            x, grown.position_ids = x[sequence, kept], grown.position_ids[:, sequence, kept]
        for layer, block in enumerate(self.blocks):
            past = None if cache is None else (cache.keys[layer], cache.values[layer])
            asked = first if layer == len(self.blocks) - 1 else 0
            x, key, value = block(x, grown.position_ids, self.encoding, past, asked, looking)
            grown.keys.append(key)
            grown.values.append(value)
        return self.norm(x), grown

    def token_logits(self, hidden: Float[Tensor, "batch seq d_model"]) -> Float[Tensor, "batch seq vocab"]:
        """Scores of the token after each hidden state."""
        logits: Tensor = hidden @ self.embedding.T if self.output is None else self.output(hidden)
        return logits.float()

    @property
    def predicts_ids(self) -> bool:
        """Whether there are position heads, one per level."""
        return len(self.heads) > 0

    def read_prompt(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "level batch seq"],
        prompt_length: Int[Tensor, " batch"],
    ) -> list[Prompt]:
        """What each level's position head has to know of the prompts, once for all ``next_ids``."""
        embeddings = self.embed_tokens(tokens)
        pairs = zip(self.position_heads(), position_ids, strict=True)
        return [read_prompt(head, embeddings, ids, prompt_length) for head, ids in pairs]

    def next_ids(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        own_ids: Int[Tensor, "level batch query"],
        next_tokens: Int[Tensor, "batch query"],
        prompts: list[Prompt],
    ) -> list[NextIDs]:
        """The distribution over the next token's ID on each level, given which token it is."""
        levels, embeddings = zip(self.position_heads(), own_ids, prompts, strict=True), self.embed_tokens(next_tokens)
        return [head(hidden, ids, embeddings, prompt) for head, ids, prompt in levels]

    def position_heads(self) -> list[PositionHead]:
        """One for each level; ``SettingError`` where there is none."""
        if not self.predicts_ids:
            raise SettingError("this decoder has no position head; train it with the scheme predicted")
        return [head for head in self.heads if isinstance(head, PositionHead)]

    def embed_tokens(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """Token embeddings alone."""
        return nn.functional.embedding(tokens, self.embedding)

    def _embed(
        self, tokens: Int[Tensor, "batch seq"], position_ids: Real[Tensor, "level batch seq"], cache: Cache | None
    ) -> tuple[Float[Tensor, "batch seq d_model"], Cache]:
        x = embedded = self.embed_tokens(tokens)
        before = x.new_zeros(x[:, :1].shape) if cache is None else cache.last_embedding
        seen = torch.zeros_like(tokens[:, :1]) if cache is None else cache.separators_seen
        if self.previous_share is not None:
            x = x + self.previous_share * torch.cat([before, embedded[:, :-1]], dim=1)
        is_separator = torch.isin(tokens, torch.tensor(self.separators, device=tokens.device))
        segments = (seen + is_separator.cumsum(dim=1)).clamp(max=len(self.separators))
        if self.segment is not None:
            x = x + nn.functional.embedding(segments, self.segment)
        x = self.encoding.embed(x, position_ids)
        all_ids = position_ids if cache is None else torch.cat([cache.position_ids, position_ids], dim=2)
        return x, Cache(all_ids, embedded[:, -1:], segments[:, -1:])
