"""Masks made from token indexes: which token sees which, whatever the IDs."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def causal_mask(
    inside: Bool[Tensor, "batch key"],
    *,
    new: int | None = None,
    past: int = 0,
    sequence_ids: Int[Tensor, "batch key"] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch 1 new key"]:
    """What is added to the scores: 0 where a key is seen, the smallest number of ``dtype`` elsewhere.

    The ``new`` queries (by default all behind ``past``) are the tokens from index ``past`` on; keys that are not
    ``inside`` are fill. Each sees those before it, of its own sequence where ``sequence_ids`` pack several into a row,
    and itself, so that no row is without a key.
    """
    index = torch.arange(inside.shape[1], device=inside.device)
    asking = index[past : None if new is None else past + new, None]
    seen = (index <= asking) & inside[:, None]
    if sequence_ids is not None:
        asked = sequence_ids[:, past : None if new is None else past + new, None]
        seen = seen & (sequence_ids[:, None] == asked)
    seen = (seen | (index == asking))[:, None]
    return torch.zeros(seen.shape, dtype=dtype, device=inside.device).masked_fill_(~seen, torch.finfo(dtype).min)
