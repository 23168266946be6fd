"""NTK-aware scaling (bloc97 2023): rotary with a larger base, which slows all pairs except the fastest."""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.encodings.encoding import Encoding, EncodingSize
from lengthwise.encodings.scaled_rotary import ScaledRotary, check_min_head_width


@dataclass(frozen=True, slots=True, kw_only=True)
class NTK(ScaledRotary):
    """Rotary with base ``base * factor^(d_head / (d_head - 2))``. The slowest pair is ``factor`` times slower."""

    name: ClassVar[str] = "rotary_ntk"
    summary: ClassVar[str] = "rotary with a larger base for longer sequences (NTK-aware)"
    paper: ClassVar[str] = "bloc97 2023, in Peng et al. 2024 (arXiv 2309.00071)"

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` unless ``d_head`` is even and at least 4."""
        check_min_head_width(decoder_size.d_head)
        scaled_base = self.base * self.factor ** (decoder_size.d_head / (decoder_size.d_head - 2))
        return self.build_scaled_encoding(decoder_size.d_head, base=scaled_base, fastest=self.fastest)
