"""KERPLE's logarithmic kernel (Chi et al. 2022): a learned penalty that grows with the log of the ID distance."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from lengthwise.encodings.clamped_parameters import clamp_straight_through, make_clamped_parameter
from lengthwise.encodings.encoding import (
    Bias,
    Encoding,
    EncodingSettings,
    EncodingSize,
    KeyIDs,
    QueryIDs,
    bias_by_distance,
)

# Lower bound of the kernels' parameters, from the paper's code.
MIN_PARAMETER = 0.01


class KERPLELogEncoding(Encoding):
    """Scores ``score - r1 * log(1 + r2 * |p_query - p_key|)`` with learned positive r1 and r2 per head."""

    is_relative = True
    has_bias = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.r1 = make_clamped_parameter(2 * torch.rand(num_heads), MIN_PARAMETER, math.inf)
        self.r2 = make_clamped_parameter(torch.rand(num_heads), MIN_PARAMETER, math.inf)

    def bias(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Bias:
        """Return the kernel of the absolute distance, as in the paper."""
        r1, r2 = (
            clamp_straight_through(self.r1, MIN_PARAMETER, math.inf)[:, None],
            clamp_straight_through(self.r2, MIN_PARAMETER, math.inf)[:, None],
        )
        return bias_by_distance(lambda distance: -r1 * torch.log1p(r2 * distance.abs()), query_ids, key_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class KERPLELog(EncodingSettings):
    """KERPLE with the logarithmic kernel and two learned parameters per head."""

    name: ClassVar[str] = "kerple_log"
    summary: ClassVar[str] = "scores decrease with the logarithm of the ID distance, at learned rates"
    paper: ClassVar[str] = "Chi et al. 2022 (arXiv 2205.09921)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, with parameters initialized as in the paper's code."""
        return KERPLELogEncoding(decoder_size.num_heads)
