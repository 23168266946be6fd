"""Weave: rotary with distances beyond a window that grow in stairs."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.pairwise_rotary import PairwiseRotaryEncoding
from lengthwise.encodings.rotary import check_pairs, check_turning


class WeaveEncoding(PairwiseRotaryEncoding):
    """Rotary with distance d replaced by ``window + ceil((d - window) / width)`` where it exceeds the window.

    The sign is kept: a key with a larger ID is as far on the other side (the paper's distances are never negative).
    """

    def __init__(self, settings: "Weave") -> None:
        super().__init__(settings.base, settings.fastest, in_training=settings.in_training)
        self.window = settings.window
        self.width = settings.width

    def distances(
        self, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "batch query key"]:
        """Near ones as they are, far ones in stairs."""
        distance = super().distances(query_ids, key_ids)
        size = distance.abs()
        stairs = ((size - self.window).clamp(min=0) / self.width).ceil()
        return distance.sign() * (size.clamp(max=self.window) + stairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weave(EncodingSettings):
    """Stair PE, the position part of Mesa-Extrapolation: IDs further apart than ``window`` come nearer, in stairs.

    A ``width`` beyond every distance is ReRoPE: whole distances stop at ``window + 1``. The paper's chunks, which form
    a triangle and save memory, change which keys are visible and are no part of this.

    For a model trained with plain rotary: the stairs act at evaluation, and with ``in_training`` in training too.
    """

    window: int = 512
    width: int = 50
    base: float = 10_000.0
    fastest: float = 1.0
    in_training: bool = False

    name: ClassVar[str] = "weave"
    summary: ClassVar[str] = "rotary with far distances growing in stairs (Stair PE)"
    paper: ClassVar[str] = "Ma et al. 2024 (arXiv 2410.15859)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_turning(self.base, self.fastest)
        for setting in ("window", "width"):
            if getattr(self, setting) < 1:
                raise SettingError(f"{setting} {getattr(self, setting)} leaves no distance; use at least 1")

    def build(self, size: EncodingSize) -> Encoding:
        """Nothing to learn."""
        check_pairs(size.d_head)
        return WeaveEncoding(self)
