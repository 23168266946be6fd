"""FIRE: a small network maps how far back a key lies, as a share of how far back it could lie, to a bias."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.encodings.distance import by_distance, distances
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize

WIDTH = 32
EPS = 1e-6
# Pairs take turns at copies of a line, or their gradients would wait for each other to be summed.
COPIES = 8


class FIREEncoding(Encoding):
    """``score + mlp(psi(d) / psi(max(L, p_query)))`` with distance d and ``psi(x) = log(1 + c * x)``.

    c and L are learned. Negative distances mirror the others: ``psi(-x) = -psi(x)``.
    """

    has_bias = True

    def __init__(self, num_heads: int, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.stretch = nn.Parameter(torch.tensor(1.0))
        self.rate = nn.Parameter(torch.tensor(0.1))
        self.widen = nn.Linear(1, WIDTH)
        self.narrow = nn.Linear(WIDTH, num_heads)

    def bias(
        self, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """The share of the way from the query's ID down to 0, or of the threshold while that is longer."""
        least = (self.stretch * self.threshold).abs()
        # Up to the threshold the whole way is one number, so the distance alone tells. A GPU would wait for the answer.
        if query_ids.device.type == "cpu" and bool((query_ids <= least).all()):
            return by_distance(lambda apart: self._mlp(self._psi(apart) / (self._psi(least) + EPS)), query_ids, key_ids)
        whole = self._psi(torch.maximum(query_ids.float(), least)) + EPS
        return self._mlp(self._psi(distances(query_ids, key_ids).float()) / whole[:, :, None]).transpose(0, 1)

    def _psi(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return x.sign() * torch.log1p(self.rate.abs() * x.abs())

    def _mlp(self, share: Float[Tensor, "*pairs"]) -> Float[Tensor, "heads *pairs"]:
        """A ReLU network of one number is straight between its kinks: a pair needs one line, no hidden layer."""
        weight, bias = self.widen.weight[:, 0], self.widen.bias
        with torch.no_grad():
            # A weight of 0 has its kink at infinity, or with a bias of 0 nowhere: any finite place will do.
            kinks = (-bias / weight).nan_to_num().sort().values
            inside = torch.cat([kinks[:1] - 1, (kinks[:-1] + kinks[1:]) / 2, kinks[-1:] + 1])
            active = inside[:, None] * weight + bias > 0  # lines width
            copy = torch.arange(share.shape[-1], device=share.device) % COPIES
            entry = (torch.bucketize(share, kinks) * COPIES + copy).flatten()
        slopes = (self.narrow.weight * weight)[:, None].where(active, 0.0).sum(dim=-1)
        heights = (self.narrow.weight * bias)[:, None].where(active, 0.0).sum(dim=-1) + self.narrow.bias[:, None]
        slope, height = (
            line.repeat_interleave(COPIES, dim=1).index_select(1, entry).view(len(line), *share.shape)
            for line in (slopes, heights)
        )
        return slope * share + height


@dataclass(frozen=True, slots=True, kw_only=True)
class FIRE(EncodingSettings):
    """``threshold`` is where L starts: below it, shares are those of the threshold."""

    threshold: float = 512.0

    name: ClassVar[str] = "fire"
    summary: ClassVar[str] = "a small network's bias from the ID distance as a share of the query's ID"
    paper: ClassVar[str] = "Li et al. 2024 (arXiv 2310.04418)"
    real_valued: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        if self.threshold <= 0:
            raise SettingError(f"threshold {self.threshold} is no distance; use a positive number")

    def build(self, size: EncodingSize) -> Encoding:
        """A network for the number of heads."""
        return FIREEncoding(size.num_heads, self.threshold)
