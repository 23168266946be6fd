"""Columns of a tokenized data set as arrays, and coupling groups from spans of characters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import FeatureError

# Label that `transformers` leaves out of the loss.
UNSCORED = -100
# Columns that are 1 at answer tokens; the second is TRL's for chats.
ANSWER_MASKS = ("completion_mask", "assistant_masks")
# Groups stay below this number, so that adding gaps cannot overflow.
GROUP_LIMIT = 1 << 30
SPANS, OFFSETS = "[start, end, group] in characters", "[start, end] per token, as returned by the tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedExample:
    """One example without padding: tokens, labels, answer mask, and the column that the position scheme needs."""

    tokens: Int[np.ndarray, " seq"]
    labels: Int[np.ndarray, " seq"]
    is_answer: Bool[np.ndarray, " seq"]
    scheme_column: Int[np.ndarray, " seq"] | None


def read_example(feature: Mapping[str, Any], needs: str | None) -> TokenizedExample:
    """Read the columns of an example; raise ``FeatureError`` for invalid ones. None counts as a missing column."""
    if feature.get("input_ids") is None:
        raise FeatureError(
            f"input_ids are missing (columns: {', '.join(map(str, feature)) or 'none'}); tokenize the data set first, "
            "and set remove_unused_columns=False"
        )
    tokens = integers("input_ids", feature["input_ids"])
    if not len(tokens):
        raise FeatureError("input_ids is empty; remove the example")
    attended = _per_token(feature, "attention_mask", len(tokens))
    if attended is not None and not attended.all():
        raise FeatureError("attention_mask hides tokens, so the example is padded; tokenize with padding=False")
    labels = _per_token(feature, "labels", len(tokens))
    return TokenizedExample(
        tokens=tokens,
        labels=tokens if labels is None else labels,
        is_answer=_answers(feature, labels, len(tokens)),
        scheme_column=None if needs is None else _scheme_column(feature, needs, len(tokens)),
    )


def prompt_length(feature: Mapping[str, Any]) -> int:
    """Return the number of tokens before the first answer; all tokens if no column marks answers."""
    example = read_example(feature, None)
    has_answers = any(feature.get(name) is not None for name in ("labels", "prompt_length", *ANSWER_MASKS))
    return int(example.is_answer.argmax()) if has_answers and example.is_answer.any() else len(example.tokens)


def integers(
    name: str, values: Any, *, width: int | None = None, content: str = "integers"
) -> Int[np.ndarray, "*shape"]:
    """Return a list, array or tensor as int64 of shape (seq,) or (seq, width); raise ``FeatureError`` otherwise."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        array = np.array(None)
    inner_shape = () if width is None else (width,)
    shape = array.shape[1:] if array.size else inner_shape
    is_integer = array.dtype.kind in "iub" or array.size == 0
    if array.ndim == 0 or not is_integer or shape != inner_shape:
        text = " ".join(repr(values).split())
        text = text if len(text) <= 40 else f"{text[:40]}..."
        raise FeatureError(f"invalid {name} {text}; use a list of {content}")
    return array.astype(np.int64).reshape(len(array), *shape)


def groups_of_spans(spans: Sequence[Any], offsets: Sequence[Any], *, truncated: bool = False) -> list[int]:
    """Return the coupling group of each token, from spans of characters and the offsets of the tokens.

    ``spans`` holds ``[start, end, group]`` with an exclusive ``end`` and groups from 0. ``offsets`` holds
    ``[start, end]`` per token, as in ``offset_mapping`` of a fast tokenizer. A token has the group of the span with
    which it shares a character. Any other token, special tokens included, has the group of the previous token plus
    one (0 at the start). Groups never depend on later tokens, so a prompt has the same groups with and without its
    response. ``truncated`` ignores spans before the first or after the last token. Raises ``FeatureError`` for a token
    with two groups, a span without a token, and a span that ends after the last token.
    """
    first, last, group = integers("spans", spans, width=3, content=SPANS).T
    start, end = integers("offset_mapping", offsets, width=2, content=OFFSETS).T
    _check_spans(first, last, group)
    _check_offsets(start, end)
    # Special tokens have no characters, whatever their offsets are.
    shared = (start[:, None] < last) & (end[:, None] > first) & (end > start)[:, None]
    covered = shared.any(axis=1)
    lowest = np.where(shared, group, GROUP_LIMIT).min(axis=1, initial=GROUP_LIMIT)
    highest = np.where(shared, group, -1).max(axis=1, initial=-1)
    if (conflict := covered & (lowest < highest)).any():
        token = int(conflict.argmax())
        raise FeatureError(
            f"token {token} (characters {start[token]} to {end[token]}) belongs to the groups {lowest[token]} and "
            f"{highest[token]}; move the spans, or separate the text there so that no token covers both"
        )
    text_end = end.max(initial=0)
    if not truncated and (beyond := last > text_end).any():
        span = int(beyond.argmax())
        raise FeatureError(
            f"the span {first[span]} to {last[span]} (group {group[span]}) ends after the last token, which ends at "
            f"{text_end}; fix the span, or compute the column coupling of a truncated text with "
            "groups_of_spans(..., truncated=True)"
        )
    inside = (first < text_end) & (last > start[end > start].min(initial=GROUP_LIMIT))
    missed = ~shared.any(axis=0) & (inside | (not truncated))
    if missed.any():
        span = int(missed.argmax())
        raise FeatureError(
            f"no token contains a character of the span {first[span]} to {last[span]} (group {group[span]}); "
            "mark characters that the tokenizer keeps"
        )
    index = np.arange(len(highest))
    before = np.maximum.accumulate(np.where(covered, index, -1))
    return np.where(before < 0, index, highest[before] + index - before).tolist()


