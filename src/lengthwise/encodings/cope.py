"""CoPE (Golovneva et al. 2024): the position of a key is the number of later keys that the query counts."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import (
    Encoding,
    EncodingSettings,
    EncodingSize,
    KeyIDs,
    KeyVectors,
    QueryIDs,
    QueryVectors,
    Scores,
)


class CoPEEncoding(Encoding):
    """Scores ``q_i k_j + q_i e[p_ij]`` with the real-valued position ``p_ij``, the sum of gates from key j to query i.

    The gate of key k is ``sigmoid(q_i k_k / sqrt(d_head))``. Vectors e of adjacent whole positions are interpolated.
    """

    has_scores = True

    def __init__(self, d_head: int, num_positions: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.zeros(d_head, num_positions))

    @property
    def uses_position_ids(self) -> bool:
        """False, because positions depend only on queries, keys and the token order."""
        return False

    def scores(self, query: QueryVectors, key: KeyVectors, query_ids: QueryIDs, key_ids: KeyIDs) -> Scores:
        """Return the unscaled scores; a query counts no later keys."""
        scores = (query @ key.mT).float()
        num_queries, num_keys = scores.shape[2:]
        is_visible = torch.ones(num_queries, num_keys, dtype=torch.bool, device=scores.device).tril(
            num_keys - num_queries
        )
        gates = (scores / sqrt(query.shape[-1])).sigmoid() * is_visible
        positions = gates.flip(-1).cumsum(dim=-1).flip(-1).clamp(max=self.vectors.shape[1] - 1)
        return scores + self._interpolate((query @ self.vectors).float(), positions)

    def _interpolate(self, by_position: Float[Tensor, "batch heads query position"], positions: Scores) -> Scores:
        """Return the values of each query at real-valued positions."""
        lower = positions.detach().floor().long()
        upper = (lower + 1).clamp(max=by_position.shape[-1] - 1)
        low, high = by_position.gather(-1, lower), by_position.gather(-1, upper)
        return low + (positions - lower) * (high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoPE(EncodingSettings):
    """Contextual position encoding with vectors for positions below ``num_positions``; larger ones use the last vector.

    The formula and the initial vectors of zeros follow the paper. All blocks and heads share the vectors; the paper
    shares them among the heads of a block. The gates use scaled scores, which include the temperature and the length
    factor of this decoder.
    """

    num_positions: int = 64

    name: ClassVar[str] = "cope"
    summary: ClassVar[str] = "positions are counts of the keys that a query selects by its scores (CoPE)"
    paper: ClassVar[str] = "Golovneva et al. 2024 (arXiv 2405.18719)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    reads_order: ClassVar[bool] = True

    def _check(self) -> None:
        check_at_least(self, 2, "num_positions")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, with one vector per whole position."""
        return CoPEEncoding(decoder_size.d_head, self.num_positions)
