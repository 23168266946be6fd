"""NoPE (Kazemnejad et al. 2023): no position information except the causal mask."""

from dataclasses import dataclass
from typing import ClassVar

from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPE(EncodingSettings):
    """No encoding: embeddings, queries, keys and scores do not depend on the IDs."""

    name: ClassVar[str] = "nope"
    summary: ClassVar[str] = "no encoding; only the causal mask depends on the token order"
    paper: ClassVar[str] = "Kazemnejad et al. 2023 (arXiv 2305.19466)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the identity encoding, without parameters."""
        return Encoding()
