"""Several IDs per token: one encoding per coupling level."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Real
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize


class LevelEncoding(nn.Module):
    """The hooks of ``Encoding`` over IDs with a leading level axis.

    Embeddings, biases and scores of the levels are added; a head's components are shared out among the levels for
    rotation (multi-level coupling: Cho et al. 2025, arXiv 2410.15787); adjustments follow each other.
    """

    def __init__(self, settings: EncodingSettings, size: EncodingSize, num_levels: int) -> None:
        super().__init__()
        if size.d_head % num_levels:
            raise SettingError(f"d_head {size.d_head} cannot be shared by {num_levels} levels; choose a multiple of it")
        part = EncodingSize(d_model=size.d_model, num_heads=size.num_heads, d_head=size.d_head // num_levels)
        self.levels = nn.ModuleList(_built(settings, part) for _ in range(num_levels))

    @property
    def reads_ids(self) -> bool:
        """Whether IDs change anything."""
        return any(level.reads_ids for level in self._encodings())

    @property
    def has_bias(self) -> bool:
        """Whether attention has to add ``bias``."""
        return any(level.has_bias for level in self._encodings())

    @property
    def has_scores(self) -> bool:
        """Whether attention has to ask for its scores here."""
        return any(level.has_scores for level in self._encodings())

    def embed(
        self, x: Float[Tensor, "batch seq d_model"], position_ids: Real[Tensor, "level batch seq"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """Every level's positions added."""
        for level, ids in zip(self._encodings(), position_ids, strict=True):
            x = level.embed(x, ids)
        return x

    def rotate(
        self, x: Float[Tensor, "batch heads seq d_head"], position_ids: Real[Tensor, "level batch seq"]
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Each level turns its own part of the head."""
        if len(self.levels) == 1:
            return self._encodings()[0].rotate(x, position_ids[0])
        parts = x.chunk(len(self.levels), dim=-1)
        turned = [
            level.rotate(part, ids) for level, part, ids in zip(self._encodings(), parts, position_ids, strict=True)
        ]
        return torch.cat(turned, dim=-1)

    def bias(
        self, query_ids: Real[Tensor, "level batch query"], key_ids: Real[Tensor, "level batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """Every level's bias added."""
        first, *others = zip(self._encodings(), query_ids, key_ids, strict=True)
        total = first[0].bias(*first[1:])
        for level, queries, keys in others:
            total = total + level.bias(queries, keys)
        return total

    def scores(
        self,
        query: Float[Tensor, "batch heads query d_head"],
        key: Float[Tensor, "batch heads key d_head"],
        query_ids: Real[Tensor, "level batch query"],
        key_ids: Real[Tensor, "level batch key"],
        visible: Bool[Tensor, "query key"],
    ) -> Float[Tensor, "batch heads query key"]:
        """Scaled scores: each level's share of the components, the sum over the root of the head's width, adjusted."""
        parts = [part.chunk(len(self.levels), dim=-1) for part in (query, key)]
        scores = torch.zeros((), device=query.device)
        for level, *given in zip(self._encodings(), *parts, query_ids, key_ids, strict=True):
            scores = scores + level.scores(*given)
        scores = scores / math.sqrt(query.shape[-1])
        for level, queries, keys in zip(self._encodings(), query_ids, key_ids, strict=True):
            scores = level.adjust(scores, queries, keys, visible)
        return scores

    def _encodings(self) -> Sequence[Encoding]:
        return [level for level in self.levels if isinstance(level, Encoding)]


def _built(settings: EncodingSettings, size: EncodingSize) -> Encoding:
    built: object = settings.build(size)
    if not isinstance(built, Encoding):
        raise SettingError(
            f"encoding {settings.name} builds an object of type {type(built).__name__}, which is no Encoding; "
            "return an instance of a class that inherits from it"
        )
    return built
