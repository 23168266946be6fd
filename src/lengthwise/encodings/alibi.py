"""ALiBi: a penalty on scores that grows with the ID distance."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.encodings.distance import distances
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize


def slopes(num_heads: int) -> Float[Tensor, " heads"]:
    """The paper's geometric sequence; between powers of two, every other slope of the next one fills up."""
    power = 2 ** math.floor(math.log2(num_heads))
    exact = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * power, 2)]
    return torch.tensor((exact + between)[:num_heads])


class ALiBiEncoding(Encoding):
    """``score - slope * |p_query - p_key|``."""

    has_bias = True
    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", slopes(num_heads), persistent=False)

    def bias(
        self, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """The distance is taken without sign: coupled IDs of visible keys can be larger than the query's."""
        apart = distances(query_ids, key_ids).abs().float()
        return -self.slopes[:, None, None] * apart[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ALiBi(EncodingSettings):
    """A fixed slope per head."""

    name: ClassVar[str] = "alibi"
    summary: ClassVar[str] = "scores fall linearly with the ID distance"
    paper: ClassVar[str] = "Press et al. 2022 (arXiv 2108.12409)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def build(self, size: EncodingSize) -> Encoding:
        """Slopes for the number of heads."""
        return ALiBiEncoding(size.num_heads)
