"""What kind of token a target is, and how far back the tokens lie that it needs: tags from the text alone."""

import math
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Integer

from lengthwise.core.errors import SettingError

NGRAMS = (1, 2, 3)
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
BINS_PER_OCTAVE = 2

# Tokens on each side of the target that are searched for the rest of its word, and for the end of a sentence.
AROUND = 24
SENTENCE_ENDS = frozenset(".!?…。！？｡।॥۔؟")  # noqa: RUF001  (marks of several scripts)
APOSTROPHES = frozenset("'’")  # noqa: RUF001
QUOTES = frozenset("\"'`*_")

# A token is one of the first five, and for each length of n-gram one of the last three; the others come on top.
KINDS = (
    *("word_start", "continuation", "punctuation", "whitespace", "other"),
    *("newline", "digit", "name_like", "identifier", "partial_character"),
    *(f"{where}_{n}" for n in NGRAMS for where in ("repeated_near", "repeated_far", "new")),
)


def kinds(
    texts: Sequence[str], *, near: int, tokens: Integer[np.ndarray, " seq"] | None = None, after: Sequence[str] = ()
) -> list[str]:
    """The kinds of a target, in the order of ``KINDS``.

    ``texts`` are the tokens of its context and, last, the target, decoded one by one; ``near`` is how many of them are
    near. ``after`` are the next ones, which end its word. ``tokens`` tell apart what decodes alike; with them, texts of
    the last ``AROUND`` tokens and the target are enough. ``repeated_near_2`` ends a pair of tokens that the near part
    holds already, ``repeated_far_2`` one that the far part alone holds, ``new_2`` one that neither does; a pair across
    the border is a near one.
    """
    if tokens is None:
        numbers: dict[str, int] = {}
        tokens = np.array([numbers.setdefault(text, len(numbers)) for text in texts])
    text = texts[-1]
    found = {f"{_repeated(tokens, n, near)}_{n}" for n in NGRAMS}
    if text.splitlines() not in ([text], []):
        found.add("newline")
    # A token that is part of a character's bytes decodes to a replacement character, or to half a surrogate pair.
    if any(each == "\N{REPLACEMENT CHARACTER}" or "\ud800" <= each <= "\udfff" for each in text):
        found |= {"other", "partial_character"}
    elif any(_in_word(each) for each in text):
        found |= set(_word_kinds("".join(texts[-1 - AROUND : -1]), text, "".join(after[:AROUND])))
    elif text.isspace():
        found.add("whitespace")
    else:
        marks = text and all(each.isspace() or unicodedata.category(each)[0] in "PS" for each in text)
        found.add("punctuation" if marks else "other")
    return [kind for kind in KINDS if kind in found]


def _in_word(each: str) -> bool:
    # Vowel signs are marks, and they are inside of words.
    return each == "_" or each.isalnum() or unicodedata.category(each)[0] == "M"


def _word_kinds(before: str, text: str, after: str) -> Iterator[str]:
    """What the spelling and the place of the word say that the target starts, continues or is."""
    around = before + text + after
    start = end = len(before) + next(at for at, each in enumerate(text) if _in_word(each))
    while start and _joined(around, start - 1):
        start -= 1
    while end < len(around) and _joined(around, end):
        end += 1
    word = around[start:end]
    yield "continuation" if start < len(before) else "word_start"
    if any(each.isnumeric() for each in text) and not any(each.isalpha() for each in text):
        yield "digit"
    # One capital alone is an initial, or a pronoun such as the English I, which has more forms ("I'm").
    if (word[0].isupper() or word[0].istitle()) and _in_word(word[1:2] or " ") and not _starts_sentence(around[:start]):
        yield "name_like"
    if _is_identifier(word):
        yield "identifier"


def _joined(text: str, at: int) -> bool:
    """Whether a character is part of a word: in it by itself, or an apostrophe between two that are."""
    if text[at] in APOSTROPHES:
        return 0 < at < len(text) - 1 and _in_word(text[at - 1]) and _in_word(text[at + 1])
    return _in_word(text[at])


def _starts_sentence(before: str) -> bool:
    """Whether what follows this text starts a sentence or a line, quotes and brackets aside."""
    for each in reversed(before):
        if each.splitlines() != [each]:
            return True
        if not (each.isspace() or each in QUOTES or unicodedata.category(each) in {"Ps", "Pe", "Pi", "Pf"}):
            return each in SENTENCE_ENDS
    return True


def _is_identifier(word: str) -> bool:
    """Whether a word is spelled as in code: with an underscore, a capital after a small letter, a digit at the end."""
    if not any(each.isalpha() for each in word):
        return False
    hump = any(left.islower() and right.isupper() for left, right in pairwise(word))
    return "_" in word or hump or (word[0].isalpha() and any(each.isdecimal() for each in word))


def _repeated(tokens: Integer[np.ndarray, " seq"], n: int, near: int) -> str:
    """Which part of the context holds the n-gram that the last token ends."""
    first = len(tokens) - n
    if first < 1:
        return "new"
    same = np.ones(first, dtype=bool)
    for at in range(n):
        same &= tokens[at : first + at] == tokens[first + at]
    starts = same.nonzero()[0]
    if not len(starts):
        return "new"
    return "repeated_near" if starts[-1] + n >= len(tokens) - near else "repeated_far"


class Distances:
    """How often tokens at each distance (in tokens, back from the target) are chosen, and what they gain (nats)."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.gains: dict[int, float] = {}

    def add(self, distance: int, gain: float) -> None:
        """Count one chosen token; a choice that gains nothing is no influence, so its weight is 0."""
        if not math.isfinite(gain):
            raise SettingError(f"the token chosen at distance {distance} gains {gain}; measure its target in float32")
        self.counts[distance] = self.counts.get(distance, 0) + 1
        self.gains[distance] = self.gains.get(distance, 0.0) + max(0.0, gain)

    def summary(self) -> dict[str, Any]:
        """Quantiles by gain, and bins of equal width on a log scale with their shares of gain and of choices."""
        count, gain = sum(self.counts.values()), math.fsum(self.gains.values())
        return {
            "chosen": count,
            "gain": gain,
            "quantiles": [{"share": share, "distance": self._quantile(share * gain)} for share in QUANTILES],
            "bins": [
                {
                    "from": first,
                    "to": last,
                    "count_share": sum(self.counts.get(each, 0) for each in range(first, last + 1)) / count,
                    "gain_share": None if gain == 0 else self._gain(first, last) / gain,
                }
                for first, last in self._bins()
            ],
        }

    def _gain(self, first: int, last: int) -> float:
        return math.fsum(self.gains.get(each, 0.0) for each in range(first, last + 1))

    def _quantile(self, wanted: float) -> int | None:
        total = 0.0
        for distance in sorted(each for each, gain in self.gains.items() if gain):
            total += self.gains[distance]
            # The last one by its place: sums in another order may stay a little below the whole.
            if total >= wanted * (1 - 1e-12):
                return distance
        return None

    def _bins(self) -> Iterator[tuple[int, int]]:
        """First and last distance of each bin from the nearest to the farthest chosen token."""
        if self.counts:
            nearest, farthest = (
                int(BINS_PER_OCTAVE * math.log2(each)) for each in (min(self.counts), max(self.counts))
            )
            for place in range(nearest, farthest + 1):
                first, after = (math.ceil(2 ** (edge / BINS_PER_OCTAVE)) for edge in (place, place + 1))
                # Near distances have bins that no whole number falls into.
                if first < after:
                    yield first, after - 1
