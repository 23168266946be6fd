"""Classification of target tokens by spelling and by repeated n-grams in the near and far context."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from unicodedata import category

import numpy as np
from jaxtyping import Integer

TokenIndexes = Integer[np.ndarray, " seq"]

NGRAM_LENGTHS = (1, 2, 3)
# Number of tokens on each side of the target in which to find its word and the start of its sentence or line.
NUM_NEIGHBORS = 24
SENTENCE_END_MARKS = frozenset(".!?…。！？｡।॥۔؟")  # noqa: RUF001  (marks of several scripts)
APOSTROPHES = frozenset("'’")  # noqa: RUF001
QUOTES = frozenset("\"'`*_")
BLANKS = " \t"

# A token has one of the first five kinds, any of the next seven, and for each n-gram length one of the last three.
KINDS = (
    *("word_start", "continuation", "punctuation", "whitespace", "other"),
    *("newline", "indentation", "closing_bracket", "digit", "name_like", "identifier", "partial_character"),
    *(f"{repetition}_{n}" for n in NGRAM_LENGTHS for repetition in ("repeated_near", "repeated_far", "new")),
)


def token_kinds(
    texts: Sequence[str], *, near: int, tokens: TokenIndexes | None = None, next_texts: Sequence[str] = ()
) -> list[str]:
    """Return the kinds of a target token, in the order of ``KINDS``.

    ``texts`` contains the text of each context token, then the text of the target. ``next_texts`` contains the texts of
    the tokens after the target. ``tokens`` contains the vocabulary index of each context token and of the target,
    because several tokens may have the same text. If ``tokens`` is given, ``texts`` needs only the last
    ``NUM_NEIGHBORS`` context tokens and the target.

    The last ``near`` context tokens are the near context, and all earlier tokens are the far context. The n-gram kinds
    describe the n-gram that ends with the target. For example, the kind is ``repeated_near_2`` if the same bigram also
    ends in the near context, ``repeated_far_2`` if it ends earlier only in the far context, and ``new_2`` otherwise.
    The kind ``indentation`` means that the target contains spaces or tabs at the start of a line, and
    ``closing_bracket`` that it starts with a closing bracket, after any spaces.
    """
    if tokens is None:
        vocabulary: dict[str, int] = {}
        tokens = np.array([vocabulary.setdefault(text, len(vocabulary)) for text in texts])
    text, previous_text = texts[-1], "".join(texts[-1 - NUM_NEIGHBORS : -1])
    kinds = {f"{_repetition(tokens, n, near)}_{n}" for n in NGRAM_LENGTHS} | set(_layout_kinds(previous_text, text))
    # A token with only some bytes of a character decodes to a replacement character or half of a surrogate pair.
    if any(character == "\N{REPLACEMENT CHARACTER}" or "\ud800" <= character <= "\udfff" for character in text):
        kinds |= {"other", "partial_character"}
    elif any(_is_word_character(character) for character in text):
        kinds |= set(_word_kinds(previous_text, text, "".join(next_texts[:NUM_NEIGHBORS])))
    elif text.isspace():
        kinds.add("whitespace")
    else:
        is_punctuation = text and all(character.isspace() or category(character)[0] in "PS" for character in text)
        kinds.add("punctuation" if is_punctuation else "other")
    return [kind for kind in KINDS if kind in kinds]


def _is_word_character(character: str) -> bool:
    # Vowel signs, which occur inside words, have the Unicode category of marks.
    return character == "_" or character.isalnum() or category(character)[0] == "M"


def _layout_kinds(previous_text: str, text: str) -> Iterator[str]:
    """Yield the kinds of the lines and brackets that the target ends, indents or closes."""
    if any(map(_ends_line, text)):
        yield "newline"
    passage = previous_text + text
    blank_indexes = (index for index in range(len(previous_text), len(passage)) if passage[index] in BLANKS)
    if any(_ends_line(passage[:index].rstrip(BLANKS)[-1:]) for index in blank_indexes):
        yield "indentation"
    if category(text.lstrip()[:1] or " ") == "Pe":
        yield "closing_bracket"


def _ends_line(character: str) -> bool:
    return character.splitlines() not in ([character], [])


def _word_kinds(previous_text: str, text: str, next_text: str) -> Iterator[str]:
    """Yield the kinds that depend on the spelling and place of the word that contains the target."""
    passage = previous_text + text + next_text
    first_index = next(index for index, character in enumerate(text) if _is_word_character(character))
    word_start = word_end = len(previous_text) + first_index
    while word_start and _joins_word(passage, word_start - 1):
        word_start -= 1
    while word_end < len(passage) and _joins_word(passage, word_end):
        word_end += 1
    word = passage[word_start:word_end]
    yield "continuation" if word_start < len(previous_text) else "word_start"
    if any(character.isnumeric() for character in text) and not any(character.isalpha() for character in text):
        yield "digit"
    # A single capital is an initial or a pronoun, such as the English I, also in "I'm".
    capitalized = word[0].isupper() or word[0].istitle()
    if capitalized and _is_word_character(word[1:2] or " ") and not starts_sentence(passage[:word_start]):
        yield "name_like"
    if _is_identifier(word):
        yield "identifier"


def _joins_word(text: str, index: int) -> bool:
    """Return True for a word character, and for an apostrophe between two word characters."""
    if text[index] in APOSTROPHES:
        is_inside = 0 < index < len(text) - 1
        return is_inside and _is_word_character(text[index - 1]) and _is_word_character(text[index + 1])
    return _is_word_character(text[index])


def starts_sentence(previous_text: str) -> bool:
    """Return True if a sentence or line starts after this text, ignoring quotes and brackets."""
    for character in reversed(previous_text):
        if _ends_line(character):
            return True
        if not (character.isspace() or character in QUOTES or category(character) in {"Ps", "Pe", "Pi", "Pf"}):
            return character in SENTENCE_END_MARKS
    return True


def _is_identifier(word: str) -> bool:
    """Return True for words with an underscore, a digit, or a capital after a lowercase letter, as in code."""
    if not any(character.isalpha() for character in word):
        return False
    camel_case = any(character.islower() and next_character.isupper() for character, next_character in pairwise(word))
    return "_" in word or camel_case or (word[0].isalpha() and any(character.isdecimal() for character in word))


def _repetition(tokens: TokenIndexes, ngram_length: int, num_near_tokens: int) -> str:
    """Return ``repeated_near``, ``repeated_far`` or ``new`` for the n-gram that ends with the last token."""
    ngram_start = len(tokens) - ngram_length
    if ngram_start < 1:
        return "new"
    is_match = np.ones(ngram_start, dtype=bool)
    for offset in range(ngram_length):
        is_match &= tokens[offset : ngram_start + offset] == tokens[ngram_start + offset]
    match_starts = is_match.nonzero()[0]
    if not len(match_starts):
        return "new"
    return "repeated_near" if match_starts[-1] + ngram_length >= len(tokens) - num_near_tokens else "repeated_far"
