"""Weave (Stair PE, Ma et al. 2024): rotary with distances that increase in steps beyond a window."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import Encoding, EncodingSize, KeyIDs, QueryIDs
from lengthwise.encodings.rotary import RotarySettings, check_even_head_width
from lengthwise.encodings.scaled_rotary import PairwiseRotaryEncoding


class WeaveEncoding(PairwiseRotaryEncoding):
    """Rotary that replaces each distance d beyond the window by ``window + ceil((d - window) / width)``.

    For a negative distance, which does not occur in the paper, the formula applies to the absolute value.
    """

    def __init__(self, settings: "Weave") -> None:
        super().__init__(settings.base, settings.fastest, in_training=settings.in_training)
        self.window = settings.window
        self.width = settings.width

    def distances(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Float[Tensor, "batch query key"]:
        """Return the distances, which increase in steps beyond the window."""
        distance = super().distances(query_ids, key_ids)
        absolute_distance = distance.abs()
        num_steps = ((absolute_distance - self.window).clamp(min=0) / self.width).ceil()
        return distance.sign() * (absolute_distance.clamp(max=self.window) + num_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weave(RotarySettings):
    """Stair PE, the position encoding of Mesa-Extrapolation, with a ``window`` and a step ``width`` in IDs.

    If ``width`` exceeds every distance, the result is ReRoPE: integer distances are at most ``window + 1``. The
    triangular chunks of the paper, which save memory but hide some keys, are not implemented.

    Use it for a model trained with plain rotary. With ``in_training=True``, the steps also apply in training.
    ``fastest`` is the frequency of the first pair of components in radians per ID.
    """

    window: int = 512
    width: int = 50
    in_training: bool = False

    name: ClassVar[str] = "weave"
    summary: ClassVar[str] = "rotary with large distances that increase in steps (Stair PE)"
    paper: ClassVar[str] = "Ma et al. 2024 (arXiv 2410.15859)"

    def _check(self) -> None:
        RotarySettings._check(self)
        check_at_least(self, 1, "window", "width")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` for an odd ``d_head``."""
        check_even_head_width(decoder_size.d_head)
        return WeaveEncoding(self)
