"""Hard-ALiBi: some heads see only keys whose IDs are near."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.encodings.distance import distances
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize


class HardALiBiEncoding(Encoding):
    """``score`` where ``|p_query - p_key| < window``, otherwise minus infinity; most heads have an infinite window."""

    has_bias = True
    windows: Tensor

    def __init__(self, num_heads: int, num_masked_heads: int) -> None:
        super().__init__()
        windows = torch.full((num_heads,), math.inf)
        windows[:num_masked_heads] = torch.arange(1, num_masked_heads + 1)
        self.register_buffer("windows", windows, persistent=False)

    def bias(
        self, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "#batch heads query key"]:
        """A query's own token is at distance 0: no row is without a visible key."""
        apart = distances(query_ids, key_ids).abs().float()[:, None]
        return torch.where(apart < self.windows[:, None, None], 0.0, -math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardALiBi(EncodingSettings):
    """Windows 1, 2, ... for the first ``num_masked_heads`` heads (None: half of them), none for the others.

    The first window holds the query's own ID alone: seeing a token before takes a second one, so two masked heads.
    """

    num_masked_heads: int | None = None

    name: ClassVar[str] = "hard_alibi"
    summary: ClassVar[str] = "some heads see only keys within a few IDs, the others all"
    paper: ClassVar[str] = "Jelassi et al. 2024 (arXiv 2402.01032)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_masked_heads is not None and self.num_masked_heads < 1:
            raise SettingError(f"num_masked_heads {self.num_masked_heads} masks no head; use at least 1")

    def build(self, size: EncodingSize) -> Encoding:
        """One window per head."""
        masked = size.num_heads // 2 if self.num_masked_heads is None else self.num_masked_heads
        if not 1 <= masked <= size.num_heads:
            raise SettingError(
                f"hard_alibi cannot mask {masked} of {size.num_heads} heads; "
                "use num_heads of at least 2, and num_masked_heads up to num_heads"
            )
        return HardALiBiEncoding(size.num_heads, masked)
