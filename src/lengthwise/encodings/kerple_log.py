"""KERPLE's logarithmic kernel: a penalty that grows with the log of the ID distance, at a learned rate."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.encodings.bounds import bounded, within
from lengthwise.encodings.distance import by_distance
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize

# The least value of the kernels' parameters, that of the paper's code.
LEAST = 0.01


class KERPLELogEncoding(Encoding):
    """``score - r1 * log(1 + r2 * |p_query - p_key|)`` with positive r1 and r2 for each head."""

    has_bias = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.r1 = bounded(2 * torch.rand(num_heads), LEAST, math.inf)
        self.r2 = bounded(torch.rand(num_heads), LEAST, math.inf)

    def bias(
        self, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """The distance is taken without sign, as the paper's kernels do."""
        r1, r2 = within(self.r1, LEAST, math.inf)[:, None], within(self.r2, LEAST, math.inf)[:, None]
        return by_distance(lambda apart: -r1 * torch.log1p(r2 * apart.abs()), query_ids, key_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class KERPLELog(EncodingSettings):
    """Two learned numbers per head."""

    name: ClassVar[str] = "kerple_log"
    summary: ClassVar[str] = "scores fall with the log of the ID distance, at learned rates"
    paper: ClassVar[str] = "Chi et al. 2022 (arXiv 2205.09921)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def build(self, size: EncodingSize) -> Encoding:
        """Parameters drawn as in the paper's code."""
        return KERPLELogEncoding(size.num_heads)
