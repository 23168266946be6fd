"""Attention masks, prompt masks and position IDs for a model call."""

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.hf.dataset_columns import UNSCORED
from lengthwise.hf.position_cache import PositionCache


def causal_mask(
    is_token: Bool[Tensor, "batch key"],
    *,
    sequence_ids: Int[Tensor, "batch key"] | None = None,
    num_cached: int = 0,
    num_queries: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "batch 1 query key"]:
    """Return a mask to add to attention scores, built from token indexes and never from position IDs.

    A query attends to itself and to every earlier token (``is_token`` is False at padding) of its sequence. The first
    ``num_cached`` keys are in the cache. The next ``num_queries`` keys (default: all other keys) are also queries.
    """
    num_keys = is_token.shape[1]
    query_end = num_keys if num_queries is None else num_cached + num_queries
    is_earlier = torch.ones(query_end - num_cached, num_keys, dtype=torch.bool, device=is_token.device).tril(num_cached)
    visible = is_token[:, None, :] & is_earlier
    if sequence_ids is not None:
        visible &= sequence_ids[:, num_cached:query_end, None] == sequence_ids[:, None, :]
    # Padding attends to itself, because a softmax without keys is NaN.
    visible.diagonal(num_cached, 1, 2).fill_(True)
    return additive_mask(visible[:, None], dtype)


def additive_mask(visible: Bool[Tensor, "rows 1 query key"], dtype: torch.dtype) -> Float[Tensor, "rows 1 query key"]:
    """Return a mask with 0 at visible keys, and with the most negative number of the dtype elsewhere."""
    # The softmax of a row of minus infinities would be NaN.
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, torch.finfo(dtype).min)


def build_attention_mask(
    tokens: Int[Tensor, "batch new"],
    attention_mask: Tensor | None,
    cache: PositionCache | None,
    sequence_ids: Tensor | None,
    dtype: torch.dtype,
) -> Float[Tensor, "#batch 1 new key"] | Int[Tensor, "batch key"]:
    """Return the attention mask of a model call: a 4-D ``attention_mask`` unchanged, and otherwise an additive mask.

    If only later tokens are hidden, the result is a mask of ones instead. With a mask of ones, `transformers` does not
    search the IDs for packed texts. Attention can then skip later keys without a mask of n * n numbers in memory.
    """
    if attention_mask is not None and attention_mask.ndim == 4:
        return attention_mask
    num_queries, num_cached = tokens.shape[1], 0 if cache is None else cache.num_tokens
    num_keys = num_cached + num_queries
    is_token = tokens.new_ones(1, num_keys, dtype=torch.bool)
    if sequence_ids is not None:
        if num_cached:
            raise SettingError("packed texts cannot be continued; leave out sequence_ids, or past_key_values")
        is_token = sequence_ids >= 0
    elif attention_mask is not None:
        if attention_mask.shape[1] != num_keys:
            raise SettingError(
                f"attention_mask has {attention_mask.shape[1]} columns, but the call and its cache have {num_keys} "
                "tokens; pass one column per token"
            )
        is_token = attention_mask.bool()
    # A compiled step needs a mask of constant shape.
    is_compiled = torch.compiler.is_compiling() or (cache is not None and cache.is_compileable)
    if sequence_ids is None and not is_compiled and (attention_mask is None or bool(is_token.all())):
        return tokens.new_ones(len(tokens), num_keys)
    if cache is not None and (max_length := cache.get_max_length() if cache.layers else -1) > num_keys:
        is_token = torch.nn.functional.pad(is_token, (0, max_length - num_keys))
    return causal_mask(is_token, num_queries=num_queries, num_cached=num_cached, sequence_ids=sequence_ids, dtype=dtype)


def build_prompt_mask(
    tokens: Int[Tensor, "batch new"],
    attention_mask: Tensor | None,
    cache: PositionCache | None,
    labels: Tensor | None,
    prompt_mask: Tensor | None,
    sequence_ids: Tensor | None = None,
) -> Bool[Tensor, "batch new"]:
    """Return a mask that is True at the prompt tokens of a call.

    If ``prompt_mask`` is given, it marks the prompt tokens. Otherwise, if ``labels`` are given, the prompt of each text
    contains the tokens before its first label. If neither is given, all tokens are prompt tokens if the cache is empty,
    and no token is a prompt token if the cache contains tokens. Padding tokens are never prompt tokens.
    """
    if prompt_mask is not None:
        is_prompt = prompt_mask.bool()
    elif labels is not None:
        is_prompt = mask_before_labels(labels, sequence_ids)
    else:
        is_prompt = torch.full_like(tokens, cache is None or not cache.has_tokens, dtype=torch.bool)
    if sequence_ids is not None:
        return is_prompt & (sequence_ids >= 0)
    if attention_mask is not None and attention_mask.ndim == 2:
        return is_prompt & attention_mask[:, -tokens.shape[1] :].bool()
    return is_prompt


def mask_before_labels(
    labels: Int[Tensor, "batch seq"], sequence_ids: Int[Tensor, "batch seq"] | None
) -> Bool[Tensor, "batch seq"]:
    """Return a mask that is True before the first label of each text; a label at its first token is ignored."""
    has_label = labels != UNSCORED
    # The first token of a text has no prediction.
    has_label[:, 0] = False
    if sequence_ids is None:
        return has_label.cumsum(dim=1) == 0
    is_text_start = torch.ones_like(has_label)
    is_text_start[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    has_label &= ~is_text_start
    label_count = has_label.cumsum(dim=1)
    return label_count == torch.where(is_text_start, label_count, 0).cummax(dim=1).values


def expand_ids(position_ids: Shaped[Tensor, "*level rows ids"], batch_size: int) -> Shaped[Tensor, "*level batch ids"]:
    """Expand one row of IDs to the batch, and convert integers to int64; real-valued IDs keep their type."""
    num_rows = position_ids.shape[-2] if position_ids.dim() > 1 else 0
    if num_rows not in (1, batch_size):
        raise SettingError(
            f"position_ids have the shape {tuple(position_ids.shape)} for a batch of {batch_size}; pass one row "
            "of IDs per sequence, or one row for all sequences"
        )
    ids = position_ids if position_ids.is_floating_point() else position_ids.long()
    return ids.expand(*position_ids.shape[:-2], batch_size, -1)


def count_ids(tokens: Int[Tensor, "batch new"], attention_mask: Tensor | None) -> Int[Tensor, "batch new"]:
    """Return consecutive IDs from 0 at the first token of each sequence, as in `transformers`."""
    if attention_mask is not None and attention_mask.ndim != 2:
        raise SettingError("a 4-D attention_mask does not mark the first token of a sequence; pass position_ids too")
    is_token = torch.ones_like(tokens) if attention_mask is None else attention_mask
    return (is_token.long().cumsum(dim=1) - 1).clamp(min=0)


def select_logits(
    logits: Float[Tensor, "batch new features"], logits_to_keep: int | Tensor
) -> Float[Tensor, "batch kept features"]:
    """Select the last ``logits_to_keep`` tokens (0 keeps all), or the tokens at these indexes."""
    return logits[:, slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep]
