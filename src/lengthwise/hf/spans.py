"""From marked characters of a text to one coupling group per token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import FeatureError
from lengthwise.hf.integers import TOO_LARGE, integers

TRIPLES, PAIRS = "[start, end, group] each, in characters", "[start, end] of each token, as the tokenizer gives them"


def groups_of_spans(spans: Sequence[Any], offsets: Sequence[Any], *, truncated: bool = False) -> list[int]:
    """Return the group of each token, from spans of characters and the characters of each token.

    ``spans`` holds ``[start, end, group]``, with ``end`` behind the last character and groups from 0 on; ``offsets``
    holds ``[start, end]`` of each token, as ``offset_mapping`` of a fast tokenizer. A token has the group of the span
    that it shares a character with. A token that shares none, special tokens included, counts on: one more than the
    token before it, 0 at the start; without spans that is the token index. No group depends on what comes later, so
    that a prompt has the same ones without its response. ``truncated`` leaves out what spans mark before the first
    token or after the last one. Raises ``FeatureError`` for a token that two groups share, for a span that no token
    shares a character with, and for one that ends after the last token.
    """
    marked = integers("spans", spans, width=3, holds=TRIPLES)
    start, end = integers("offset_mapping", offsets, width=2, holds=PAIRS).T
    first, last, group = marked.T
    _check(first, last, group)
    _check_offsets(start, end)
    # A special token has no character, wherever it says it stands.
    shared = (start[:, None] < last) & (end[:, None] > first) & (end > start)[:, None]
    covered = shared.any(axis=1)
    lowest = np.where(shared, group, TOO_LARGE).min(axis=1, initial=TOO_LARGE)
    highest = np.where(shared, group, -1).max(axis=1, initial=-1)
    if (split := covered & (lowest < highest)).any():
        token = int(split.argmax())
        raise FeatureError(
            f"token {token} (characters {start[token]} to {end[token]}) belongs to the groups {lowest[token]} and "
            f"{highest[token]}; move the spans, or part the text there so that no token reaches over both"
        )
    behind = end.max(initial=0)
    if not truncated and (beyond := last > behind).any():
        span = int(beyond.argmax())
        raise FeatureError(
            f"the span {first[span]} to {last[span]} (group {group[span]}) goes beyond the last token, which ends at "
            f"{behind}; mark characters of the text, or, where it was cut, make the column coupling with "
            "groups_of_spans(..., truncated=True)"
        )
    inside = (first < behind) & (last > start[end > start].min(initial=TOO_LARGE))
    missed = ~shared.any(axis=0) & (inside | (not truncated))
    if missed.any():
        span = int(missed.argmax())
        raise FeatureError(
            f"no token has a character of the span {first[span]} to {last[span]} (group {group[span]}); "
            "mark characters that the tokenizer keeps"
        )
    return _counting_on(highest, covered).tolist()


def _check_offsets(start: Int[np.ndarray, " seq"], end: Int[np.ndarray, " seq"]) -> None:
    if (wrong := (start < 0) | (end < start)).any():
        token = int(wrong.argmax())
        raise FeatureError(
            f"offset_mapping has {[int(start[token]), int(end[token])]} for token {token}; give [start, end] with "
            "0 <= start <= end"
        )
    tokens = np.flatnonzero(end > start)
    if (falls := np.diff(start[tokens]) < 0).any():
        place = int(falls.argmax())
        before, token = tokens[place : place + 2]
        raise FeatureError(
            f"offset_mapping falls from {start[before]} to {start[token]} at token {token}, as where two texts were "
            "tokenized together; tokenize prompt and response as one text"
        )


def _check(first: Int[np.ndarray, " span"], last: Int[np.ndarray, " span"], group: Int[np.ndarray, " span"]) -> None:
    wrong = (first < 0) | (last <= first) | (group < 0) | (group >= TOO_LARGE)
    if wrong.any():
        span = int(wrong.argmax())
        raise FeatureError(
            f"span {[int(first[span]), int(last[span]), int(group[span])]} is none; give [start, end, group] with "
            "start below end, and groups from 0 on"
        )


def _counting_on(groups: Int[np.ndarray, " seq"], covered: Bool[np.ndarray, " seq"]) -> Int[np.ndarray, " seq"]:
    index = np.arange(len(groups))
    before = np.maximum.accumulate(np.where(covered, index, -1))
    return np.where(before < 0, index, groups[before] + index - before)
