"""Locators: rules that name one earlier token for each answer, such as the prompt token with the same number."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.tasks.coupling.answer_steps import (
    ADVICE,
    AFTER,
    ANYWHERE,
    BEFORE,
    NO_TOKEN,
    AnswerSteps,
    PeriodicAnswers,
)
from lengthwise.tasks.jsonl_table import MARK

FIRST, LAST = "first", "last"
# Occurrence of an anchor token whose number is that of the line.
LINE = "line"
# Word before the token at which a locator stops.
UNTIL = "until"
# Slopes of locators that move through the prompt, from simple to complex.
SLOPES = (1, -1, 0, 2, -2)
MATCH_COST = 40
KEY_KINDS = ("answer", "prompt", "first")

# The search tries the following candidates.
# Distances to the anchor, from simple to complex.
OFFSETS = (0, 1, -1, 2, -2, 3, -3)
# Slopes of locators that move from line to line.
LINE_SLOPES = (1, -1)
# Largest distance to the answer in the same column of the previous line.
MAX_COLUMN_DISTANCE = 3
MATCH_OFFSETS = (1, -1, 2, -2, 3)
# Number of preceding answers, in addition to the number of phases.
NUM_LAGS = 2
# A token that every prompt contains equally often, at most this often, is an anchor.
MAX_ANCHOR_COUNT = 4
# Largest number of tokens that are anchors.
MAX_ANCHOR_TOKENS = 6
# Upper limit of tokens that can stand next to a match.
MAX_CONTEXT_TOKENS = 4
# Number of prompt tokens at either end that can be a key, among these many tokens.
NUM_LAST_KEYS, NUM_FIRST_KEYS, MAX_KEY_DISTANCE = 2, 1, 8


class TokenLocator(ABC):
    """Rule that gives the index of one earlier token for each step."""

    __slots__ = ()
    # True if the locator names a prompt token, not an earlier answer.
    is_prompt: ClassVar[bool] = True

    @property
    @abstractmethod
    def saved_text(self) -> str:
        """Form of the locator in saved files."""

    @property
    @abstractmethod
    def complexity(self) -> int:
        """Order of locators from simple to complex."""

    @property
    def looked_up_tokens(self) -> set[int]:
        """Numbers of the tokens that the locator names."""
        return set()

    @abstractmethod
    def locate_tokens(self, steps: AnswerSteps, phases: PeriodicAnswers) -> Int[np.ndarray, " step"]:
        """Return the indexes; they can lie outside the prompt, and are ``NO_TOKEN`` for steps without a token."""

    @abstractmethod
    def describe(self, vocabulary: Sequence[str]) -> str:
        """Return the locator in words; places count from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokenLocator(TokenLocator):
    """Prompt token at ``anchor + slope * place + line_slope * line + offset``.

    ``anchor`` is ``first``, ``last`` (the token before the start token), ``#TOKEN.N`` (occurrence N of a token) or
    ``#TOKEN.line`` (the occurrence with the number of the line). A locator that moves ``until`` a token stops at its
    next occurrence, as at the end of a number that is shorter than another one.
    """

    anchor: str
    slope: int
    offset: int
    line_slope: int = 0
    until: int | None = None

    @property
    def saved_text(self) -> str:
        """Form of the locator in saved files, such as ``prompt first +1 -2``, with a slope over lines or ``until``."""
        line_slope = f" {self.line_slope:+d}" if self.line_slope else ""
        until = "" if self.until is None else f" {UNTIL} {self.until}"
        return f"prompt {self.anchor} {self.slope:+d} {self.offset:+d}{line_slope}{until}"

    @property
    def complexity(self) -> int:
        """Order of locators from simple to complex."""
        token, occurrence = self._token_and_occurrence
        # A token as anchor is simpler than an offset: the number of tokens before it can change.
        anchor = 0 if token is None else 1 + 2 * (0 if occurrence == LINE else int(occurrence))
        return anchor + 2 * SLOPES.index(self.slope) + 2 * abs(self.offset) + 2 * abs(self.line_slope)

    @property
    def looked_up_tokens(self) -> set[int]:
        """Numbers of the tokens at which the locator starts and stops."""
        return {token for token in (self._token_and_occurrence[0], self.until) if token is not None}

    @property
    def _token_and_occurrence(self) -> tuple[int | None, str]:
        token, _, occurrence = self.anchor[1:].partition(".")
        return (int(token), occurrence) if self.anchor.startswith("#") else (None, "")

    def locate_tokens(self, steps: AnswerSteps, phases: PeriodicAnswers) -> Int[np.ndarray, " step"]:
        """Return the indexes; raise ``PromptError`` if a prompt has no anchor."""
        anchor = self._anchor_index(steps, phases)
        index = anchor + self.slope * phases.place + self.line_slope * phases.line + self.offset
        if self.until is None:
            return index
        stop = next_occurrence(steps, np.array([self.until]), anchor, self.slope)
        return np.maximum(index, stop) if self.slope < 0 else np.minimum(index, stop)

    def _anchor_index(self, steps: AnswerSteps, phases: PeriodicAnswers) -> Int[np.ndarray, " step"]:
        token, number = self._token_and_occurrence
        if token is None:
            return np.zeros(len(steps), dtype=np.int64) if self.anchor == FIRST else steps.prompt_length - 2
        is_token = steps.is_prompt & (steps.tokens == token)
        order = np.argsort(~is_token, axis=1, kind="stable")
        occurrence = phases.line if number == LINE else np.full(len(steps), int(number))
        is_missing = occurrence >= is_token.sum(axis=1)[steps.sequence]
        if number != LINE and is_missing.any():
            raise PromptError(
                f"a prompt has fewer than {int(number) + 1} tokens with the number {token}, from which the found "
                "coupling counts; use prompts in the format of the training examples"
            )
        # An anchor of a line can be missing; it is then after the last token.
        index = order[steps.sequence, np.minimum(occurrence, order.shape[1] - 1)]
        return np.where(is_missing, steps.prompt_length, index)

    def describe(self, vocabulary: Sequence[str]) -> str:
        """Return the locator in words, such as ``prompt token first + place -2``."""
        token, occurrence = self._token_and_occurrence
        if token is None:
            # In a task file, the last prompt token before the start token is the mark.
            anchor = f"'{MARK}'" if self.anchor == LAST and MARK in vocabulary else self.anchor
        else:
            number = "with the number of the line" if occurrence == LINE else f"number {int(occurrence) + 1}"
            anchor = f"'{vocabulary[token]}'" + ("" if occurrence == "0" else f" ({number})")
        factor = "" if abs(self.slope) == 1 else f"{abs(self.slope)} x "
        move = "" if self.slope == 0 else f" {'+' if self.slope > 0 else '-'} {factor}place"
        line_move = f" {'+' if self.line_slope > 0 else '-'} line" if self.line_slope else ""
        stop = "" if self.until is None else f", until '{vocabulary[self.until]}'"
        return f"prompt token {anchor}{move}{line_move}{f' {self.offset:+d}' if self.offset else ''}{stop}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTokenLocator(TokenLocator):
    """Answer token ``lag`` steps before; before the first answer, the start token."""

    lag: int

    is_prompt: ClassVar[bool] = False

    @property
    def saved_text(self) -> str:
        """Form of the locator in saved files, such as ``answer 1``."""
        return f"answer {self.lag}"

    @property
    def complexity(self) -> int:
        """Order of locators from simple to complex."""
        return 2 * (self.lag - 1)

    def locate_tokens(self, steps: AnswerSteps, phases: PeriodicAnswers | None = None) -> Int[np.ndarray, " step"]:
        """Return the indexes, which do not depend on phases; ``NO_TOKEN`` before the start token."""
        return np.where(steps.number >= self.lag - 1, steps.prompt_length + steps.number - self.lag, NO_TOKEN)

    def describe(self, vocabulary: Sequence[str]) -> str:
        """Return the locator in words, such as ``the answer 2 steps before``."""
        return "the previous answer" if self.lag == 1 else f"the answer {self.lag} steps before"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousLineLocator(TokenLocator):
    """Answer token ``offset`` tokens after the same column of the previous line."""

    offset: int

    is_prompt: ClassVar[bool] = False

    @property
    def saved_text(self) -> str:
        """Form of the locator in saved files, such as ``line -1``."""
        return f"line {self.offset:+d}"

    @property
    def complexity(self) -> int:
        """Order of locators from simple to complex."""
        return 1 + 2 * abs(self.offset)

    def locate_tokens(self, steps: AnswerSteps, phases: PeriodicAnswers) -> Int[np.ndarray, " step"]:
        """Return the indexes; ``NO_TOKEN`` in the first line, and beyond the ends of the previous line."""
        column = steps.number - phases.line * phases.line_width + self.offset
        is_inside = (phases.line > 0) & (column >= 0) & (column < phases.line_width)
        index = steps.prompt_length + steps.number - phases.line_width + self.offset
        return np.where(is_inside, index, NO_TOKEN)

    def describe(self, vocabulary: Sequence[str]) -> str:
        """Return the locator in words, such as ``the answer at the same place in the previous line``."""
        distance = f"{abs(self.offset)} tokens {'after' if self.offset > 0 else 'before'} " if self.offset else "at "
        return f"the answer {distance}the same place in the previous line"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingTokenLocator(TokenLocator):
    """Prompt token ``offset`` tokens after the first match of an earlier token, the key.

    The kind of the key is ``answer`` (``number`` steps before), ``prompt`` (the last prompt token but ``number``) or
    ``first`` (the first one but ``number``). A match is the first equal prompt token that stands ``side`` (before or
    after) ``context``, or anywhere. The match of a key of the kind ``first`` stands after the key.
    """

    kind: str
    number: int
    side: str
    context: int
    offset: int

    @property
    def saved_text(self) -> str:
        """Form of the locator in saved files, such as ``match answer 1 before 12 +2``."""
        return f"match {self.kind} {self.number} {self.side} {self.context} {self.offset:+d}"

    @property
    def complexity(self) -> int:
        """Order of locators from simple to complex."""
        return MATCH_COST + self.number + abs(self.offset) + (self.side != ANYWHERE)

    @property
    def looked_up_tokens(self) -> set[int]:
        """Number of the token next to the match, if any."""
        return set() if self.side == ANYWHERE else {self.context}

    @property
    def reads_answers(self) -> bool:
        """True if the key is an answer token."""
        return self.kind == "answer"

    def locate_tokens(self, steps: AnswerSteps, phases: PeriodicAnswers) -> Int[np.ndarray, " step"]:
        """Return the indexes; ``NO_TOKEN`` without a match."""
        match = self.find_match(steps)
        return np.where(match >= 0, match + self.offset, NO_TOKEN)

    def key_index(self, steps: AnswerSteps) -> Int[np.ndarray, " step"]:
        """Return the index of the key."""
        if self.reads_answers:
            return AnswerTokenLocator(lag=self.number).locate_tokens(steps)
        return steps.prompt_length - 2 - self.number if self.kind == "prompt" else np.full(len(steps), self.number)

    def find_match(self, steps: AnswerSteps) -> Int[np.ndarray, " step"]:
        """Return the index of the first match of the key."""
        key_index = self.key_index(steps)
        start = self.number + 1 if self.kind == "first" else 0
        match = steps.find_first_match(steps.token_at(key_index), self.side, self.context, start)
        return np.where(match == key_index, NO_TOKEN, match)

    def describe(self, vocabulary: Sequence[str]) -> str:
        """Return the locator in words, such as ``the prompt token +1 from the first one equal to ...``."""
        context = "" if self.side == ANYWHERE else f" {self.side} '{vocabulary[self.context]}'"
        return (
            f"the prompt token {self.offset:+d} from the first one equal to {self._key_in_words(vocabulary)}{context}"
        )

    def _key_in_words(self, vocabulary: Sequence[str]) -> str:
        number = self.number
        if self.reads_answers:
            return AnswerTokenLocator(lag=number).describe(vocabulary)
        if self.kind == "first":
            return "the first prompt token" if number == 0 else f"the prompt token {number} after the first"
        if MARK in vocabulary:
            # In a task file, the mark is the last prompt token before the start token.
            if number == 0:
                return f"'{MARK}'"
            number -= 1
        return "the last prompt token" if number == 0 else f"the prompt token {number} before the last"


