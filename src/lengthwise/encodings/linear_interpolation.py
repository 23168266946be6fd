"""Linear position interpolation (Chen et al. 2023): rotary with all IDs divided by one factor."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from lengthwise.core.type_checks import check_types
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.rotary import check_even_width, rotary_frequencies
from lengthwise.encodings.scaled_rotary import ScaledRotaryEncoding, check_scaling


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearInterpolation(EncodingSettings):
    """Rotary that rotates pair i by ``(p / factor) * fastest * base^(-2i / d_head)`` radians at ID p.

    For a model trained with plain rotary: scaling is active at evaluation, and with ``in_training`` also in training
    (the paper fine-tunes).
    """

    factor: float = 8.0
    base: float = 10_000.0
    fastest: float = 1.0
    in_training: bool = False

    name: ClassVar[str] = "rotary_linear"
    summary: ClassVar[str] = "rotary with IDs divided by a factor (position interpolation)"
    paper: ClassVar[str] = "Chen et al. 2023 (arXiv 2306.15595)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_scaling(self.base, self.fastest, self.factor)

    def build(self, size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` for an odd ``d_head``."""
        check_even_width(size.d_head)
        return ScaledRotaryEncoding(
            partial(rotary_frequencies, size.d_head, self.base, self.fastest),
            partial(rotary_frequencies, size.d_head, self.base, self.fastest / self.factor),
            in_training=self.in_training,
        )
