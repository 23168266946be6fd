"""KERPLE's power kernel (Chi et al. 2022): a penalty that grows with a learned power of the ID distance."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from lengthwise.core.errors import SettingError
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
from lengthwise.encodings.kerple_log import MIN_PARAMETER

# Upper limit of the power. For larger powers, the kernel is not conditionally positive definite.
MAX_POWER = 2.0


class KERPLEPowerEncoding(Encoding):
    """Scores ``score - r1 * |p_query - p_key|^r2`` with learned r1 > 0 and ``min_power <= r2 <= 2`` per head."""

    is_relative = True
    has_bias = True

    def __init__(self, num_heads: int, min_power: float = MIN_PARAMETER) -> None:
        super().__init__()
        self.min_power = min_power
        self.r1 = make_clamped_parameter(torch.rand(num_heads), MIN_PARAMETER, math.inf)
        self.r2 = make_clamped_parameter(2 * torch.rand(num_heads), min_power, MAX_POWER)

    def bias(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Bias:
        """Return the kernel of the absolute distance, as in the paper."""
        r1 = clamp_straight_through(self.r1, MIN_PARAMETER, math.inf)[:, None]
        r2 = clamp_straight_through(self.r2, self.min_power, MAX_POWER)[:, None]
        return bias_by_distance(lambda distance: -r1 * distance.abs() ** r2, query_ids, key_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class KERPLEPower(EncodingSettings):
    """KERPLE with the power kernel and two learned parameters per head.

    The paper allows powers down to ``min_power=0.01``, with which the scores of a head barely fall. With
    ``min_power=1``, the scores of all heads fall at least linearly, so far keys never have much weight.
    """

    min_power: float = MIN_PARAMETER

    name: ClassVar[str] = "kerple_power"
    summary: ClassVar[str] = "scores decrease with a learned power of the ID distance"
    paper: ClassVar[str] = "Chi et al. 2022 (arXiv 2205.09921)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def _check(self) -> None:
        if not MIN_PARAMETER <= self.min_power <= MAX_POWER:
            raise SettingError(
                f"kerple_power min_power {self.min_power} is out of range; use {MIN_PARAMETER} to {MAX_POWER}"
            )

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, with parameters initialized as in the paper's code."""
        return KERPLEPowerEncoding(decoder_size.num_heads, self.min_power)
