"""Partial rotary encoding: only the first components of a head turn."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.rotary import check_turning, rotary_frequencies, turn


class PartialRotaryEncoding(Encoding):
    """Pair i of the first r components turns by ``p * fastest * base^(-2i / r)``; the others read no ID."""

    def __init__(self, turning: int, base: float, fastest: float) -> None:
        super().__init__()
        self.turning = turning
        self.base = base
        self.fastest = fastest

    def rotate(
        self, x: Float[Tensor, "batch heads seq d_head"], position_ids: Real[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """The first components turned, the others as they came."""
        frequencies = rotary_frequencies(self.turning, self.base, self.fastest, x.device)
        turned = turn(x[..., : self.turning], position_ids, frequencies)
        return torch.cat([turned, x[..., self.turning :]], dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRotary(EncodingSettings):
    """RoPE on the first ``share`` of each head's components (first in GPT-J), as RoPE on a head of that width."""

    share: float = 0.25
    base: float = 10_000.0
    fastest: float = 1.0

    name: ClassVar[str] = "partial_rotary"
    summary: ClassVar[str] = "rotary on the first share of each head, the rest without positions"
    paper: ClassVar[str] = "Black et al. 2022 (arXiv 2204.06745)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_turning(self.base, self.fastest)
        if not 0 < self.share <= 1:
            raise SettingError(f"share {self.share} is no part of a head that can turn; use a number above 0, up to 1")

    def build(self, size: EncodingSize) -> Encoding:
        """Nothing to learn."""
        wanted = self.share * size.d_head
        turning = round(wanted)
        if turning < 2 or turning % 2 or abs(turning - wanted) > 1e-6:
            raise SettingError(
                f"share {self.share} of d_head {size.d_head} is {wanted:g} components, rotary turns pairs; "
                "choose share * d_head even and at least 2"
            )
        return PartialRotaryEncoding(turning, self.base, self.fastest)
