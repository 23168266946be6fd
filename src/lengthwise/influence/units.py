"""Units of far tokens, which a measure selects as a whole: single tokens, spans of equal size, words or sentences."""

import re
from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.influence.token_kinds import NUM_NEIGHBORS, starts_sentence

TOKEN = "token"
SPAN = re.compile(r"span:([1-9][0-9]{0,5})")
FarTokens = Int[np.ndarray, " far"]
Indices = Int[np.ndarray, " _"]


def check_unit(unit: str, far: int, k: int) -> None:
    """Raise ``SettingError`` if ``unit`` is not token, word, sentence or span:N, or if ``far`` has no k of them."""
    span = SPAN.fullmatch(unit)
    if span is None and unit not in (TOKEN, "word", "sentence"):
        raise SettingError(f"invalid unit '{unit}'; use token, word, sentence or span:N, such as span:8")
    number = far if span is None else -(-far // int(span[1]))
    if k > number:
        raise SettingError(
            f"k {k} exceeds the {number} far {name_units(unit, number)}; use a smaller k or unit, or a larger far"
        )


def name_units(unit: str, number: int) -> str:
    """Return the noun for a number of units, such as ``spans of 8 tokens`` or ``token``."""
    span, ending = SPAN.fullmatch(unit), "" if number == 1 else "s"
    return f"{unit}{ending}" if span is None else f"span{ending} of {span[1]} tokens"


def split_into_units(unit: str, tokens: FarTokens, token_text: Callable[[int], str]) -> list[Indices]:
    """Return the indices of the tokens of each unit, in text order; together, they are all tokens.

    Spans are counted from the near tokens, so only the first span can be shorter. A word starts at a token with a blank
    at its start, or after a token with a blank at its end; a sentence is a run of words.
    """
    far = len(tokens)
    if unit == TOKEN:
        starts = np.arange(1, far)
    elif span := SPAN.fullmatch(unit):
        starts = np.arange(far, 0, -int(span[1]))[:0:-1]
    else:
        texts = [token_text(int(token)) for token in tokens]
        words = [index for index in range(1, far) if texts[index][:1].isspace() or texts[index - 1][-1:].isspace()]
        if unit == "sentence":
            words = [index for index in words if starts_sentence("".join(texts[max(0, index - NUM_NEIGHBORS) : index]))]
        starts = np.array(words, dtype=np.int64)
    return np.split(np.arange(far), starts)
