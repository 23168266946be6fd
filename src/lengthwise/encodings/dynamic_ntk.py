"""Dynamic NTK scaling: rotary with a base that grows with what a query can see."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.core.type_checks import check_types
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.pairwise_rotary import PairwiseRotaryEncoding
from lengthwise.encodings.scaled_rotary import check_original_length, check_scalable, check_scaling


class DynamicNTKEncoding(PairwiseRotaryEncoding):
    """Rotary with base ``base * (factor * n / original_length - (factor - 1))^(d_head / (d_head - 2))``.

    n is 1 + the largest ID that the query sees, and at least ``original_length``. Each query turns itself and all its
    keys with its own base, so one pass and cached decoding agree, and no query knows what follows it. Elsewhere all
    queries of a pass take the base of the last, and cached keys keep the base of the step that made them; the last
    query of a whole pass is the same here and there.
    """

    def __init__(self, settings: "DynamicNTK") -> None:
        super().__init__(settings.base, settings.fastest, in_training=settings.in_training)
        self.factor = settings.factor
        self.original_length = settings.original_length

    def frequencies(
        self, d_head: int, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "pair #batch #query 1"]:
        """Radians per ID of every pair and query."""
        # The last queries stand at the last keys: what query i sees ends with its own token.
        largest = key_ids.double().cummax(dim=1).values[:, key_ids.shape[1] - query_ids.shape[1] :]
        length = (largest + 1).clamp(min=self.original_length)
        growth = self.factor * length / self.original_length - (self.factor - 1)
        base = self.base * growth ** (d_head / (d_head - 2))
        exponents = torch.arange(0, d_head, 2, dtype=torch.float64, device=base.device) / d_head
        return self.fastest * base[..., None] ** -exponents[:, None, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicNTK(EncodingSettings):
    """The base is the trained one while IDs stay below ``original_length``, the largest number of IDs met in training.

    For a model trained with plain rotary: the scaling acts at evaluation, and with ``in_training`` in training too.
    """

    factor: float = 8.0
    original_length: int = 2048
    base: float = 10_000.0
    fastest: float = 1.0
    in_training: bool = False

    name: ClassVar[str] = "rotary_dynamic_ntk"
    summary: ClassVar[str] = "rotary with a base that grows with the IDs a query sees (dynamic NTK)"
    paper: ClassVar[str] = "emozilla 2023, in Peng et al. 2024 (arXiv 2309.00071)"
    real_valued: ClassVar[bool] = True
    reads_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_scaling(self.base, self.fastest, self.factor)
        check_original_length(self.original_length)

    def build(self, size: EncodingSize) -> Encoding:
        """Nothing to learn."""
        check_scalable(size.d_head)
        return DynamicNTKEncoding(self)
