"""Conversion of data set columns to arrays, and of character spans to coupling groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import FeatureError

# Label of tokens that `transformers` excludes from the loss.
UNSCORED = -100
# Columns with the value 1 at answer tokens. TRL creates ``assistant_masks`` for chats.
ANSWER_MASKS = ("completion_mask", "assistant_masks")
# Exclusive upper bound of the groups, so that adding gaps cannot overflow.
GROUP_LIMIT = 1 << 30
SPAN_FORMAT, OFFSET_FORMAT = "[start, end, group] in characters", "[start, end] per token, as returned by the tokenizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedExample:
    """Example without padding: tokens, labels, answer mask, and the column that the position scheme needs."""

    tokens: Int[np.ndarray, " seq"]
    labels: Int[np.ndarray, " seq"]
    is_answer: Bool[np.ndarray, " seq"]
    scheme_column: Int[np.ndarray, " seq"] | None


def read_example(feature: Mapping[str, Any], scheme_column: str | None) -> TokenizedExample:
    """Read the columns of an example (None: missing); raise ``FeatureError`` for an invalid column."""
    if feature.get("input_ids") is None:
        raise FeatureError(
            f"input_ids are missing (columns: {', '.join(map(str, feature)) or 'none'}); tokenize the data set first, "
            "and set remove_unused_columns=False"
        )
    tokens = to_integers("input_ids", feature["input_ids"])
    if not len(tokens):
        raise FeatureError("input_ids is empty; remove the example")
    mask = _read_token_values(feature, "attention_mask", len(tokens))
    if mask is not None and not mask.all():
        raise FeatureError("attention_mask hides tokens, so the example is padded; tokenize with padding=False")
    labels = _read_token_values(feature, "labels", len(tokens))
    return TokenizedExample(
        tokens=tokens,
        labels=tokens if labels is None else labels,
        is_answer=_build_answer_mask(feature, labels, len(tokens)),
        scheme_column=None if scheme_column is None else _read_scheme_column(feature, scheme_column, len(tokens)),
    )


def count_prompt_tokens(feature: Mapping[str, Any]) -> int:
    """Return the number of tokens before the first answer token, or of all tokens if no column marks answer tokens."""
    example = read_example(feature, None)
    has_answers = any(feature.get(name) is not None for name in ("labels", "prompt_length", *ANSWER_MASKS))
    return int(example.is_answer.argmax()) if has_answers and example.is_answer.any() else len(example.tokens)


def to_integers(
    name: str, values: Any, *, width: int | None = None, content: str = "integers"
) -> Int[np.ndarray, "*shape"]:
    """Convert a list, array or tensor to an int64 array of shape (seq,) or (seq, width), or raise ``FeatureError``.

    ``name`` and ``content`` describe the column and its valid values in the error message.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError):
        array = np.array(None)
    item_shape = () if width is None else (width,)
    shape = array.shape[1:] if array.size else item_shape
    is_integer = array.dtype.kind in "iub" or array.size == 0
    if array.ndim == 0 or not is_integer or shape != item_shape:
        text = " ".join(repr(values).split())
        text = text if len(text) <= 40 else f"{text[:40]}..."
        raise FeatureError(f"invalid {name} {text}; use a list of {content}")
    return array.astype(np.int64).reshape(len(array), *shape)


def groups_of_spans(spans: Sequence[Any], offsets: Sequence[Any], *, truncated: bool = False) -> list[int]:
    """Return the coupling group of each token, from character spans and the offsets of the tokens.

    Each span is ``[start, end, group]`` with an exclusive ``end`` and a group of 0 or more. ``offsets`` contains
    ``[start, end]`` per token, as in ``offset_mapping`` of a fast tokenizer. A token gets the group of the span that
    it overlaps. Any other token, including special tokens, gets the group of the previous token plus one (0 at the
    start). Groups never depend on later tokens, so a prompt has the same groups with and without its response.
    ``truncated=True`` ignores spans before the first token or after the last token. Raises ``FeatureError`` for a
    token that overlaps spans of two groups, a span without a token, and a span that ends after the last token.
    """
    span_start, span_end, span_group = to_integers("spans", spans, width=3, content=SPAN_FORMAT).T
    token_start, token_end = to_integers("offset_mapping", offsets, width=2, content=OFFSET_FORMAT).T
    _check_spans(span_start, span_end, span_group)
    _check_offsets(token_start, token_end)
    # A special token contains no characters, so it overlaps no span.
    has_text = token_end > token_start
    overlaps = (token_start[:, None] < span_end) & (token_end[:, None] > span_start) & has_text[:, None]
    has_span = overlaps.any(axis=1)
    lowest = np.where(overlaps, span_group, GROUP_LIMIT).min(axis=1, initial=GROUP_LIMIT)
    highest = np.where(overlaps, span_group, -1).max(axis=1, initial=-1)
    if (has_conflict := has_span & (lowest < highest)).any():
        token = int(has_conflict.argmax())
        raise FeatureError(
            f"token {token} (characters {token_start[token]} to {token_end[token]}) belongs to the groups "
            f"{lowest[token]} and {highest[token]}; change the spans, or insert a space between them in the text"
        )
    text_end = token_end.max(initial=0)
    if not truncated and (is_beyond := span_end > text_end).any():
        span = int(is_beyond.argmax())
        raise FeatureError(
            f"the span {span_start[span]} to {span_end[span]} (group {span_group[span]}) ends after the last token, "
            f"which ends at {text_end}; fix the span, or compute the column coupling of a truncated text with "
            "groups_of_spans(..., truncated=True)"
        )
    is_inside = (span_start < text_end) & (span_end > token_start[has_text].min(initial=GROUP_LIMIT))
    is_missed = ~overlaps.any(axis=0) & (is_inside | (not truncated))
    if is_missed.any():
        span = int(is_missed.argmax())
        raise FeatureError(
            f"no token contains a character of the span {span_start[span]} to {span_end[span]} (group "
            f"{span_group[span]}); move the span to characters that the tokenizer keeps"
        )
    token_index = np.arange(len(highest))
    last_span = np.maximum.accumulate(np.where(has_span, token_index, -1))
    return np.where(last_span < 0, token_index, highest[last_span] + token_index - last_span).tolist()


