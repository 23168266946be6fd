"""FIRE (Li et al. 2024): a small network maps the ID distance, relative to the query's ID, to a bias."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.encodings.encoding import (
    Bias,
    Encoding,
    EncodingSettings,
    EncodingSize,
    KeyIDs,
    QueryIDs,
    bias_by_distance,
    id_distances,
)

MLP_WIDTH = 32
EPSILON = 1e-6
# Number of copies of each table entry. The copies distribute the gradients of all pairs over more entries.
NUM_COPIES = 8


class FIREEncoding(Encoding):
    """Scores ``score + mlp(psi(d) / psi(max(L, p_query)))`` with distance d and ``psi(x) = log(1 + c * x)``.

    c and L are learned. For negative distances, ``psi(-x) = -psi(x)``.
    """

    has_bias = True

    def __init__(self, num_heads: int, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold
        self.stretch = nn.Parameter(torch.tensor(1.0))
        self.rate = nn.Parameter(torch.tensor(0.1))
        self.widen = nn.Linear(1, MLP_WIDTH)
        self.narrow = nn.Linear(MLP_WIDTH, num_heads)

    def bias(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Bias:
        """Return the network's output for ``psi(d) / psi(max(L, p_query))``."""
        threshold = (self.stretch * self.threshold).abs()
        # If no ID exceeds the threshold, the bias depends only on the distance. On a GPU, this check would synchronize.
        if query_ids.device.type == "cpu" and bool((query_ids <= threshold).all()):
            scale = self._psi(threshold) + EPSILON
            return bias_by_distance(lambda distance: self._mlp(self._psi(distance) / scale), query_ids, key_ids)
        normalizer = self._psi(torch.maximum(query_ids.float(), threshold)) + EPSILON
        return self._mlp(self._psi(id_distances(query_ids, key_ids).float()) / normalizer[:, :, None]).transpose(0, 1)

    def _psi(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return x.sign() * torch.log1p(self.rate.abs() * x.abs())

    def _mlp(self, x: Float[Tensor, "*pairs"]) -> Float[Tensor, "heads *pairs"]:
        """Evaluate the ReLU network as a piecewise linear function, with one table lookup per query and key."""
        weight, bias = self.widen.weight[:, 0], self.widen.bias
        with torch.no_grad():
            # A weight of 0 gives an infinite or NaN kink, and any finite value can replace it.
            kinks = (-bias / weight).nan_to_num().sort().values
            midpoints = torch.cat([kinks[:1] - 1, (kinks[:-1] + kinks[1:]) / 2, kinks[-1:] + 1])
            is_active = midpoints[:, None] * weight + bias > 0  # segments width
            copy_index = torch.arange(x.shape[-1], device=x.device) % NUM_COPIES
            table_index = (torch.bucketize(x, kinks) * NUM_COPIES + copy_index).flatten()
        slopes = (self.narrow.weight * weight)[:, None].where(is_active, 0.0).sum(dim=-1)
        intercepts = (self.narrow.weight * bias)[:, None].where(is_active, 0.0).sum(dim=-1) + self.narrow.bias[:, None]
        copies = (table.repeat_interleave(NUM_COPIES, dim=1) for table in (slopes, intercepts))
        slope, intercept = (table.index_select(1, table_index).view(len(table), *x.shape) for table in copies)
        return slope * x + intercept


@dataclass(frozen=True, slots=True, kw_only=True)
class FIRE(EncodingSettings):
    """FIRE with a network of fixed width; ``threshold`` is the initial value of the learned L in ``FIREEncoding``."""

    threshold: float = 512.0

    name: ClassVar[str] = "fire"
    summary: ClassVar[str] = "a small network maps the ID distance, relative to the query's ID, to a bias"
    paper: ClassVar[str] = "Li et al. 2024 (arXiv 2310.04418)"
    real_valued: ClassVar[bool] = True

    def _check(self) -> None:
        if self.threshold <= 0:
            raise SettingError(f"threshold {self.threshold} is not positive; use a number above 0")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module with one output per head."""
        return FIREEncoding(decoder_size.num_heads, self.threshold)
