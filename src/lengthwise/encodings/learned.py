"""Learned absolute positions (Gehring et al. 2017): one vector per ID, added to the token embedding."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor, nn

from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize, TokenVectors


class LearnedEncoding(Encoding):
    """Embeddings ``x_t + W[p_t]`` with a learned table W."""

    def __init__(self, num_position_ids: int, d_model: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(num_position_ids, d_model).mul_(0.02))

    def embed(self, x: TokenVectors, position_ids: Int[Tensor, "batch seq"]) -> TokenVectors:
        """Return the sum of the token embeddings and the vectors of their IDs."""
        return x + nn.functional.embedding(position_ids, self.vectors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned(EncodingSettings):
    """Learned positions for IDs below ``num_position_ids``; larger IDs raise ``PositionRangeError``."""

    num_position_ids: int = 512

    name: ClassVar[str] = "learned"
    summary: ClassVar[str] = "one learned vector per ID, added to the embedding"
    paper: ClassVar[str] = "Radford et al. 2018, GPT; Gehring et al. 2017 (arXiv 1705.03122)"

    def _check(self) -> None:
        check_at_least(self, 1, "num_position_ids")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module with normally distributed initial vectors."""
        return LearnedEncoding(self.num_position_ids, decoder_size.d_model)
