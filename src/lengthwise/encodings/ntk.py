"""NTK-aware scaling (bloc97 2023): rotary with a larger base, which slows only the slower pairs."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from lengthwise.core.type_checks import check_types
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.rotary import rotary_frequencies
from lengthwise.encodings.scaled_rotary import ScaledRotaryEncoding, check_scaling, check_two_pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class NTK(EncodingSettings):
    """Rotary with base ``base * factor^(d_head / (d_head - 2))``: the slowest pair rotates ``factor`` times slower.

    For a model trained with plain rotary: scaling is active at evaluation, and with ``in_training`` also in training.
    """

    factor: float = 8.0
    base: float = 10_000.0
    fastest: float = 1.0
    in_training: bool = False

    name: ClassVar[str] = "rotary_ntk"
    summary: ClassVar[str] = "rotary with a base enlarged for longer sequences (NTK-aware)"
    paper: ClassVar[str] = "bloc97 2023, in Peng et al. 2024 (arXiv 2309.00071)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_scaling(self.base, self.fastest, self.factor)

    def build(self, size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` unless ``d_head`` has two pairs."""
        check_two_pairs(size.d_head)
        base = self.base * self.factor ** (size.d_head / (size.d_head - 2))
        return ScaledRotaryEncoding(
            partial(rotary_frequencies, size.d_head, self.base, self.fastest),
            partial(rotary_frequencies, size.d_head, base, self.fastest),
            in_training=self.in_training,
        )
