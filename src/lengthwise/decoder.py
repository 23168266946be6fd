"""The whole decoder: pre-norm blocks, one encoding, and for PPC a position head."""

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.attention import attend
from lengthwise.encodings import EncodingSettings, EncodingSize
from lengthwise.encodings.levels import LevelEncoding
from lengthwise.errors import SettingError, unknown_name
from lengthwise.normalization import RMSNorm
from lengthwise.position_heads import POSITION_HEADS, NextIDs, PositionHead, Prompt, read_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """Size and options of a decoder.

    Three options read the token index or the tokens themselves, never the IDs, and are open to every scheme:
    ``log_length_scaling`` multiplies the scores by the log of the number of visible keys, ``previous_token_mix`` adds
    a learned share of the token before to each embedding, ``segments`` adds one vector per separator seen so far.
    """

    num_layers: int = 1
    d_model: int = 64
    num_heads: int = 2
    mlp_factor: int = 4
    temperature: float = 3.0
    log_length_scaling: bool = True
    previous_token_mix: bool = False
    segments: bool = True
    tied_output: bool = False
    head: str = "pointer"

    def __post_init__(self) -> None:
        for setting in ("num_layers", "d_model", "num_heads", "mlp_factor"):
            if getattr(self, setting) < 1:
                raise SettingError(f"{setting} {getattr(self, setting)} builds no decoder; use at least 1")
        if self.d_model % self.num_heads:
            raise SettingError(f"d_model {self.d_model} is no multiple of num_heads {self.num_heads}; change either")
        if self.temperature <= 0:
            raise SettingError(f"temperature {self.temperature} cannot scale scores; use a positive number")
        if self.head not in POSITION_HEADS:
            raise unknown_name("head", self.head, POSITION_HEADS)


@dataclass(slots=True)
class Cache:
    """What cached decoding keeps: keys and values per layer, the IDs and tokens behind them."""

    position_ids: Int[Tensor, "level batch seq"] | Float[Tensor, "level batch seq"]
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
        position_ids: Int[Tensor, "level batch key"] | Float[Tensor, "level batch key"],
        encoding: LevelEncoding,
        past: tuple[Tensor, Tensor] | None,
        first: int,
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
        query = encoding.rotate(self.query_norm(query), asking_ids)
        key = encoding.rotate(self.key_norm(key), new_ids)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        query = query * (self.log_temperature.exp() * self._length_factor(query.shape[2], key.shape[2], x.device))

        def bias(start: int, stop: int, seen: int) -> Float[Tensor, "#batch heads query key"]:
            return encoding.bias(asking_ids[:, :, start:stop], position_ids[:, :, :seen])

        heads = attend(query.to(value.dtype), key.to(value.dtype), value, bias if encoding.has_bias else None)
        x = x[:, first:] + self.mix_heads(rearrange(heads, "b h s d -> b s (h d)"))
        return x + self.narrow(nn.functional.gelu(self.widen(self.mlp_norm(x)))), key, value

    def _length_factor(self, seq: int, keys: int, device: torch.device) -> Float[Tensor, "seq 1"] | float:
        if not self.settings.log_length_scaling:
            return 1.0
        visible = torch.arange(keys - seq + 1, keys + 1, device=device)
        return (visible + 1).log()[:, None]


class Decoder(nn.Module):
    """Tokens and their IDs in, hidden states out; ``token_logits`` and ``next_ids`` read these.

    Token index alone decides causality. IDs go to the encoding, and to the position head.
    """

    def __init__(
        self,
        settings: DecoderSettings,
        encoding: EncodingSettings,
        *,
        vocabulary_size: int,
        separators: tuple[int, ...] = (),
        predicts_ids: bool = False,
        num_position_ids: int = 1,
    ) -> None:
        super().__init__()
        d_model = settings.d_model
        size = EncodingSize(d_model=d_model, num_heads=settings.num_heads, d_head=d_model // settings.num_heads)
        self.settings = settings
        self.separators = separators
        self.num_encoded_ids = encoding.num_position_ids
        self.embedding = nn.Parameter(torch.randn(vocabulary_size, d_model) / math.sqrt(d_model))
        self.segment = nn.Parameter(torch.zeros(len(separators) + 1, d_model)) if settings.segments else None
        self.previous_share = nn.Parameter(torch.zeros(d_model)) if settings.previous_token_mix else None
        self.encoding = LevelEncoding(encoding, size, num_levels=1)
        self.blocks = nn.ModuleList(Block(settings) for _ in range(settings.num_layers))
        self.norm = RMSNorm(d_model)
        self.output = None if settings.tied_output else nn.Linear(d_model, vocabulary_size, bias=False)
        self.head = POSITION_HEADS[settings.head](d_model, num_position_ids) if predicts_ids else None

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "level batch seq"] | Float[Tensor, "level batch seq"],
        cache: Cache | None = None,
        *,
        first: int = 0,
    ) -> tuple[Float[Tensor, "batch asked d_model"], Cache]:
        """Hidden states of the given tokens, which follow those in the cache, and the cache with them added.

        Where only those from token index ``first`` on are read, the last block computes no others.
        """
        x, grown = self._embed(tokens, position_ids, cache)
        for layer, block in enumerate(self.blocks):
            past = None if cache is None else (cache.keys[layer], cache.values[layer])
            asked = first if layer == len(self.blocks) - 1 else 0
            x, key, value = block(x, grown.position_ids, self.encoding, past, asked)
            grown.keys.append(key)
            grown.values.append(value)
        return self.norm(x), grown

    def token_logits(self, hidden: Float[Tensor, "batch seq d_model"]) -> Float[Tensor, "batch seq vocab"]:
        """Scores of the token after each hidden state."""
        logits: Tensor = hidden @ self.embedding.T if self.output is None else self.output(hidden)
        return logits.float()

    def read_prompt(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "level batch seq"],
        prompt_length: Int[Tensor, " batch"],
    ) -> Prompt:
        """What the position head has to know of the prompts, once for all ``next_ids``."""
        return read_prompt(self._head(), self.embed_tokens(tokens), position_ids[0], prompt_length)

    def next_ids(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        own_ids: Int[Tensor, "batch query"],
        next_tokens: Int[Tensor, "batch query"],
        prompt: Prompt,
    ) -> NextIDs:
        """The distribution over the next token's ID, given which token it is."""
        next_ids: NextIDs = self._head()(hidden, own_ids, self.embed_tokens(next_tokens), prompt)
        return next_ids

    def _head(self) -> PositionHead:
        if self.head is None:
            raise SettingError("this decoder has no position head; train it with the scheme predicted")
        return self.head

    def embed_tokens(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq d_model"]:
        """Token embeddings alone."""
        return nn.functional.embedding(tokens, self.embedding)

    def _embed(
        self,
        tokens: Int[Tensor, "batch seq"],
        position_ids: Int[Tensor, "level batch seq"] | Float[Tensor, "level batch seq"],
        cache: Cache | None,
    ) -> tuple[Float[Tensor, "batch seq d_model"], Cache]:
        x = embedded = self.embed_tokens(tokens)
        before = torch.zeros_like(x[:, :1]) if cache is None else cache.last_embedding
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
