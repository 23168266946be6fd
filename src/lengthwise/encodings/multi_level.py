"""Encoding of several IDs per token (Cho et al. 2025): one encoding per coupling level."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Real
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.encodings.encoding import (
    Bias,
    Encoding,
    EncodingSettings,
    EncodingSize,
    HeadVectors,
    IsVisible,
    KeyVectors,
    QueryVectors,
    Scores,
    TokenFeatures,
    TokenVectors,
)


class MultiLevelEncoding(nn.Module):
    """Encoding for IDs with a leading level axis (multi-level coupling, arXiv 2410.15787).

    By default, a head reads all levels: biases and scores are sums over the levels, each level rotates an equal part of
    a head's components, and the levels apply their ``adjust_scores`` hooks one after another. With ``one_per_head``,
    head number h reads only the level h modulo the number of levels. Embeddings are always sums over all levels.
    """

    def __init__(
        self, settings: EncodingSettings, decoder_size: EncodingSize, num_levels: int, *, one_per_head: bool = False
    ) -> None:
        super().__init__()
        self.one_per_head = one_per_head and num_levels > 1
        self.level_size = _level_size(decoder_size, num_levels, self.one_per_head)
        self.d_head = decoder_size.d_head
        self.levels = nn.ModuleList(_build_level(settings, self.level_size) for _ in range(num_levels))
        self.uses_position_ids = any(level.uses_position_ids for level in self._encodings())
        self.has_token_features = any(level.has_token_features for level in self._encodings())
        self.has_bias = any(level.has_bias for level in self._encodings())
        self.has_scores = any(level.has_scores for level in self._encodings())

    @property
    def is_relative(self) -> bool:
        """True if the scores of each head depend on the IDs only through their distances on one level."""
        return all(level.is_relative for level in self._encodings()) and (len(self.levels) == 1 or self.one_per_head)

    def heads_of_level(self, level: int) -> slice:
        """Return the heads that read the IDs of a level."""
        return slice(level, None, len(self.levels)) if self.one_per_head else slice(None)

    def embed(self, x: TokenVectors, position_ids: Real[Tensor, "level batch seq"]) -> TokenVectors:
        """Return the token embeddings with the positions of all levels added."""
        for level, level_ids in self._by_level(position_ids):
            x = level.embed(x, level_ids)
        return x

    def rotate(self, x: HeadVectors, position_ids: Real[Tensor, "level batch seq"]) -> HeadVectors:
        """Return rotated queries or keys; each level rotates its part of the components."""
        if len(self.levels) == 1:
            return self._encodings()[0].rotate(x, position_ids[0])
        return self._join([level.rotate(*inputs) for level, *inputs in self._by_level(self._split(x), position_ids)])

    def rotate_queries_and_keys(
        self, query: QueryVectors, key: KeyVectors, key_ids: Real[Tensor, "level batch key"]
    ) -> tuple[QueryVectors, KeyVectors]:
        """Return rotated queries and keys; the queries belong to the last tokens of the keys."""
        if len(self.levels) == 1:
            return self._encodings()[0].rotate_queries_and_keys(query, key, key_ids[0])
        levels = self._by_level(self._split(query), self._split(key), key_ids)
        queries, keys = zip(*(level.rotate_queries_and_keys(*inputs) for level, *inputs in levels), strict=True)
        return self._join(queries), self._join(keys)

    def token_features(
        self, hidden: TokenVectors, position_ids: Real[Tensor, "level batch seq"], layer: int
    ) -> list[TokenFeatures]:
        """Return the values of each token on each level, which ``append_features`` adds to its queries and keys."""
        return [level.token_features(hidden, level_ids, layer) for level, level_ids in self._by_level(position_ids)]

    def append_features(
        self, x: HeadVectors, token_features: Sequence[Float[Tensor, "batch _heads seq _extra"]]
    ) -> Float[Tensor, "batch heads seq d_extended"]:
        """Return rotated queries or keys with the features of their tokens; each level has its part of both."""
        return self._join([torch.cat(pair, dim=-1) for pair in zip(self._split(x), token_features, strict=True)])

    def bias(self, query_ids: Real[Tensor, "level batch query"], key_ids: Real[Tensor, "level batch key"]) -> Bias:
        """Return the sum of the levels' biases, or each head's bias by its level."""
        biases = [level.bias(*level_ids) for level, *level_ids in self._by_level(query_ids, key_ids)]
        if self.one_per_head:
            # An encoding can have one bias for all heads or sequences.
            batch_size = max(len(bias) for bias in biases)
            return self._join([bias.expand(batch_size, self.level_size.num_heads, -1, -1) for bias in biases])
        return sum(biases[1:], start=biases[0])

    def scores(
        self,
        query: Float[Tensor, "batch heads query d_extended"],
        key: Float[Tensor, "batch heads key d_extended"],
        query_ids: Real[Tensor, "level batch query"],
        key_ids: Real[Tensor, "level batch key"],
        is_visible: IsVisible,
    ) -> Scores:
        """Return the scores of each head, scaled by ``1 / sqrt(d_head)`` and adjusted."""
        inputs = self._by_level(self._split(query), self._split(key), query_ids, key_ids)
        by_level = [level.scores(*level_inputs) for level, *level_inputs in inputs]
        scale = math.sqrt(self.d_head)
        if self.one_per_head:
            levels = self._by_level(by_level, query_ids, key_ids)
            return self._join([level.adjust_scores(part / scale, *ids, is_visible) for level, part, *ids in levels])
        scores = sum(by_level, start=torch.zeros((), device=query.device)) / scale
        for level, *ids in self._by_level(query_ids, key_ids):
            scores = level.adjust_scores(scores, *ids, is_visible)
        return scores

    def _split(self, x: HeadVectors) -> Sequence[Tensor]:
        """Return the part of each level: heads, or components of all heads."""
        if self.one_per_head:
            return list(rearrange(x, "b (h l) s d -> l b h s d", l=len(self.levels)))
        return x.chunk(len(self.levels), dim=-1)

    def _join(self, parts: Sequence[Tensor]) -> Tensor:
        return (
            rearrange(list(parts), "l b h ... -> b (h l) ...") if self.one_per_head else torch.cat(list(parts), dim=-1)
        )

    def _by_level(self, *inputs: Iterable[Tensor]) -> Iterator[tuple[Any, ...]]:
        """Yield the encoding of each level with its part of each input."""
        return zip(self._encodings(), *inputs, strict=True)

    def _encodings(self) -> Sequence[Encoding]:
        return [level for level in self.levels if isinstance(level, Encoding)]


def _level_size(size: EncodingSize, num_levels: int, one_per_head: bool) -> EncodingSize:
    if one_per_head:
        if size.num_heads % num_levels:
            raise SettingError(
                f"num_heads {size.num_heads} is not a multiple of the {num_levels} coupling levels, but each head "
                "reads one level; change num_heads, or set level_per_head=False"
            )
        return replace(size, num_heads=size.num_heads // num_levels)
    if size.d_head % num_levels:
        raise SettingError(
            f"d_head {size.d_head} is not a multiple of the {num_levels} coupling levels; choose d_model "
            f"and num_heads so that d_model / num_heads is a multiple of {num_levels}"
        )
    return replace(size, d_head=size.d_head // num_levels)


def _build_level(settings: EncodingSettings, decoder_size: EncodingSize) -> Encoding:
    encoding: object = settings.build(decoder_size)
    if not isinstance(encoding, Encoding):
        raise SettingError(
            f"build of encoding {settings.name} returned an object of type {type(encoding).__name__}; "
            "return an instance of a subclass of Encoding"
        )
    return encoding
