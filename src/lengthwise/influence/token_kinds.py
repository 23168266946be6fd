"""Kinds of target tokens: spelling, and repetition of n-grams in the near and far context."""

import unicodedata
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Integer

NGRAMS = (1, 2, 3)
# Number of tokens on each side of the target that are searched for its word and the end of a sentence.
AROUND = 24
SENTENCE_ENDS = frozenset(".!?…。！？｡।॥۔؟")  # noqa: RUF001  (marks of several scripts)
APOSTROPHES = frozenset("'’")  # noqa: RUF001
QUOTES = frozenset("\"'`*_")

# A token has one of the first five kinds, any of the next five, and for each n-gram length one of the last three.
KINDS = (
    *("word_start", "continuation", "punctuation", "whitespace", "other"),
    *("newline", "digit", "name_like", "identifier", "partial_character"),
    *(f"{where}_{n}" for n in NGRAMS for where in ("repeated_near", "repeated_far", "new")),
)


def token_kinds(
    texts: Sequence[str], *, near: int, tokens: Integer[np.ndarray, " seq"] | None = None, after: Sequence[str] = ()
) -> list[str]:
    """Return the kinds of a target, in the order of ``KINDS``.

    ``texts`` are the decoded tokens of the context (the last ``near`` are near), then the decoded target.
    ``after`` are the decoded next tokens. ``tokens`` are the IDs of context and target, which distinguish tokens with
    the same text; with them, the last ``AROUND`` texts and the target suffice. For n = 2, ``repeated_near_2`` means
    that the bigram that ends with the target ends in the near context too, ``repeated_far_2`` that it occurs in the far
    context only, and ``new_2`` that it does not occur.
    """
    if tokens is None:
        vocabulary: dict[str, int] = {}
        tokens = np.array([vocabulary.setdefault(text, len(vocabulary)) for text in texts])
    text = texts[-1]
    kinds = {f"{_repetition(tokens, n, near)}_{n}" for n in NGRAMS}
    if text.splitlines() not in ([text], []):
        kinds.add("newline")
    # A token with a part of a character's bytes decodes to a replacement character, or to half a surrogate pair.
    if any(each == "\N{REPLACEMENT CHARACTER}" or "\ud800" <= each <= "\udfff" for each in text):
        kinds |= {"other", "partial_character"}
    elif any(_is_word_character(each) for each in text):
        kinds |= set(_word_kinds("".join(texts[-1 - AROUND : -1]), text, "".join(after[:AROUND])))
    elif text.isspace():
        kinds.add("whitespace")
    else:
        marks = text and all(each.isspace() or unicodedata.category(each)[0] in "PS" for each in text)
        kinds.add("punctuation" if marks else "other")
    return [kind for kind in KINDS if kind in kinds]


def _is_word_character(each: str) -> bool:
    # Vowel signs have the category of marks and occur inside words.
    return each == "_" or each.isalnum() or unicodedata.category(each)[0] == "M"


def _word_kinds(before: str, text: str, after: str) -> Iterator[str]:
    """Yield the kinds that depend on the spelling and place of the word that contains the target."""
    around = before + text + after
    start = end = len(before) + next(index for index, each in enumerate(text) if _is_word_character(each))
    while start and _joins_word(around, start - 1):
        start -= 1
    while end < len(around) and _joins_word(around, end):
        end += 1
    word = around[start:end]
    yield "continuation" if start < len(before) else "word_start"
    if any(each.isnumeric() for each in text) and not any(each.isalpha() for each in text):
        yield "digit"
    # A single capital is an initial or a pronoun, such as the English I, also in "I'm".
    capitalized = word[0].isupper() or word[0].istitle()
    if capitalized and _is_word_character(word[1:2] or " ") and not _starts_sentence(around[:start]):
        yield "name_like"
    if _is_identifier(word):
        yield "identifier"


def _joins_word(text: str, index: int) -> bool:
    """Return True for a word character, and for an apostrophe between two word characters."""
    if text[index] in APOSTROPHES:
        inside = 0 < index < len(text) - 1
        return inside and _is_word_character(text[index - 1]) and _is_word_character(text[index + 1])
    return _is_word_character(text[index])


def _starts_sentence(before: str) -> bool:
    """Return True if a sentence or line starts after this text, ignoring quotes and brackets."""
    for each in reversed(before):
        if each.splitlines() != [each]:
            return True
        if not (each.isspace() or each in QUOTES or unicodedata.category(each) in {"Ps", "Pe", "Pi", "Pf"}):
            return each in SENTENCE_ENDS
    return True


def _is_identifier(word: str) -> bool:
    """Return True for the spelling of code: with an underscore, a capital after a lowercase letter, or a digit."""
    if not any(each.isalpha() for each in word):
        return False
    camel_case = any(left.islower() and right.isupper() for left, right in pairwise(word))
    return "_" in word or camel_case or (word[0].isalpha() and any(each.isdecimal() for each in word))


def _repetition(tokens: Integer[np.ndarray, " seq"], n: int, near: int) -> str:
    """Return the part of the context that contains the n-gram ending with the last token."""
    first = len(tokens) - n
    if first < 1:
        return "new"
    matches = np.ones(first, dtype=bool)
    for offset in range(n):
        matches &= tokens[offset : first + offset] == tokens[first + offset]
    starts = matches.nonzero()[0]
    if not len(starts):
        return "new"
    return "repeated_near" if starts[-1] + n >= len(tokens) - near else "repeated_far"
