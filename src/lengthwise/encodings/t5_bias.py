"""T5's relative bias: one learned number per head and bucket of ID distances."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.encodings.distance import by_distance
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize


class T5BiasEncoding(Encoding):
    """``score + B[head, bucket(p_query - p_key)]``.

    The first half of the buckets hold one distance each, the others grow with the logarithm up to ``max_distance``;
    the last holds all beyond. Negative distances have buckets of their own, cut in the same way.
    """

    has_bias = True

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        # Distance 0 is not negative, so the other side has one bucket less.
        self.weights = nn.Parameter(0.02 * torch.randn(num_heads, 2 * num_buckets - 1))

    def bias(
        self, query_ids: Int[Tensor, "batch query"], key_ids: Int[Tensor, "batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """Each pair's bucket looked up."""
        return by_distance(lambda apart: self.weights.index_select(1, self.buckets(apart)), query_ids, key_ids)

    def buckets(self, apart: Float[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
        """T5's numbers for distances from 0 on, and those after them for negative ones."""
        single = self.num_buckets // 2
        far = apart.abs().clamp(min=single)
        grown = torch.log(far / single) / math.log(self.max_distance / single) * (self.num_buckets - single)
        unsigned = torch.where(apart.abs() < single, apart.abs().long(), single + grown.long())
        return unsigned.clamp(max=self.num_buckets - 1) + (self.num_buckets - 1) * (apart < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Bias(EncodingSettings):
    """``num_buckets`` learned numbers per head; from ``max_distance`` on, all distances share one."""

    num_buckets: int = 32
    max_distance: int = 128

    name: ClassVar[str] = "t5"
    summary: ClassVar[str] = "a learned bias per bucket of ID distances"
    paper: ClassVar[str] = "Raffel et al. 2020 (arXiv 1910.10683)"
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_buckets < 2:
            raise SettingError(f"num_buckets {self.num_buckets} tells no distances apart; use at least 2")
        if self.max_distance <= self.num_buckets // 2:
            raise SettingError(
                f"max_distance {self.max_distance} leaves nothing to the growing ones of {self.num_buckets} buckets; "
                f"set it to at least {self.num_buckets // 2 + 1}"
            )

    def build(self, size: EncodingSize) -> Encoding:
        """Small random biases."""
        return T5BiasEncoding(size.num_heads, self.num_buckets, self.max_distance)