def _check_offsets(token_start: Int[np.ndarray, " seq"], token_end: Int[np.ndarray, " seq"]) -> None:
    if (is_invalid := (token_start < 0) | (token_end < token_start)).any():
        token = int(is_invalid.argmax())
        raise FeatureError(
            f"invalid offset_mapping {[int(token_start[token]), int(token_end[token])]} of token {token}; use "
            "[start, end] with 0 <= start <= end"
        )
    tokens = np.flatnonzero(token_end > token_start)
    if (is_decrease := np.diff(token_start[tokens]) < 0).any():
        decrease_index = int(is_decrease.argmax())
        previous, token = tokens[decrease_index : decrease_index + 2]
        raise FeatureError(
            f"offset_mapping decreases from {token_start[previous]} to {token_start[token]} at token {token}, which "
            "happens for a pair of texts; tokenize prompt and response as one text"
        )


def _check_spans(
    span_start: Int[np.ndarray, " span"], span_end: Int[np.ndarray, " span"], span_group: Int[np.ndarray, " span"]
) -> None:
    is_invalid = (span_start < 0) | (span_end <= span_start) | (span_group < 0) | (span_group >= GROUP_LIMIT)
    if is_invalid.any():
        span = int(is_invalid.argmax())
        raise FeatureError(
            f"invalid span {[int(span_start[span]), int(span_end[span]), int(span_group[span])]}; use [start, end, "
            f"group] with 0 <= start < end and 0 <= group < {GROUP_LIMIT}"
        )


def _read_token_values(feature: Mapping[str, Any], name: str, seq: int) -> Int[np.ndarray, " seq"] | None:
    if feature.get(name) is None:
        return None
    token_values = to_integers(name, feature[name])
    if len(token_values) != seq:
        raise FeatureError(f"{name} has {len(token_values)} values for {seq} tokens; give one value per token")
    return token_values


def _build_answer_mask(
    feature: Mapping[str, Any], labels: Int[np.ndarray, " seq"] | None, seq: int
) -> Bool[np.ndarray, " seq"]:
    # The first token has no prediction, so it cannot be scored.
    is_answer = np.arange(seq) > 0
    if labels is not None:
        is_answer &= labels != UNSCORED
    for name in ANSWER_MASKS:
        mask = _read_token_values(feature, name, seq)
        if mask is not None:
            is_answer &= mask != 0
    if (prompt := feature.get("prompt_length")) is not None:
        length = to_integers("prompt_length", [prompt], content="one integer").item()
        if not 0 <= length <= seq:
            raise FeatureError(f"prompt_length is {length}, but the example has {seq} tokens; use 0 to {seq}")
        is_answer &= np.arange(seq) >= length
    return is_answer


def _read_scheme_column(feature: Mapping[str, Any], name: str, seq: int) -> Int[np.ndarray, " seq"]:
    column = _read_token_values(feature, name, seq)
    if column is None and name == "coupling" and feature.get("spans") is not None:
        offsets = feature.get("offset_mapping")
        if offsets is None:
            raise FeatureError("spans need an offset_mapping; tokenize with return_offsets_mapping=True")
        if len(offsets) != seq:
            raise FeatureError(f"offset_mapping has {len(offsets)} pairs for {seq} tokens; give one pair per token")
        column = np.array(groups_of_spans(feature["spans"], offsets))
    if column is None:
        alternative = ", or spans with an offset_mapping" if name == "coupling" else ""
        raise FeatureError(
            f"the column {name} is missing; add it with one integer per token{alternative}, keep it with "
            "remove_unused_columns=False, or use a scheme that needs no column"
        )
    if (is_invalid := (column < 0) | (column >= GROUP_LIMIT)).any():
        raise FeatureError(f"invalid {name} {column[is_invalid.argmax()]}; use integers from 0 to {GROUP_LIMIT - 1}")
    return column
