"""T5's relative bias (Raffel et al. 2020): one learned number per head and bucket of ID distances."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import (
    Bias,
    Encoding,
    EncodingSettings,
    EncodingSize,
    KeyIDs,
    QueryIDs,
    bias_by_distance,
)


class T5BiasEncoding(Encoding):
    """Scores ``score + B[head, bucket(p_query - p_key)]`` with a learned table B.

    Each bucket of the first half contains one distance. The other buckets grow logarithmically up to ``max_distance``.
    The last bucket also contains all larger distances. Negative distances have separate buckets of the same sizes.
    """

    is_relative = True
    has_bias = True

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        # Negative distances need one bucket fewer, because 0 is not negative.
        self.weights = nn.Parameter(torch.randn(num_heads, 2 * num_buckets - 1).mul_(0.02))

    def bias(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Bias:
        """Return the bias for the distance of every query and key."""
        return bias_by_distance(lambda offset: self.weights.index_select(1, self.buckets(offset)), query_ids, key_ids)

    def buckets(self, distance: Float[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
        """Return the bucket index of each distance. The buckets of negative distances follow the other buckets."""
        num_exact = self.num_buckets // 2
        log_distance = torch.log(distance.abs().clamp(min=num_exact) / num_exact)
        log_bucket = log_distance / math.log(self.max_distance / num_exact) * (self.num_buckets - num_exact)
        bucket = torch.where(distance.abs() < num_exact, distance.abs().long(), num_exact + log_bucket.long())
        return bucket.clamp(max=self.num_buckets - 1) + (self.num_buckets - 1) * (distance < 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class T5Bias(EncodingSettings):
    """T5 bias with ``num_buckets`` buckets per sign; distances of at least ``max_distance`` share one bucket."""

    num_buckets: int = 32
    max_distance: int = 128

    name: ClassVar[str] = "t5"
    summary: ClassVar[str] = "a learned bias per bucket of ID distances"
    paper: ClassVar[str] = "Raffel et al. 2020 (arXiv 1910.10683)"
    shift_invariant: ClassVar[bool] = True

    def _check(self) -> None:
        check_at_least(self, 2, "num_buckets")
        if self.max_distance <= self.num_buckets // 2:
            raise SettingError(
                f"max_distance {self.max_distance} is too small for {self.num_buckets} buckets; "
                f"set max_distance to at least {self.num_buckets // 2 + 1}"
            )

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module with small random biases."""
        return T5BiasEncoding(decoder_size.num_heads, self.num_buckets, self.max_distance)
