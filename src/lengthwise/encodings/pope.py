"""PoPE (Gopalakrishnan et al. 2025): content gives only the magnitude of a component, and the ID only its phase."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from lengthwise.encodings.clamped_parameters import clamp_straight_through, make_clamped_parameter
from lengthwise.encodings.encoding import (
    Encoding,
    EncodingSize,
    HeadVectors,
    KeyIDs,
    KeyVectors,
    QueryIDs,
    QueryVectors,
    Scores,
    TokenIDs,
)
from lengthwise.encodings.rotary import RotarySettings, angles_to_cos_sin


class PoPEEncoding(Encoding):
    """Scores that are sums of ``softplus(q_c) softplus(k_c) cos((p_key - p_query) theta_c + delta_c)``.

    ``theta_c = fastest * base^(-c / d_head)`` radians per ID for component c, and ``delta_c`` is a learned phase
    between -2 pi and 0 per head and component.
    """

    has_scores = True

    def __init__(self, size: EncodingSize, base: float, fastest: float) -> None:
        super().__init__()
        self.base = base
        self.fastest = fastest
        self.phase = make_clamped_parameter(torch.zeros(size.num_heads, 1, size.d_head), -2 * math.pi, 0.0)

    def scores(self, query: QueryVectors, key: KeyVectors, query_ids: QueryIDs, key_ids: KeyIDs) -> Scores:
        """Return the unscaled scores as products of vectors with twice as many components."""
        phase = clamp_straight_through(self.phase, -2 * math.pi, 0.0)
        return self._polar(query, query_ids, torch.zeros_like(phase)) @ self._polar(key, key_ids, phase).mT

    def _polar(
        self, x: HeadVectors, ids: TokenIDs, phase: Float[Tensor, "heads 1 d_head"]
    ) -> Float[Tensor, "batch heads seq 2*d_head"]:
        """Return ``softplus(x)`` times the cosine and the sine of the angle of each component."""
        exponents = torch.arange(x.shape[-1], dtype=torch.float64, device=x.device) / x.shape[-1]
        angles = ids[:, None, :, None] * (self.fastest * self.base**-exponents) + phase
        return (softplus(x.float())[..., None] * angles_to_cos_sin(angles)).flatten(-2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoPE(RotarySettings):
    """Polar coordinate position embedding, with phases that are initially 0.

    The formula, the frequencies and the range of the phases follow the paper and its public implementations. In this
    decoder, queries and keys are normalized, and the temperature and the length factor multiply a query before
    ``softplus``; with ``temperature=1`` at the start and ``length_scaling="none"``, the scores are those of the paper.
    ``base`` is that of rotary, and ``fastest`` the radians per ID of the first component.
    """

    name: ClassVar[str] = "pope"
    summary: ClassVar[str] = "content gives the magnitudes of components, and IDs give their phases (PoPE)"
    paper: ClassVar[str] = "Gopalakrishnan et al. 2025 (arXiv 2509.10534)"

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, with one phase per head and component."""
        return PoPEEncoding(decoder_size, self.base, self.fastest)
