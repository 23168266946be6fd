"""ALiBi (Press et al. 2022): a penalty on scores that grows linearly with the ID distance."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.encodings.encoding import Bias, Encoding, EncodingSettings, EncodingSize, KeyIDs, QueryIDs, id_distances


def alibi_slopes(num_heads: int) -> Float[Tensor, " heads"]:
    """Return the paper's slopes: a geometric sequence, with extra slopes if ``num_heads`` is not a power of two."""
    power_of_two = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (head + 1) / power_of_two) for head in range(power_of_two)]
    extra_slopes = [2 ** (-4 * (head + 1) / power_of_two) for head in range(0, 2 * power_of_two, 2)]
    return torch.tensor((slopes + extra_slopes)[:num_heads])


class ALiBiEncoding(Encoding):
    """Scores ``score - slope * |p_query - p_key|`` with a fixed slope per head."""

    is_relative = True
    has_bias = True
    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def bias(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Bias:
        """Return the negative penalty of the absolute distance; a visible key can have a larger ID than the query."""
        distance = id_distances(query_ids, key_ids).abs().float()
        return -self.slopes[:, None, None] * distance[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ALiBi(EncodingSettings):
    """ALiBi with one fixed slope per head, as in the paper, and no parameters."""

    name: ClassVar[str] = "alibi"
    summary: ClassVar[str] = "scores decrease linearly with the ID distance"
    paper: ClassVar[str] = "Press et al. 2022 (arXiv 2108.12409)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module with one slope per head."""
        return ALiBiEncoding(decoder_size.num_heads)
