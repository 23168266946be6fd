"""Selective RoPE (Movahedi et al. 2025): rotary by angles that grow by an input-dependent step at each token."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import (
    Encoding,
    EncodingSize,
    KeyIDs,
    KeyVectors,
    QueryIDs,
    QueryVectors,
    Scores,
    TokenFeatures,
    TokenIDs,
    TokenVectors,
)
from lengthwise.encodings.rotary import (
    RotarySettings,
    angles_to_cos_sin,
    apply_rotations,
    check_even_head_width,
    rotary_frequencies,
)


class SelectiveRotaryEncoding(Encoding):
    """Rotation of pair i at token t by ``theta_i * (u_1 + ... + u_t)``, with a step u per token, head and pair.

    A step is a causal convolution of projected hidden states, with separate weights per head and pair. The projections
    are token features, so cached keys contain them, and ``scores`` computes the sums of all tokens.
    """

    has_token_features = True
    has_scores = True

    def __init__(self, settings: "SelectiveRotary", size: EncodingSize) -> None:
        super().__init__()
        self.base = settings.base
        self.fastest = settings.fastest
        self.num_heads = size.num_heads
        num_steps = size.num_heads * size.d_head // 2
        self.projections = nn.ModuleList(
            nn.Sequential(
                nn.Linear(size.d_model, settings.rank, bias=False), nn.Linear(settings.rank, num_steps, bias=False)
            )
            for _ in range(size.num_layers)
        )
        bound = settings.kernel_size**-0.5
        self.kernel = nn.Parameter(torch.empty(num_steps, 1, settings.kernel_size).uniform_(-bound, bound))

    @property
    def uses_position_ids(self) -> bool:
        """False, because angles depend only on hidden states and the token order."""
        return False

    def token_features(self, hidden: TokenVectors, position_ids: TokenIDs, layer: int) -> TokenFeatures:
        """Return the projected hidden states of each head, one component per pair."""
        with torch.autocast(hidden.device.type, enabled=False):
            projected: Tensor = self.projections[layer](hidden.float())
        return rearrange(projected, "b s (h pair) -> b h s pair", h=self.num_heads)

    def scores(self, query: QueryVectors, key: KeyVectors, query_ids: QueryIDs, key_ids: KeyIDs) -> Scores:
        """Return the unscaled scores of rotated queries and keys; the queries belong to the last keys."""
        # The width of a head and half of it.
        d_head = key.shape[-1] // 3 * 2
        rotations = angles_to_cos_sin(self._angles(key[..., d_head:]))
        query_rotations = rotations[:, :, key.shape[2] - query.shape[2] :]
        query_vectors, key_vectors = (part[..., :d_head].float().contiguous() for part in (query, key))
        return apply_rotations(query_vectors, query_rotations) @ apply_rotations(key_vectors, rotations).mT

    def _angles(self, projected: TokenFeatures) -> Float[Tensor, "batch heads seq pair"]:
        """Return the angles of all tokens in radians, in double precision."""
        num_pairs = projected.shape[-1]
        channels = pad(rearrange(projected, "b h s pair -> b (h pair) s"), (self.kernel.shape[-1] - 1, 0))
        with torch.autocast(projected.device.type, enabled=False):
            steps = conv1d(channels.double(), self.kernel.double(), groups=len(self.kernel))
        frequencies = rotary_frequencies(2 * num_pairs, self.base, self.fastest, projected.device)
        return rearrange(steps.cumsum(dim=-1), "b (h pair) s -> b h s pair", pair=num_pairs) * frequencies


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveRotary(RotarySettings):
    """Selective RoPE with a projection of rank ``rank`` per block and a convolution over ``kernel_size`` tokens.

    The projection, the convolution without activation, the sum and the frequencies follow the default settings of the
    authors' public code. It has one convolution per block, and here all blocks share one. The optional gate and bias of
    that code are not included. ``base`` and ``fastest`` are those of ``Rotary``.
    """

    rank: int = 16
    kernel_size: int = 4

    name: ClassVar[str] = "selective_rotary"
    summary: ClassVar[str] = "rotary by sums of angles that depend on the hidden states of all earlier tokens"
    paper: ClassVar[str] = "Movahedi et al. 2025 (arXiv 2511.17388)"
    reads_order: ClassVar[bool] = True

    def _check(self) -> None:
        RotarySettings._check(self)
        check_at_least(self, 1, "rank", "kernel_size")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module; raise ``SettingError`` for an odd ``d_head``."""
        check_even_head_width(decoder_size.d_head)
        return SelectiveRotaryEncoding(self, decoder_size)
