"""RePo (Li et al. 2025): rotary with a real-valued position per token and head, predicted from the hidden state."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import (
    Encoding,
    EncodingSize,
    HeadVectors,
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


class PositionPredictor(nn.Module):
    """Network ``z = (swish(h W_g) * (h W_c)) W_z`` with one output per head for the hidden state h of a token."""

    def __init__(self, d_model: int, width: int, num_heads: int) -> None:
        super().__init__()
        self.gate = nn.Linear(d_model, width, bias=False)
        self.content = nn.Linear(d_model, width, bias=False)
        self.positions = nn.Linear(width, num_heads, bias=False)

    def forward(self, hidden: TokenVectors) -> Float[Tensor, "batch seq heads"]:
        """Return one real-valued position per token and head."""
        positions: Tensor = self.positions(nn.functional.silu(self.gate(hidden)) * self.content(hidden))
        return positions


class RePoEncoding(Encoding):
    """Rotary at predicted positions; the first blocks use the IDs as positions, as plain rotary does.

    A position has one component among the features of a token, and ``scores`` rotates queries and keys by it.
    """

    has_token_features = True
    has_scores = True

    def __init__(self, settings: "RePo", size: EncodingSize) -> None:
        super().__init__()
        self.base = settings.base
        self.fastest = settings.fastest
        self.num_heads = size.num_heads
        self.num_rotary_layers = round(settings.rotary_share * size.num_layers)
        self.predictors = nn.ModuleList(
            PositionPredictor(size.d_model, settings.width, size.num_heads)
            for _ in range(size.num_layers - self.num_rotary_layers)
        )

    @property
    def uses_position_ids(self) -> bool:
        """True if the first block uses the IDs as positions."""
        return self.num_rotary_layers > 0

    def token_features(self, hidden: TokenVectors, position_ids: TokenIDs, layer: int) -> TokenFeatures:
        """Return the position of each token for each head: its ID in the first blocks, otherwise a prediction."""
        if layer < self.num_rotary_layers:
            return position_ids[:, None, :, None].float().expand(-1, self.num_heads, -1, -1)
        with torch.autocast(hidden.device.type, enabled=False):
            positions: Tensor = self.predictors[layer - self.num_rotary_layers](hidden.float())
        return positions.mT[..., None]

    def scores(self, query: QueryVectors, key: KeyVectors, query_ids: QueryIDs, key_ids: KeyIDs) -> Scores:
        """Return the unscaled scores of queries and keys, rotated by their positions."""
        return self._rotate_annotated(query) @ self._rotate_annotated(key).mT

    def _rotate_annotated(self, x: Float[Tensor, "batch heads seq d_annotated"]) -> HeadVectors:
        vectors, positions = x[..., :-1].float().contiguous(), x[..., -1:].double()
        frequencies = rotary_frequencies(vectors.shape[-1], self.base, self.fastest, x.device)
        return apply_rotations(vectors, angles_to_cos_sin(positions * frequencies))


@dataclass(frozen=True, slots=True, kw_only=True)
class RePo(RotarySettings):
    """RePo with a network of ``width`` hidden units in every block that predicts positions.

    The first ``rotary_share`` of the blocks (rounded) use the IDs as positions; with a single block, none does. The
    paper starts at block 5 of 16. ``base`` and ``fastest`` are those of ``Rotary``.

    The form of the network, one output per head, and plain rotary in the first blocks follow the paper. Its width and
    initial values are reconstructed: the defaults of ``nn.Linear``.
    """

    width: int = 32
    rotary_share: float = 1 / 3

    name: ClassVar[str] = "repo"
    summary: ClassVar[str] = "rotary at real-valued positions that a small network predicts from hidden states (RePo)"
    paper: ClassVar[str] = "Li et al. 2025 (arXiv 2512.14391)"
    real_valued: ClassVar[bool] = False

    def _check(self) -> None:
        RotarySettings._check(self)
        check_at_least(self, 1, "width")
        if not 0 <= self.rotary_share < 1:
            raise SettingError(f"rotary_share {self.rotary_share} is out of range; use 0 or more and less than 1")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module; raise ``SettingError`` for an odd ``d_head``."""
        check_even_head_width(decoder_size.d_head)
        return RePoEncoding(self, decoder_size)