def parse_locator(text: str) -> TokenLocator:
    """Return the locator of its text; raise ``SettingError`` for an invalid text."""
    kind, *parts = text.split() or [""]
    try:
        if kind == "prompt" and _is_anchor(parts[0]):
            rest = parts[3:]
            until = int(rest[1]) if rest[:1] == [UNTIL] else None
            line_slope = int(rest[0]) if rest and until is None else 0
            return PromptTokenLocator(
                anchor=parts[0], slope=int(parts[1]), offset=int(parts[2]), line_slope=line_slope, until=until
            )
        if kind == "answer":
            return AnswerTokenLocator(lag=int(parts[0]))
        if kind == "line":
            return PreviousLineLocator(offset=int(parts[0]))
        if kind == "match" and parts[0] in KEY_KINDS and parts[2] in (BEFORE, AFTER, ANYWHERE):
            number, context, offset = int(parts[1]), int(parts[3]), int(parts[4])
            return MatchingTokenLocator(kind=parts[0], number=number, side=parts[2], context=context, offset=offset)
        raise ValueError
    except (ValueError, IndexError):
        raise SettingError(f"invalid locator '{text}'; {ADVICE}") from None


def _is_anchor(text: str) -> bool:
    token, _, occurrence = text[1:].partition(".")
    is_token = text.startswith("#") and token.isdecimal() and (occurrence.isdecimal() or occurrence == LINE)
    return is_token or text in (FIRST, LAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedTokens:
    """Locator with the index and the token of each step; an index outside the prompt is ``NO_TOKEN``."""

    locator: TokenLocator
    index: Int[np.ndarray, " step"]
    tokens: Int[np.ndarray, " step"]

    def select(self, mask: Bool[np.ndarray, " step"]) -> "LocatedTokens":
        """Return the locator for the steps of a mask."""
        return LocatedTokens(locator=self.locator, index=self.index[mask], tokens=self.tokens[mask])


def locate_tokens(locator: TokenLocator, steps: AnswerSteps, phases: PeriodicAnswers) -> LocatedTokens:
    """Return the locator with its index and token at each step."""
    index = locator.locate_tokens(steps, phases)
    if locator.is_prompt:
        index = np.where((index >= 0) & (index < steps.prompt_length - 1), index, NO_TOKEN)
    # Small integers, because a search holds hundreds of locators.
    tokens = steps.token_at(index).astype(np.int32)
    return LocatedTokens(locator=locator, index=index.astype(np.int32), tokens=tokens)


def drop_duplicate_locators(locators: Iterable[LocatedTokens]) -> list[LocatedTokens]:
    """Return the simplest of all locators with equal indexes; omit locators without any token."""
    distinct: dict[bytes, LocatedTokens] = {}
    for located in sorted(locators, key=lambda located: located.locator.complexity):
        if (located.index >= 0).any():
            distinct.setdefault(located.index.tobytes(), located)
    return list(distinct.values())


def next_occurrence(
    steps: AnswerSteps, tokens: Int[np.ndarray, " token"], index: Int[np.ndarray, " step"], slope: int
) -> Int[np.ndarray, " step"]:
    """Return the index of the next of ``tokens`` in the prompt after ``index``, or before it for a negative slope.

    Without one, the index is beyond that end of the prompt.
    """
    is_token, size = steps.is_prompt & np.isin(steps.tokens, tokens), steps.tokens.shape[1]
    column = np.arange(size)
    if slope < 0:
        before = np.maximum.accumulate(np.where(is_token, column, NO_TOKEN), axis=1)
        return np.where(index > 0, before[steps.sequence, index - 1], NO_TOKEN)
    after = np.minimum.accumulate(np.where(is_token, column, size)[:, ::-1], axis=1)[:, ::-1]
    return after[steps.sequence, np.minimum(index + 1, size - 1)]


def iter_place_locators(
    steps: AnswerSteps, phases: PeriodicAnswers, *, bounded: bool = False
) -> Iterator[TokenLocator]:
    """Yield locators that depend only on the number of an answer, and on its line.

    With ``bounded``, locators that move from one token to the next stop at the next separator.
    """
    anchors = _anchors(steps)
    moving = product(anchors, (1, -1)) if bounded else ()
    stops = {(anchor, slope): _next_separator(steps, phases, anchor, slope) for anchor, slope in moving}
    for anchor, slope, offset in product(anchors, SLOPES, OFFSETS):
        until = stops.get((anchor, slope))
        yield PromptTokenLocator(anchor=anchor, slope=slope, offset=offset, until=until)
    for lag in range(1, NUM_LAGS + len(phases.names) + 1):
        yield AnswerTokenLocator(lag=lag)
    if not phases.has_lines:
        return
    for anchor, line_slope, offset in product(anchors, LINE_SLOPES, OFFSETS):
        yield PromptTokenLocator(anchor=anchor, slope=0, offset=offset, line_slope=line_slope)
    for token, slope, offset in product(_common_tokens(steps), (1, -1, 0), OFFSETS):
        yield PromptTokenLocator(anchor=f"#{token}.{LINE}", slope=slope, offset=offset)
    for offset in range(-MAX_COLUMN_DISTANCE, MAX_COLUMN_DISTANCE + 1):
        yield PreviousLineLocator(offset=offset)


def iter_match_locators(steps: AnswerSteps) -> Iterator[TokenLocator]:
    """Yield locators near the first match of an earlier token."""
    contexts = [(ANYWHERE, 0)]
    for token in _common_tokens(steps)[:MAX_CONTEXT_TOKENS]:
        contexts += [(BEFORE, token), (AFTER, token)]
    keys = [("answer", 1), ("answer", 2)]
    # Keys at both ends of the prompt whose tokens differ between prompts.
    for kind, limit in (("prompt", NUM_LAST_KEYS), ("first", NUM_FIRST_KEYS)):
        numbers = range(min(MAX_KEY_DISTANCE, int(steps.prompt_lengths.min()) - 1))
        keys += [(kind, number) for number in numbers if _varies(kind, number, steps)][:limit]
    for (side, context), (kind, number), offset in product(contexts, keys, MATCH_OFFSETS):
        yield MatchingTokenLocator(kind=kind, number=number, side=side, context=context, offset=offset)


def _varies(kind: str, number: int, steps: AnswerSteps) -> bool:
    locator = MatchingTokenLocator(kind=kind, number=number, side=ANYWHERE, context=0, offset=0)
    return len(np.unique(steps.token_at(locator.key_index(steps)))) > 1


def _anchors(steps: AnswerSteps) -> list[str]:
    """Return the anchors: both ends of the prompt, and tokens that all prompts contain equally often.

    Of many such tokens, those at the fewest different places count: separators, and not the symbols of a permutation.
    """
    counts = {token: (steps.is_prompt & (steps.tokens == token)).sum(axis=1) for token in _common_tokens(steps)}
    tokens = [token for token, count in counts.items() if count.min() == count.max() <= MAX_ANCHOR_COUNT]
    kept = sorted(sorted(tokens, key=lambda token: _num_places(steps, token))[:MAX_ANCHOR_TOKENS])
    return [FIRST, LAST, *(f"#{token}.{number}" for token in kept for number in range(int(counts[token].max())))]


def separators_of(steps: AnswerSteps) -> list[int]:
    """Return the tokens, other than the last one, that all prompts contain once."""
    anchors = [anchor for anchor in _anchors(steps) if anchor.startswith("#")]
    tokens = [int(anchor[1:].partition(".")[0]) for anchor in anchors]
    last = steps.tokens[np.arange(len(steps.prompt_lengths)), steps.prompt_lengths - 2]
    return [token for token in dict.fromkeys(tokens) if tokens.count(token) == 1 and (last != token).any()]


def _next_separator(steps: AnswerSteps, phases: PeriodicAnswers, anchor: str, slope: int) -> int | None:
    """Return the separator that comes next in every prompt in the direction of ``slope``; None without one."""
    index = PromptTokenLocator(anchor=anchor, slope=0, offset=0).locate_tokens(steps, phases)
    stop = next_occurrence(steps, np.array(separators_of(steps), np.int64), index, slope)
    is_inside = (stop >= 0) & (stop < steps.prompt_length - 1)
    tokens = np.unique(steps.token_at(np.where(is_inside, stop, NO_TOKEN)))
    return int(tokens[0]) if len(tokens) == 1 and tokens[0] != NO_TOKEN else None


def _num_places(steps: AnswerSteps, token: int) -> int:
    rows, columns = np.nonzero(steps.is_prompt & (steps.tokens == token))
    return len(np.unique(steps.prompt_lengths[rows] * steps.tokens.shape[1] + columns))


def _common_tokens(steps: AnswerSteps) -> list[int]:
    """Return the tokens that every prompt contains."""
    shortest = int(steps.prompt_lengths.argmin())
    candidates = np.unique(steps.tokens[shortest, steps.is_prompt[shortest]]).tolist()
    return [token for token in candidates if (steps.is_prompt & (steps.tokens == token)).any(axis=1).all()]
