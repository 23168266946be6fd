"""Masks as models of `transformers` take them: made from token indexes and sequences, never from position IDs."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def causal_mask(
    inside: Bool[Tensor, "batch key"],
    *,
    sequence_ids: Int[Tensor, "batch key"] | None = None,
    past: int = 0,
    new: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch 1 query key"]:
    """What is added to the scores: 0 where a token sees another, the dtype's most negative number elsewhere.

    A token sees those that are ``inside`` (no padding), not behind it and of its own sequence, and always itself: no
    row is without a key, padding included. The first ``past`` tokens are keys of a cache; the ``new`` ones behind them,
    by default all others, are queries as well. Eager and sdpa attention both take it.
    """
    keys = inside.shape[1]
    last = keys if new is None else past + new
    seen = inside[:, None, :] & torch.ones(last - past, keys, dtype=torch.bool, device=inside.device).tril(past)
    if sequence_ids is not None:
        seen &= sequence_ids[:, past:last, None] == sequence_ids[:, None, :]
    seen.diagonal(past, 1, 2).fill_(True)
    return added_to_scores(seen[:, None], dtype)


def added_to_scores(seen: Bool[Tensor, "rows 1 query key"], dtype: torch.dtype) -> Float[Tensor, "rows 1 query key"]:
    """0 where a key is seen, the dtype's most negative number where it is not."""
    # Not minus infinity: a row of it alone would become NaN in the softmax.
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)
