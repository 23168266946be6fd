"""Inputs of a model call: checks, attention masks, prompt masks and position IDs."""

import warnings
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from lengthwise.core.errors import FrozenHeadWarning, SettingError
from lengthwise.hf.position_cache import PositionCache

# Label of tokens that `transformers` excludes from the loss.
UNSCORED = -100


def check_no_embeddings(inputs_embeds: Tensor | None) -> None:
    """Reject ``inputs_embeds``, except None, which adapters pass."""
    if inputs_embeds is not None:
        raise SettingError("inputs_embeds is not supported, because position IDs depend on tokens; pass input_ids")


def check_is_tensor(position_ids: Any) -> None:
    """Reject position IDs in a list, which a pipeline would pass on."""
    if position_ids is not None and not isinstance(position_ids, Tensor):
        kind = type(position_ids).__name__
        raise SettingError(f"position_ids have the type {kind}; use a tensor, such as torch.tensor([[0, 1, 1]])")


def check_id_range(position_ids: Shaped[Tensor, "*ids"], num_position_ids: int) -> None:
    """Reject IDs outside 0 to ``num_position_ids`` - 1; compiled calls skip the check."""
    if torch.compiler.is_compiling() or not position_ids.numel():
        return
    smallest, largest = (int(bound) for bound in position_ids.aminmax())
    if smallest < 0 or largest >= num_position_ids:
        raise SettingError(
            f"position_ids range from {smallest} to {largest}, but only 0 to {num_position_ids - 1} are allowed; "
            "change the IDs, or wrap the model with a larger num_position_ids"
        )


def packed_texts(
    position_ids: Shaped[Tensor, "batch seq"], boundaries: dict[str, Any]
) -> Int[Tensor, "batch seq"] | None:
    """Return the number of each token's text in rows packed by a data collator of `transformers`; None without packs.

    ``boundaries`` has ``seq_idx`` (batch, seq) or ``cu_seq_lens_q`` (first index of each text of one row, and the
    length of the row). Without both, a row is packed if its IDs count up by one from its first ID, several times.
    """
    rows, seq = position_ids.shape
    if (numbers := boundaries.get("seq_idx")) is not None:
        return numbers.to(position_ids.device).long().expand(rows, seq)
    if (ends := boundaries.get("cu_seq_lens_q")) is not None:
        index = torch.arange(rows * seq, device=position_ids.device)
        return torch.bucketize(index, ends[1:].to(index), right=True).view(rows, seq)
    is_start = position_ids == position_ids[:, :1]
    counts_up = position_ids.diff(dim=1) == 1
    is_packed = (counts_up | is_start[:, 1:]).all(dim=1, keepdim=True) & counts_up.any(dim=1, keepdim=True)
    numbers = (is_start & is_packed).cumsum(dim=1)
    # A compiled call cannot depend on the IDs.
    return numbers if torch.compiler.is_compiling() or bool((numbers > 1).any()) else None


def check_not_packed(position_ids: Shaped[Tensor, "batch seq"]) -> None:
    """Reject IDs without a mask that restart like those of packed texts; compiled calls skip the check."""
    if not torch.compiler.is_compiling() and packed_texts(position_ids, {}) is not None:
        raise SettingError(
            "position_ids count up several times from the same ID, as in packed texts, and there is no attention_mask; "
            "pack texts with PositionCollator(pack_to=...), or pass an attention_mask of ones if this is one text"
        )


def check_has_position_head(num_heads: int, position_labels: Tensor | None) -> None:
    """Reject ``position_labels`` for a model without a position head."""
    if position_labels is not None and not num_heads:
        raise SettingError(
            "position_labels need a position head, but this model has no head; wrap the model with a head, or use a "
            "scheme that predicts no IDs, such as Coupled"
        )


def check_left_padding(attention_mask: Tensor | None) -> None:
    """Reject prompts with padding on the right, because ``generate`` would continue the padding."""
    if attention_mask is not None and attention_mask.ndim == 2 and not bool(attention_mask[:, -1].all()):
        raise SettingError(
            "a prompt ends with padding, so generate would continue the padding; pad on the left "
            "(tokenizer.padding_side = 'left', or PositionCollator.prompts)"
        )


def check_labels(
    head: nn.Module | None, num_heads: int, labels: Tensor | None, position_labels: Tensor | None, *, is_training: bool
) -> None:
    """Reject labels that do not fit the model, and training steps that train only one of the tokens and the IDs.

    Warns if no weight of the position head is trainable, for example because the model has adapters.
    """
    check_has_position_head(num_heads, position_labels)
    if not is_training:
        return
    # A sharded head may have no weights in this process.
    weights = [] if head is None else list(head.parameters())
    is_trainable = any(weight.requires_grad for weight in weights)
    if position_labels is None and labels is not None and is_trainable and torch.is_grad_enabled():
        raise SettingError(
            "training with labels but without position_labels does not train the position head; use a scheme that "
            "predicts IDs (Predicted), wrap the model with head=None, or freeze the head"
        )
    if position_labels is not None and labels is None:
        raise SettingError(
            "position_labels need labels; a trainer that removes the labels to compute its own loss is not supported, "
            "so set label_smoothing_factor to 0 and do not pass compute_loss_func"
        )
    if position_labels is not None and weights and not is_trainable and torch.is_grad_enabled():
        warnings.warn(
            "the position head is frozen, so it learns nothing from position_labels; to train it, add "
            "modules_to_save=['position_head', 'segment'] to LoraConfig",
            FrozenHeadWarning,
            stacklevel=3,
        )


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
        visible = visible & (sequence_ids[:, num_cached:query_end, None] == sequence_ids[:, None, :])
    # Padding attends to itself, because a softmax without keys is NaN. ONNX has no views that are changed in place.
    visible = visible | is_earlier.triu(num_cached)
    return additive_mask(visible[:, None], dtype)


def additive_mask(visible: Bool[Tensor, "rows 1 query key"], dtype: torch.dtype) -> Float[Tensor, "rows 1 query key"]:
    """Return a mask with 0 at visible keys, and with the most negative number of the dtype elsewhere."""
    # The softmax of a row of minus infinities would be NaN.
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


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
    is_text_start = torch.nn.functional.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0), value=True)
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


def select_logits(
    logits: Float[Tensor, "batch new features"], logits_to_keep: int | Tensor
) -> Float[Tensor, "batch kept features"]:
    """Select the last ``logits_to_keep`` tokens (0 keeps all), or the tokens at these indexes."""
    return logits[:, slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep]
