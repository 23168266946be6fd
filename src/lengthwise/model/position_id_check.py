"""Check of the shape, type and range of the decoder's position IDs."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int, Real
from torch import Tensor

from lengthwise.core.errors import PositionIDError, PositionRangeError


@dataclass(frozen=True, slots=True)
class IDCheck:
    """Requirements of a decoder on position IDs: number of levels, exclusive upper limit or None, and number type."""

    encoding: str
    num_levels: int
    num_position_ids: int | None
    real_valued: bool

    def __call__(self, tokens: Int[Tensor, "batch seq"], position_ids: Tensor) -> Real[Tensor, "level batch seq"]:
        """Return the IDs with a leading level axis; raise ``PositionIDError`` or ``PositionRangeError`` if invalid."""
        ids = position_ids[None] if position_ids.dim() == 2 else position_ids
        if ids.dim() != 3 or ids.shape[1:] != tokens.shape:
            raise PositionIDError(
                f"position IDs have shape {tuple(position_ids.shape)} but tokens have shape {tuple(tokens.shape)}; "
                f"pass (batch, seq), or (level, batch, seq) with {self.num_levels} level(s)"
            )
        if len(ids) != self.num_levels:
            raise PositionIDError(
                f"position IDs have {len(ids)} level(s) but this decoder was built for {self.num_levels}; "
                f"pass IDs with {self.num_levels} level(s), or build the decoder with num_levels={len(ids)}"
            )
        if ids.is_complex() or ids.dtype == torch.bool:
            raise PositionIDError(f"position IDs have the invalid type {ids.dtype}; pass whole or real numbers")
        if ids.is_floating_point() and not self.real_valued:
            raise PositionIDError(
                f"position IDs are real numbers ({ids.dtype}) but the encoding {self.encoding} needs whole numbers; "
                "use a scheme with whole IDs, or an encoding for real IDs, such as rotary"
            )
        # Distances between unsigned or small integer types would overflow.
        ids = ids.double() if ids.is_floating_point() else ids.long()
        # Reading values would synchronize a GPU. IDs on a GPU come from a batch that was checked on the CPU.
        if ids.device.type == "cpu" and ids.numel():
            self._check_values(ids)
        return ids

    def _check_values(self, ids: Tensor) -> None:
        smallest_id, largest_id = ids.min().item(), ids.max().item()
        if not (smallest_id >= 0 and largest_id < math.inf):
            invalid_id = largest_id if smallest_id >= 0 else smallest_id
            raise PositionIDError(f"position ID {invalid_id} is negative, infinite or NaN; IDs start at 0")
        if self.num_position_ids is not None and largest_id >= self.num_position_ids:
            raise PositionRangeError(
                f"position ID {largest_id} is beyond the {self.num_position_ids} IDs of the encoding {self.encoding}; "
                f"set its num_position_ids to at least {largest_id + 1}"
            )
