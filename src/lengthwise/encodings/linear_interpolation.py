"""Linear position interpolation (Chen et al. 2023): rotary that divides all IDs by one factor."""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.encodings.encoding import Encoding, EncodingSize
from lengthwise.encodings.rotary import check_even_head_width
from lengthwise.encodings.scaled_rotary import ScaledRotary


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearInterpolation(ScaledRotary):
    """Rotary that rotates pair i by ``(p / factor) * fastest * base^(-2i / d_head)`` radians at ID p.

    The paper fine-tunes models with this scaling; set ``in_training=True`` for such training.
    """

    name: ClassVar[str] = "rotary_linear"
    summary: ClassVar[str] = "rotary that divides IDs by a factor (position interpolation)"
    paper: ClassVar[str] = "Chen et al. 2023 (arXiv 2306.15595)"

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` for an odd ``d_head``."""
        check_even_head_width(decoder_size.d_head)
        return self.build_scaled_encoding(decoder_size.d_head, base=self.base, fastest=self.fastest / self.factor)
