"""Hard-ALiBi (Jelassi et al. 2024): some heads attend only to keys with nearby IDs."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import Bias, Encoding, EncodingSettings, EncodingSize, KeyIDs, QueryIDs, id_distances


class HardALiBiEncoding(Encoding):
    """Scores masked to ``|p_query - p_key| < window``; heads without a mask have an infinite window."""

    has_bias = True
    windows: Tensor

    def __init__(self, num_heads: int, num_masked_heads: int) -> None:
        super().__init__()
        windows = torch.full((num_heads,), math.inf)
        windows[:num_masked_heads] = torch.arange(1, num_masked_heads + 1)
        self.register_buffer("windows", windows, persistent=False)

    def bias(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Bias:
        """Return 0 for keys within the window and minus infinity for other keys; the query's own token is visible."""
        distance = id_distances(query_ids, key_ids).abs().float()[:, None]
        return torch.where(distance < self.windows[:, None, None], 0.0, -math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardALiBi(EncodingSettings):
    """Hard-ALiBi with windows of 1, 2, ... IDs in the first ``num_masked_heads`` heads; None masks half of the heads.

    The first window contains only the query's own ID. Only the later windows can contain earlier tokens.
    """

    num_masked_heads: int | None = None

    name: ClassVar[str] = "hard_alibi"
    summary: ClassVar[str] = "some heads attend only to keys with nearby IDs, other heads to all keys"
    paper: ClassVar[str] = "Jelassi et al. 2024 (arXiv 2402.01032)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def _check(self) -> None:
        check_at_least(self, 1, "num_masked_heads")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module with one window per head; raise ``SettingError`` for too many masked heads."""
        num_masked = decoder_size.num_heads // 2 if self.num_masked_heads is None else self.num_masked_heads
        if not 1 <= num_masked <= decoder_size.num_heads:
            raise SettingError(
                f"hard_alibi cannot mask {num_masked} of {decoder_size.num_heads} heads; "
                f"set num_masked_heads to at least 1 and at most {decoder_size.num_heads}"
            )
        return HardALiBiEncoding(decoder_size.num_heads, num_masked)
