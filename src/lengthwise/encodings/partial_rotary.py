"""Partial rotary encoding (Black et al. 2022): rotation of only the first components of each head."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from lengthwise.core.errors import SettingError
from lengthwise.encodings.encoding import Encoding, EncodingSize, HeadVectors, TokenIDs
from lengthwise.encodings.rotary import RotarySettings, apply_rotary, rotary_frequencies


class PartialRotaryEncoding(Encoding):
    """Rotation of pair i of the first r components by ``p * fastest * base^(-2i / r)`` radians at ID p."""

    is_relative = True

    def __init__(self, num_rotated_components: int, base: float, fastest: float) -> None:
        super().__init__()
        self.num_rotated_components = num_rotated_components
        self.base = base
        self.fastest = fastest

    def rotate(self, x: HeadVectors, position_ids: TokenIDs) -> HeadVectors:
        """Return queries or keys with the first components rotated."""
        frequencies = rotary_frequencies(self.num_rotated_components, self.base, self.fastest, x.device)
        rotated = apply_rotary(x[..., : self.num_rotated_components], position_ids, frequencies)
        return torch.cat([rotated, x[..., self.num_rotated_components :]], dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRotary(RotarySettings):
    """RoPE on the first ``share * d_head`` components of each head, as if ``d_head`` had this value."""

    share: float = 0.25

    name: ClassVar[str] = "partial_rotary"
    summary: ClassVar[str] = "rotary on the first components of each head; the other components do not change"
    paper: ClassVar[str] = "Black et al. 2022 (arXiv 2204.06745)"

    def _check(self) -> None:
        RotarySettings._check(self)
        if not 0 < self.share <= 1:
            raise SettingError(f"share {self.share} is out of range; use a number above 0 and at most 1")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` unless ``share * d_head`` is even."""
        num_components = self.share * decoder_size.d_head
        num_rotated = round(num_components)
        if num_rotated < 2 or num_rotated % 2 or abs(num_rotated - num_components) > 1e-6:
            raise SettingError(
                f"share {self.share} of d_head {decoder_size.d_head} is {num_components:g} components, but rotary "
                "needs pairs; choose a share so that share * d_head is even and at least 2"
            )
        return PartialRotaryEncoding(num_rotated, self.base, self.fastest)
