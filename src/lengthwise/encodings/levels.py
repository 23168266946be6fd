"""Encoding of several IDs per token (Cho et al. 2025): one encoding per coupling level."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize, HeadVectors, Scores, TokenVectors


class LevelEncoding(nn.Module):
    """Encoding for IDs with a leading level axis (multi-level coupling, arXiv 2410.15787).

    Embeddings, biases and scores are sums over all levels. Each level rotates an equal part of a head's components.
    The levels apply their ``adjust`` hooks one after another.
    """

    def __init__(self, settings: EncodingSettings, decoder_size: EncodingSize, num_levels: int) -> None:
        super().__init__()
        if decoder_size.d_head % num_levels:
            raise SettingError(
                f"d_head {decoder_size.d_head} is not a multiple of the {num_levels} coupling levels; choose d_model "
                f"and num_heads so that d_model / num_heads is a multiple of {num_levels}"
            )
        level_size = replace(decoder_size, d_head=decoder_size.d_head // num_levels)
        self.levels = nn.ModuleList(_build_level(settings, level_size) for _ in range(num_levels))
        self.reads_ids = any(level.reads_ids for level in self._encodings())
        self.has_bias = any(level.has_bias for level in self._encodings())
        self.has_scores = any(level.has_scores for level in self._encodings())

    def embed(self, x: TokenVectors, position_ids: Real[Tensor, "level batch seq"]) -> TokenVectors:
        """Return the token embeddings with the positions of all levels added."""
        for level, level_ids in zip(self._encodings(), position_ids, strict=True):
            x = level.embed(x, level_ids)
        return x

    def rotate(self, x: HeadVectors, position_ids: Real[Tensor, "level batch seq"]) -> HeadVectors:
        """Return rotated queries or keys; each level rotates its part of the components."""
        if len(self.levels) == 1:
            return self._encodings()[0].rotate(x, position_ids[0])
        levels = zip(self._encodings(), x.chunk(len(self.levels), dim=-1), position_ids, strict=True)
        return torch.cat([level.rotate(components, level_ids) for level, components, level_ids in levels], dim=-1)

    def bias(
        self, query_ids: Real[Tensor, "level batch query"], key_ids: Real[Tensor, "level batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """Return the sum of the levels' biases."""
        levels = zip(self._encodings(), query_ids, key_ids, strict=True)
        biases = (level.bias(*level_ids) for level, *level_ids in levels)
        return sum(biases, start=next(biases))

    def scores(
        self,
        query: Float[Tensor, "batch heads query d_head"],
        key: Float[Tensor, "batch heads key d_head"],
        query_ids: Real[Tensor, "level batch query"],
        key_ids: Real[Tensor, "level batch key"],
        is_visible: Bool[Tensor, "query key"],
    ) -> Scores:
        """Return the sum of the levels' scores, scaled by ``1 / sqrt(d_head)`` and adjusted."""
        components = [vectors.chunk(len(self.levels), dim=-1) for vectors in (query, key)]
        scores = torch.zeros((), device=query.device)
        for level, *level_inputs in zip(self._encodings(), *components, query_ids, key_ids, strict=True):
            scores = scores + level.scores(*level_inputs)
        scores = scores / math.sqrt(query.shape[-1])
        for level, level_query_ids, level_key_ids in zip(self._encodings(), query_ids, key_ids, strict=True):
            scores = level.adjust(scores, level_query_ids, level_key_ids, is_visible)
        return scores

    def _encodings(self) -> Sequence[Encoding]:
        return [level for level in self.levels if isinstance(level, Encoding)]


def _build_level(settings: EncodingSettings, decoder_size: EncodingSize) -> Encoding:
    encoding: object = settings.build(decoder_size)
    if not isinstance(encoding, Encoding):
        raise SettingError(
            f"build of encoding {settings.name} returned an object of type {type(encoding).__name__}; "
            "return an instance of a subclass of Encoding"
        )
    return encoding
