"""Dynamic NTK scaling (emozilla 2023): rotary with a base that grows with the largest visible ID."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import Encoding, EncodingSize, KeyIDs, QueryIDs
from lengthwise.encodings.scaled_rotary import PairwiseRotaryEncoding, ScaledRotary, check_min_head_width


class DynamicNTKEncoding(PairwiseRotaryEncoding):
    """Rotary with base ``base * (factor * n / original_length - (factor - 1))^(d_head / (d_head - 2))``.

    n is 1 + the largest ID visible to the query, and at least ``original_length``. Each query has its own base, which
    also applies to its keys. Therefore, a full pass and cached decoding give equal scores, and no query depends on
    later tokens. In other libraries, all queries of a pass share the base of the last query, and cached keys keep the
    base of the step that added them. Both methods give the same result for the last query of a full pass.
    """

    def __init__(self, settings: "DynamicNTK") -> None:
        super().__init__(settings.base, settings.fastest, in_training=settings.in_training)
        self.factor = settings.factor
        self.original_length = settings.original_length

    def frequencies(self, d_head: int, query_ids: QueryIDs, key_ids: KeyIDs) -> Float[Tensor, "pair #batch #query 1"]:
        """Return the radians per ID of every pair of components, for each query."""
        # The queries belong to the last keys, and each query sees the keys up to its own token.
        largest_id = key_ids.double().cummax(dim=1).values[:, key_ids.shape[1] - query_ids.shape[1] :]
        visible_length = (largest_id + 1).clamp(min=self.original_length)
        base_growth = self.factor * visible_length / self.original_length - (self.factor - 1)
        scaled_base = self.base * base_growth ** (d_head / (d_head - 2))
        exponents = torch.arange(0, d_head, 2, dtype=torch.float64, device=scaled_base.device) / d_head
        return self.fastest * scaled_base[..., None] ** -exponents[:, None, None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicNTK(ScaledRotary):
    """Rotary with a base that grows when visible IDs reach ``original_length``, the number of IDs in training.

    ``fastest`` is the frequency of the first pair of components in radians per ID.
    Use it for a model trained with plain rotary. Scaling is active at evaluation, and also in training if
    ``in_training`` is True.
    """

    original_length: int = 2048

    name: ClassVar[str] = "rotary_dynamic_ntk"
    summary: ClassVar[str] = "rotary with a base that grows with the largest visible ID (dynamic NTK)"
    paper: ClassVar[str] = "emozilla 2023, in Peng et al. 2024 (arXiv 2309.00071)"
    shift_invariant: ClassVar[bool] = False
    reads_order: ClassVar[bool] = True

    def _check(self) -> None:
        ScaledRotary._check(self)
        check_at_least(self, 1, "original_length")

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` unless ``d_head`` is even and at least 4."""
        check_min_head_width(decoder_size.d_head)
        return DynamicNTKEncoding(self)
