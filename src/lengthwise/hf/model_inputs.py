"""Attention mask, prompt mask and position IDs of a model call."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.hf.dataset_columns import UNSCORED
from lengthwise.hf.position_cache import PositionCache


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
    return additive_mask(seen[:, None], dtype)


def additive_mask(seen: Bool[Tensor, "rows 1 query key"], dtype: torch.dtype) -> Float[Tensor, "rows 1 query key"]:
    """0 where a key is seen, the dtype's most negative number where it is not."""
    # Not minus infinity: a row of it alone would become NaN in the softmax.
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


def build_prompt_mask(
    tokens: Int[Tensor, "batch new"],
    attention_mask: Tensor | None,
    cache: PositionCache | None,
    labels: Tensor | None,
    prompt_mask: Tensor | None,
    sequence_ids: Tensor | None = None,
) -> Bool[Tensor, "batch new"]:
    """The mask that was given, or what stands before the first label, or all tokens of a first call; never fill."""
    if prompt_mask is not None:
        found = prompt_mask.bool()
    elif labels is not None:
        found = mask_before_labels(labels, sequence_ids)
    else:
        found = torch.full_like(tokens, cache is None or not cache.has_read, dtype=torch.bool)
    if sequence_ids is not None:
        return found & (sequence_ids >= 0)
    if attention_mask is not None and attention_mask.ndim == 2:
        return found & attention_mask[:, -tokens.shape[1] :].bool()
    return found


def expand_ids(
    position_ids: Shaped[Tensor, "*level given_batch given"], rows: int
) -> Shaped[Tensor, "*level batch given"]:
    """Return IDs for each row; one row of them is for all. Whole numbers become int64, real ones stay as they are."""
    found = position_ids.shape[-2] if position_ids.dim() > 1 else 0
    if found not in (1, rows):
        raise SettingError(
            f"position_ids are {tuple(position_ids.shape)} and there are {rows} rows of tokens; give IDs for each row, "
            "or one row of them for all"
        )
    whole = position_ids if position_ids.is_floating_point() else position_ids.long()
    return whole.expand(*position_ids.shape[:-2], rows, -1)


def count_ids(tokens: Int[Tensor, "batch new"], attention_mask: Tensor | None) -> Int[Tensor, "batch new"]:
    """IDs that count up from each row's first token, as anywhere in `transformers`."""
    if attention_mask is not None and attention_mask.ndim != 2:
        raise SettingError("a mask of all pairs of tokens does not say where rows begin; give position_ids with it")
    inside = torch.ones_like(tokens) if attention_mask is None else attention_mask
    return (inside.long().cumsum(dim=1) - 1).clamp(min=0)


def select_logits(
    of_tokens: Float[Tensor, "batch new features"], kept: int | Tensor
) -> Float[Tensor, "batch kept features"]:
    """Logits, or what they are made of, that ``logits_to_keep`` asks for: the last, all for 0, or the chosen ones."""
    return of_tokens[:, slice(-kept, None) if isinstance(kept, int) else kept]


def build_attention_mask(
    tokens: Int[Tensor, "batch new"],
    attention_mask: Tensor | None,
    cache: PositionCache | None,
    sequence_ids: Tensor | None,
    dtype: torch.dtype,
) -> Float[Tensor, "#batch 1 new key"] | Int[Tensor, "batch key"]:
    """What is added to the scores; a mask of (batch, 1, new, key) is taken as it is.

    Where no token is hidden but those behind, one of ones: with any, `transformers` looks for no packed texts in the
    IDs, and attention may skip the half that is behind in place of adding to it.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        return attention_mask
    new, past = tokens.shape[1], 0 if cache is None else cache.num_read
    inside = tokens.new_ones(1, past + new, dtype=torch.bool)
    if sequence_ids is not None:
        if past:
            raise SettingError("packed texts cannot be gone on with; leave out sequence_ids, or past_key_values")
        inside = sequence_ids >= 0
    elif attention_mask is not None:
        if attention_mask.shape[1] != past + new:
            raise SettingError(
                f"attention_mask covers {attention_mask.shape[1]} tokens, and there are {past + new}; "
                f"give one number for each, those in the cache included"
            )
        inside = attention_mask.bool()
    # A step that is compiled always has the same form.
    fixed = torch.compiler.is_compiling() or (cache is not None and cache.is_compileable)
    if sequence_ids is None and not fixed and (attention_mask is None or bool(inside.all())):
        return tokens.new_ones(len(tokens), past + new)
    if cache is not None and (room := cache.get_max_length() if cache.layers else -1) > past + new:
        inside = torch.nn.functional.pad(inside, (0, room - past - new))
    return causal_mask(inside, new=new, past=past, sequence_ids=sequence_ids, dtype=dtype)


def mask_before_labels(
    labels: Int[Tensor, "batch seq"], sequence_ids: Int[Tensor, "batch seq"] | None
) -> Bool[Tensor, "batch seq"]:
    """The tokens before the first that is scored, of each text."""
    scored = labels != UNSCORED
    # Nothing foretells a text's first token, labelled or not.
    scored[:, 0] = False
    if sequence_ids is None:
        return scored.cumsum(dim=1) == 0
    starts = torch.ones_like(scored)
    starts[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    scored &= ~starts
    so_far = scored.cumsum(dim=1)
    return so_far == torch.where(starts, so_far, 0).cummax(dim=1).values
