"""Columns of a tokenized data set, read row by row into arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import FeatureError
from lengthwise.hf.integers import TOO_LARGE, integers
from lengthwise.hf.spans import groups_of_spans

# What `transformers` leaves out of the loss.
UNSCORED = -100
# Columns that are 1 where a token is an answer; the second is TRL's for chats.
ANSWER_MASKS = ("completion_mask", "assistant_masks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One example without padding: ``labels`` are the tokens to be predicted, ``read`` is what the scheme needs."""

    tokens: Int[np.ndarray, " seq"]
    labels: Int[np.ndarray, " seq"]
    is_answer: Bool[np.ndarray, " seq"]
    read: Int[np.ndarray, " seq"] | None


def read_row(feature: Mapping[str, Any], needs: str | None) -> Row:
    """A row's columns; ``FeatureError`` says what is wrong with one. A column that is None counts as not there."""
    if feature.get("input_ids") is None:
        raise FeatureError(
            f"there are no input_ids (only {', '.join(map(str, feature)) or 'nothing'}); tokenize the data set first, "
            "and set remove_unused_columns=False"
        )
    tokens = integers("input_ids", feature["input_ids"])
    if not len(tokens):
        raise FeatureError("input_ids is empty; leave the row out")
    attended = _per_token(feature, "attention_mask", len(tokens))
    if attended is not None and not attended.all():
        raise FeatureError("attention_mask hides tokens: the row is padded already; tokenize with padding=False")
    labels = _per_token(feature, "labels", len(tokens))
    return Row(
        tokens=tokens,
        labels=tokens if labels is None else labels,
        is_answer=_answers(feature, labels, len(tokens)),
        read=None if needs is None else _needed(feature, needs, len(tokens)),
    )


def prompt_length(feature: Mapping[str, Any]) -> int:
    """Return how many tokens of a row stand before its first answer; all where no column marks answers."""
    row = read_row(feature, None)
    marked = any(feature.get(name) is not None for name in ("labels", "prompt_length", *ANSWER_MASKS))
    return int(row.is_answer.argmax()) if marked and row.is_answer.any() else len(row.tokens)


def _per_token(feature: Mapping[str, Any], name: str, seq: int) -> Int[np.ndarray, " seq"] | None:
    if feature.get(name) is None:
        return None
    numbers = integers(name, feature[name])
    if len(numbers) != seq:
        raise FeatureError(f"{name} has {len(numbers)} numbers; give {seq}, one for each token")
    return numbers


def _answers(feature: Mapping[str, Any], labels: Int[np.ndarray, " seq"] | None, seq: int) -> Bool[np.ndarray, " seq"]:
    """The tokens that every column calls answers, but for the first one: nothing predicts it."""
    answers = np.arange(seq) > 0
    if labels is not None:
        answers &= labels != UNSCORED
    for name in ANSWER_MASKS:
        mask = _per_token(feature, name, seq)
        if mask is not None:
            answers &= mask != 0
    if (prompt := feature.get("prompt_length")) is not None:
        length = integers("prompt_length", [prompt], holds="one whole number").item()
        if not 0 <= length <= seq:
            raise FeatureError(f"prompt_length is {length} and the row has {seq} tokens; give 0 to {seq}")
        answers &= np.arange(seq) >= length
    return answers


def _needed(feature: Mapping[str, Any], needs: str, seq: int) -> Int[np.ndarray, " seq"]:
    numbers = _per_token(feature, needs, seq)
    if numbers is None and needs == "coupling" and feature.get("spans") is not None:
        if feature.get("offset_mapping") is None:
            raise FeatureError("there are spans and no offset_mapping; tokenize with return_offsets_mapping=True")
        offsets = feature["offset_mapping"]
        if len(offsets) != seq:
            raise FeatureError(f"offset_mapping has {len(offsets)} pairs; give {seq}, one for each token")
        numbers = np.array(groups_of_spans(feature["spans"], offsets))
    if numbers is None:
        instead = ", or spans with an offset_mapping" if needs == "coupling" else ""
        raise FeatureError(
            f"there is no {needs}; add a column with one number per token{instead}, keep it with "
            "remove_unused_columns=False, or take a scheme that needs none"
        )
    if (outside := (numbers < 0) | (numbers >= TOO_LARGE)).any():
        raise FeatureError(f"{needs} has {numbers[outside.argmax()]}; give whole numbers from 0 on, below {TOO_LARGE}")
    return numbers
