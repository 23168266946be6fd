"""DAPE V2 (Zheng et al. 2024): a small convolution adjusts scores across all heads and adjacent keys."""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.dape import DAPEEncoding
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize


@dataclass(frozen=True, slots=True, kw_only=True)
class DAPEv2(EncodingSettings):
    """DAPE V2 with ``mlp_width`` hidden channels and windows of ``kernel_size`` consecutive keys.

    Invisible keys are masked before both convolutions. The paper masks them only before the first convolution. With
    the paper's masking, the second convolution leaks the existence of later tokens to each query.
    """

    mlp_width: int = 32
    kernel_size: int = 3

    name: ClassVar[str] = "dape_v2"
    summary: ClassVar[str] = "a small convolution along the keys adapts KERPLE's bias to the scores of all heads"
    paper: ClassVar[str] = "Zheng et al. 2024 (arXiv 2410.04798)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    reads_order: ClassVar[bool] = True

    def _check(self) -> None:
        check_at_least(self, 1, "mlp_width")
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise SettingError(f"kernel_size {self.kernel_size} is not positive and odd; use an odd number such as 3")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module; its network processes windows of ``kernel_size`` adjacent keys."""
        return DAPEEncoding(decoder_size.num_heads, self.mlp_width, self.kernel_size)
