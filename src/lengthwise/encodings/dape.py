"""DAPE (Zheng et al. 2024): a small network adjusts attention scores, based on the scores of all heads."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize, IsVisible, KeyIDs, QueryIDs, Scores
from lengthwise.encodings.kerple_log import KERPLELogEncoding


def disable_tf32(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which a GPU does not round the inputs of convolutions to 10 bits, its default (TF32)."""
    if device.type == "cpu":
        return nullcontext()
    flags: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    return flags


class DAPEEncoding(Encoding):
    """Scores ``scores + B + f(scores, B)`` with KERPLE's logarithmic bias B and a small network f.

    f consists of two convolutions with a leaky ReLU between them. Each convolution uses all channels at ``kernel_size``
    adjacent keys of one query. The inputs of both convolutions are 0 at invisible keys, so the result for a query does
    not depend on later tokens.
    """

    has_scores = True

    def __init__(self, num_heads: int, width: int, kernel_size: int) -> None:
        super().__init__()
        self.kerple = KERPLELogEncoding(num_heads)
        kernel_shape, padding = (1, kernel_size), (0, kernel_size // 2)
        self.widen = nn.Conv2d(2 * num_heads, width, kernel_shape, padding=padding)
        self.narrow = nn.Conv2d(width, num_heads, kernel_shape, padding=padding)

    def adjust_scores(self, scores: Scores, query_ids: QueryIDs, key_ids: KeyIDs, is_visible: IsVisible) -> Scores:
        """Return the adjusted scores. In-place operations reduce the memory for the hidden channels."""
        bias = self.kerple.bias(query_ids, key_ids)
        channels = torch.cat([scores, bias], dim=1).masked_fill_(~is_visible, 0.0)
        with disable_tf32(scores.device):
            hidden = nn.functional.leaky_relu(self.widen(channels).masked_fill_(~is_visible, 0.0), inplace=True)
            return scores + bias + self.narrow(hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class DAPE(EncodingSettings):
    """DAPE with ``mlp_width`` hidden units. The inputs are the scores and biases of all heads for a query and a key."""

    mlp_width: int = 32

    name: ClassVar[str] = "dape"
    summary: ClassVar[str] = "a small network adapts KERPLE's bias to the scores of all heads"
    paper: ClassVar[str] = "Zheng et al. 2024 (arXiv 2405.14722)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def _check(self) -> None:
        check_at_least(self, 1, "mlp_width")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module; its network processes each key separately."""
        return DAPEEncoding(decoder_size.num_heads, self.mlp_width, kernel_size=1)