def _check_offsets(start: Int[np.ndarray, " seq"], end: Int[np.ndarray, " seq"]) -> None:
    if (invalid := (start < 0) | (end < start)).any():
        token = int(invalid.argmax())
        raise FeatureError(
            f"invalid offset_mapping {[int(start[token]), int(end[token])]} of token {token}; use [start, end] with "
            "0 <= start <= end"
        )
    tokens = np.flatnonzero(end > start)
    if (decreases := np.diff(start[tokens]) < 0).any():
        place = int(decreases.argmax())
        before, token = tokens[place : place + 2]
        raise FeatureError(
            f"offset_mapping decreases from {start[before]} to {start[token]} at token {token}, as for two texts "
            "tokenized together; tokenize prompt and response as one text"
        )


def _check_spans(
    first: Int[np.ndarray, " span"], last: Int[np.ndarray, " span"], group: Int[np.ndarray, " span"]
) -> None:
    invalid = (first < 0) | (last <= first) | (group < 0) | (group >= GROUP_LIMIT)
    if invalid.any():
        span = int(invalid.argmax())
        raise FeatureError(
            f"invalid span {[int(first[span]), int(last[span]), int(group[span])]}; use [start, end, group] with "
            f"0 <= start < end and 0 <= group < {GROUP_LIMIT}"
        )


def _per_token(feature: Mapping[str, Any], name: str, seq: int) -> Int[np.ndarray, " seq"] | None:
    if feature.get(name) is None:
        return None
    values = integers(name, feature[name])
    if len(values) != seq:
        raise FeatureError(f"{name} has {len(values)} values for {seq} tokens; give one value per token")
    return values


def _answers(feature: Mapping[str, Any], labels: Int[np.ndarray, " seq"] | None, seq: int) -> Bool[np.ndarray, " seq"]:
    # No token predicts the first one.
    answers = np.arange(seq) > 0
    if labels is not None:
        answers &= labels != UNSCORED
    for name in ANSWER_MASKS:
        mask = _per_token(feature, name, seq)
        if mask is not None:
            answers &= mask != 0
    if (prompt := feature.get("prompt_length")) is not None:
        length = integers("prompt_length", [prompt], content="one integer").item()
        if not 0 <= length <= seq:
            raise FeatureError(f"prompt_length is {length}, but the example has {seq} tokens; use 0 to {seq}")
        answers &= np.arange(seq) >= length
    return answers


def _scheme_column(feature: Mapping[str, Any], needs: str, seq: int) -> Int[np.ndarray, " seq"]:
    values = _per_token(feature, needs, seq)
    if values is None and needs == "coupling" and feature.get("spans") is not None:
        offsets = feature.get("offset_mapping")
        if offsets is None:
            raise FeatureError("spans need an offset_mapping; tokenize with return_offsets_mapping=True")
        if len(offsets) != seq:
            raise FeatureError(f"offset_mapping has {len(offsets)} pairs for {seq} tokens; give one value per token")
        values = np.array(groups_of_spans(feature["spans"], offsets))
    if values is None:
        alternative = ", or spans with an offset_mapping" if needs == "coupling" else ""
        raise FeatureError(
            f"the column {needs} is missing; add it with one integer per token{alternative}, keep it with "
            "remove_unused_columns=False, or use a scheme that needs no column"
        )
    if (outside := (values < 0) | (values >= GROUP_LIMIT)).any():
        raise FeatureError(f"invalid {needs} {values[outside.argmax()]}; use integers from 0 to {GROUP_LIMIT - 1}")
    return values
