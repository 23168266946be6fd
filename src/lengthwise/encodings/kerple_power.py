"""KERPLE's power kernel: a penalty that grows with a learned power of the ID distance."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.encodings.bounds import bounded, within
from lengthwise.encodings.distance import by_distance
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.kerple_log import LEAST

# Beyond this power the kernel is not conditionally positive definite.
GREATEST_POWER = 2.0


class KERPLEPowerEncoding(Encoding):
    """``score - r1 * |p_query - p_key|^r2`` with positive r1 and r2, r2 up to 2, for each head."""

    has_bias = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.r1 = bounded(torch.rand(num_heads), LEAST, math.inf)
        self.r2 = bounded(2 * torch.rand(num_heads), LEAST, GREATEST_POWER)

    def bias(
        self, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """The distance is taken without sign, as the paper's kernels do."""
        r1, r2 = within(self.r1, LEAST, math.inf)[:, None], within(self.r2, LEAST, GREATEST_POWER)[:, None]
        return by_distance(lambda apart: -r1 * apart.abs() ** r2, query_ids, key_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class KERPLEPower(EncodingSettings):
    """Two learned numbers per head."""

    name: ClassVar[str] = "kerple_power"
    summary: ClassVar[str] = "scores fall with a learned power of the ID distance"
    paper: ClassVar[str] = "Chi et al. 2022 (arXiv 2205.09921)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def build(self, size: EncodingSize) -> Encoding:
        """Parameters drawn as in the paper's code."""
        return KERPLEPowerEncoding(size.num_heads)
