"""NoPE: no position information but the causal mask."""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPE(EncodingSettings):
    """Leaves embeddings, queries, keys and scores as they are: the IDs are not read."""

    name: ClassVar[str] = "nope"
    summary: ClassVar[str] = "none: the causal mask alone tells order"
    paper: ClassVar[str] = "Kazemnejad et al. 2023 (arXiv 2305.19466)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def build(self, size: EncodingSize) -> Encoding:
        """The identity."""
        return Encoding()
