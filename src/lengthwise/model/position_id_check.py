"""The check of position IDs at the decoder's edge: shape, kind and range."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int, Real
from torch import Tensor

from lengthwise.core.errors import PositionIDError, PositionRangeError


@dataclass(frozen=True, slots=True)
class IDCheck:
    """What a decoder's encoding takes: how many levels, IDs below which number (None: any), integers only or not."""

    encoding: str
    num_levels: int
    num_position_ids: int | None
    real_valued: bool

    def __call__(self, tokens: Int[Tensor, "batch seq"], position_ids: Tensor) -> Real[Tensor, "level batch seq"]:
        """The IDs with a leading level axis, or the error that says what is wrong with them."""
        ids = position_ids[None] if position_ids.dim() == 2 else position_ids
        if ids.dim() != 3 or ids.shape[1:] != tokens.shape:
            raise PositionIDError(
                f"position IDs of shape {tuple(position_ids.shape)} for tokens of shape {tuple(tokens.shape)}; "
                f"give (batch, seq), or (level, batch, seq) with {self.num_levels} level(s)"
            )
        if len(ids) != self.num_levels:
            raise PositionIDError(
                f"position IDs come on {len(ids)} level(s) but this decoder was built for {self.num_levels}; "
                f"give {self.num_levels}, or build it with num_levels={len(ids)}"
            )
        if ids.is_complex() or ids.dtype == torch.bool:
            raise PositionIDError(f"position IDs of type {ids.dtype} are no numbers; give whole or real ones")
        if ids.is_floating_point() and not self.real_valued:
            raise PositionIDError(
                f"position IDs are real numbers ({ids.dtype}) but the encoding {self.encoding} takes whole ones; "
                "use a scheme with whole IDs or an encoding that takes real ones, such as rotary"
            )
        # Distances of unsigned or narrow numbers would wrap around.
        ids = ids.double() if ids.is_floating_point() else ids.long()
        # Reading values would make a GPU wait; there the IDs come from a batch that was checked on the CPU.
        if ids.device.type == "cpu" and ids.numel():
            self._check_values(ids)
        return ids

    def _check_values(self, ids: Tensor) -> None:
        smallest, largest = ids.min().item(), ids.max().item()
        if not (smallest >= 0 and largest < math.inf):
            wrong = largest if smallest >= 0 else smallest
            raise PositionIDError(f"position ID {wrong} is negative, infinite or no number; IDs start at 0")
        if self.num_position_ids is not None and largest >= self.num_position_ids:
            raise PositionRangeError(
                f"position ID {largest} is beyond the {self.num_position_ids} that the encoding {self.encoding} holds; "
                f"set its num_position_ids to at least {largest + 1}"
            )
