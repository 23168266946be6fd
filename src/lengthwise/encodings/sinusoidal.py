"""Sinusoidal positions (Vaswani et al. 2017): sines and cosines of the ID, added to the token embedding."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize, TokenIDs, TokenVectors

BASE = 10_000.0


class SinusoidalEncoding(Encoding):
    """Embeddings ``x + s / sqrt(d_model)``; ``s[2i] = sin(p * base^(-2i / d_model))``, ``s[2i + 1]`` is the cosine."""

    def embed(self, x: TokenVectors, position_ids: TokenIDs) -> TokenVectors:
        """Add scaled sinusoids to the embeddings; the paper multiplies the embeddings by ``sqrt(d_model)`` instead."""
        d_model = x.shape[-1]
        exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device=x.device) / d_model
        # The angles are in double precision until the remainder, because float32 is inexact for large IDs.
        angles = torch.remainder(position_ids[:, :, None] * BASE**-exponents, 2 * math.pi).float()
        sinusoids = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :d_model]
        return x + (sinusoids / math.sqrt(d_model)).to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sinusoidal(EncodingSettings):
    """Sinusoids with wavelengths from 2 pi to about ``2 pi * BASE`` IDs, and no parameters."""

    name: ClassVar[str] = "sinusoidal"
    summary: ClassVar[str] = "sines and cosines of the ID, added to the embedding"
    paper: ClassVar[str] = "Vaswani et al. 2017 (arXiv 1706.03762)"
    real_valued: ClassVar[bool] = True

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, without parameters."""
        return SinusoidalEncoding()
