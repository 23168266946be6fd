"""NAPE (Vasylenko et al. 2025): some heads have a linear penalty on distances, the others have no positions."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.alibi import ALiBiEncoding
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize


def nape_slopes(num_heads: int, num_alibi_heads: int) -> Float[Tensor, " heads"]:
    """Return the slopes of the paper: 1, 1/2, 1/3, ... for the first heads, and 0 for the others."""
    slopes = torch.zeros(num_heads)
    slopes[:num_alibi_heads] = 1 / torch.arange(1, num_alibi_heads + 1)
    return slopes


class NAPEEncoding(ALiBiEncoding):
    """Scores of ALiBi whose slope is 0 in the heads without positions."""

    def __init__(self, num_heads: int, num_alibi_heads: int) -> None:
        super().__init__(num_heads)
        self.slopes = nape_slopes(num_heads, num_alibi_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class NAPE(EncodingSettings):
    """NAPE with ALiBi in the first ``num_alibi_heads`` heads (None: half of the heads) and NoPE in the other heads.

    ALiBi heads have the slopes 1, 1/2, 1/3, ..., so they find near tokens; the other heads find tokens by content.
    """

    num_alibi_heads: int | None = None

    name: ClassVar[str] = "nape"
    summary: ClassVar[str] = "scores of some heads decrease linearly with the ID distance; other heads have no encoding"
    paper: ClassVar[str] = "Vasylenko et al. 2025 (arXiv 2506.16640)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def _check(self) -> None:
        check_at_least(self, 1, "num_alibi_heads")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module with one slope per head; raise ``SettingError`` for too many ALiBi heads."""
        num_heads = decoder_size.num_heads
        num_alibi_heads = max(1, num_heads // 2) if self.num_alibi_heads is None else self.num_alibi_heads
        if num_alibi_heads > num_heads:
            raise SettingError(
                f"nape cannot have {num_alibi_heads} ALiBi heads among {num_heads}; "
                f"set num_alibi_heads to at most {num_heads}"
            )
        return NAPEEncoding(num_heads, num_alibi_heads)
