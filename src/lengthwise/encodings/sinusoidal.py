"""Sinusoidal positions: sines and cosines of the ID, added to the token embedding."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize

BASE = 10_000.0


class SinusoidalEncoding(Encoding):
    """``x + s / sqrt(d_model)`` with ``s[2i] = sin(p * base^(-2i / d_model))`` and ``s[2i + 1]`` the cosine."""

    def embed(
        self, x: Float[Tensor, "batch seq d_model"], position_ids: Real[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch seq d_model"]:
        """The paper multiplies embeddings by ``sqrt(d_model)``; here they stay, and the waves are divided by it."""
        d_model = x.shape[-1]
        exponents = torch.arange(0, d_model, 2, dtype=torch.float64, device=x.device) / d_model
        # Double precision until the whole turns are gone: float32 loses the angles of large IDs.
        angle = torch.remainder(position_ids[:, :, None] * BASE**-exponents, 2 * math.pi).float()
        waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[..., :d_model]
        return x + (waves / math.sqrt(d_model)).to(x.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sinusoidal(EncodingSettings):
    """Wavelengths from 2 pi IDs up to ``2 pi * base``."""

    name: ClassVar[str] = "sinusoidal"
    summary: ClassVar[str] = "sines and cosines of the ID, added to the embedding"
    paper: ClassVar[str] = "Vaswani et al. 2017 (arXiv 1706.03762)"
    real_valued: ClassVar[bool] = True

    def build(self, size: EncodingSize) -> Encoding:
        """Nothing to learn."""
        return SinusoidalEncoding()
