"""Addresses: rules that name one earlier token for each answer, such as the prompt token with the same number."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.tasks.coupling.answer_steps import AFTER, ANYWHERE, BEFORE, NO_TOKEN, AnswerSteps
from lengthwise.tasks.coupling.phases import ADVICE, Phases

FIRST, LAST = "first", "last"
# Occurrence of an anchor token whose number is that of the line.
LINE = "line"
# Slopes of addresses that move through the prompt, from simple to complex.
SLOPES = (1, -1, 0, 2, -2)
MATCH_COST = 40
KEY_KINDS = ("answer", "prompt", "first")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAddress:
    """Prompt token at ``anchor + slope * place + line_slope * line + offset``.

    ``anchor`` is ``first``, ``last`` (the token before the start token), ``#TOKEN.N`` (occurrence N of a token) or
    ``#TOKEN.line`` (the occurrence with the number of the line).
    """

    anchor: str
    slope: int
    offset: int
    line_slope: int = 0

    @property
    def text(self) -> str:
        """Form of the address in saved files, such as ``prompt first +1 -2``; a slope over lines comes last."""
        line_slope = f" {self.line_slope:+d}" if self.line_slope else ""
        return f"prompt {self.anchor} {self.slope:+d} {self.offset:+d}{line_slope}"

    @property
    def cost(self) -> int:
        """Order of addresses from simple to complex."""
        # A token as anchor is simpler than an offset: the number of tokens before it can change.
        number = "0" if self.anchor in (FIRST, LAST) or self.moves_with_lines else self.anchor.split(".")[1]
        occurrence = 0 if self.anchor in (FIRST, LAST) else 1 + 2 * int(number)
        return occurrence + 2 * SLOPES.index(self.slope) + 2 * abs(self.offset) + 2 * abs(self.line_slope)

    @property
    def named_token(self) -> int | None:
        """Number of the token that the address names, if any."""
        return int(self.anchor[1:].split(".")[0]) if self.anchor.startswith("#") else None

    @property
    def moves_with_lines(self) -> bool:
        """True if the anchor is another token in each line."""
        return self.anchor.endswith(f".{LINE}")

    def locate(self, steps: AnswerSteps, phases: Phases) -> Int[np.ndarray, " step"]:
        """Return the indexes; they can lie outside the prompt."""
        anchor = self._anchor_index(steps, phases)
        return anchor + self.slope * phases.place + self.line_slope * phases.line + self.offset

    def _anchor_index(self, steps: AnswerSteps, phases: Phases) -> Int[np.ndarray, " step"]:
        if self.anchor == FIRST:
            return np.zeros(len(steps), dtype=np.int64)
        if self.anchor == LAST:
            return steps.prompt_length - 2
        token, number = self.anchor[1:].split(".")
        is_token = steps.is_prompt & (steps.tokens == int(token))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerAddress:
    """Answer token ``lag`` steps before; before the first answer, the start token."""

    lag: int

    @property
    def text(self) -> str:
        """Form of the address in saved files, such as ``answer 1``."""
        return f"answer {self.lag}"

    @property
    def cost(self) -> int:
        """Order of addresses from simple to complex."""
        return 2 * (self.lag - 1)

    def locate(self, steps: AnswerSteps, phases: Phases) -> Int[np.ndarray, " step"]:
        """Return the indexes; ``NO_TOKEN`` before the start token."""
        return self.index(steps)

    def index(self, steps: AnswerSteps) -> Int[np.ndarray, " step"]:
        """Return the indexes; they do not depend on phases."""
        return np.where(steps.number >= self.lag - 1, steps.prompt_length + steps.number - self.lag, NO_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAddress:
    """Answer token ``offset`` tokens after the same column of the previous line."""

    offset: int

    @property
    def text(self) -> str:
        """Form of the address in saved files, such as ``line -1``."""
        return f"line {self.offset:+d}"

    @property
    def cost(self) -> int:
        """Order of addresses from simple to complex."""
        return 1 + 2 * abs(self.offset)

    def locate(self, steps: AnswerSteps, phases: Phases) -> Int[np.ndarray, " step"]:
        """Return the indexes; ``NO_TOKEN`` in the first line, and beyond the ends of the previous line."""
        column = steps.number - phases.line * phases.line_width + self.offset
        is_inside = (phases.line > 0) & (column >= 0) & (column < phases.line_width)
        index = steps.prompt_length + steps.number - phases.line_width + self.offset
        return np.where(is_inside, index, NO_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchAddress:
    """Prompt token ``offset`` tokens after the first match of an earlier token, the key.

    ``key`` is ``answer N`` (N steps before), ``prompt N`` (the last prompt token but N) or ``first N`` (the first one
    but N). A match is the first equal prompt token that stands ``side`` (before or after) ``context``, or anywhere. The
    match of a key ``first N`` stands after the key.
    """

    key: str
    side: str
    context: int
    offset: int

    @property
    def text(self) -> str:
        """Form of the address in saved files, such as ``match answer 1 before 12 +2``."""
        return f"match {self.key} {self.side} {self.context} {self.offset:+d}"

    @property
    def cost(self) -> int:
        """Order of addresses from simple to complex."""
        return MATCH_COST + int(self.key.split()[1]) + abs(self.offset) + (self.side != ANYWHERE)

    @property
    def named_token(self) -> int | None:
        """Number of the token that the address names, if any."""
        return None if self.side == ANYWHERE else self.context

    @property
    def reads_answers(self) -> bool:
        """True if the key is an answer token."""
        return self.key.startswith("answer")

    def locate(self, steps: AnswerSteps, phases: Phases) -> Int[np.ndarray, " step"]:
        """Return the indexes; ``NO_TOKEN`` without a match."""
        match = self.match(steps)
        return np.where(match >= 0, match + self.offset, NO_TOKEN)

    def key_index(self, steps: AnswerSteps) -> Int[np.ndarray, " step"]:
        """Return the index of the key."""
        kind, number = self.key.split()
        if kind == "prompt":
            return steps.prompt_length - 2 - int(number)
        if kind == "first":
            return np.full(len(steps), int(number))
        return AnswerAddress(lag=int(number)).index(steps)

    def match(self, steps: AnswerSteps) -> Int[np.ndarray, " step"]:
        """Return the index of the first match of the key."""
        key_index = self.key_index(steps)
        kind, number = self.key.split()
        start = int(number) + 1 if kind == "first" else 0
        match = steps.first_match(steps.token_at(key_index), self.side, self.context, start)
        return np.where(match == key_index, NO_TOKEN, match)


ANSWER_ADDRESSES = (AnswerAddress, LineAddress)
# Rules that give the index of one earlier token for each step.
Address = PromptAddress | AnswerAddress | LineAddress | MatchAddress


def parse_address(text: str) -> Address:
    """Return the address of its text; raise ``SettingError`` for an invalid text."""
    kind, *parts = text.split() or [""]
    try:
        if kind == "prompt" and _is_anchor(parts[0]):
            line_slope = int(parts[3]) if len(parts) > 3 else 0
            return PromptAddress(anchor=parts[0], slope=int(parts[1]), offset=int(parts[2]), line_slope=line_slope)
        if kind == "answer":
            return AnswerAddress(lag=int(parts[0]))
        if kind == "line":
            return LineAddress(offset=int(parts[0]))
        if kind == "match" and parts[0] in KEY_KINDS and parts[2] in (BEFORE, AFTER, ANYWHERE):
            key = f"{parts[0]} {int(parts[1])}"
            return MatchAddress(key=key, side=parts[2], context=int(parts[3]), offset=int(parts[4]))
        raise ValueError
    except (ValueError, IndexError):
        raise SettingError(f"invalid address '{text}'; {ADVICE}") from None


def _is_anchor(text: str) -> bool:
    token, _, occurrence = text[1:].partition(".")
    is_token = text.startswith("#") and token.isdecimal() and (occurrence.isdecimal() or occurrence == LINE)
    return is_token or text in (FIRST, LAST)


@dataclass(frozen=True, kw_only=True)
class LocatedAddress:
    """Address with the index and the token of each step; an index outside the prompt is ``NO_TOKEN``."""

    address: Address
    index: Int[np.ndarray, " step"]
    tokens: Int[np.ndarray, " step"]

    @cached_property
    def key(self) -> bytes:
        """Value that is equal for addresses with equal indexes."""
        return self.index.tobytes()

    @property
    def is_prompt(self) -> bool:
        """False for an address of an answer."""
        return not isinstance(self.address, ANSWER_ADDRESSES)

    def where(self, mask: Bool[np.ndarray, " step"]) -> "LocatedAddress":
        """Return the address for the steps of a mask."""
        return LocatedAddress(address=self.address, index=self.index[mask], tokens=self.tokens[mask])


def locate(address: Address, steps: AnswerSteps, phases: Phases) -> LocatedAddress:
    """Return the address with its index and token at each step."""
    index = address.locate(steps, phases)
    if not isinstance(address, ANSWER_ADDRESSES):
        index = np.where((index >= 0) & (index < steps.prompt_length - 1), index, NO_TOKEN)
    # Small integers, because a search holds hundreds of addresses.
    tokens = steps.token_at(index).astype(np.int32)
    return LocatedAddress(address=address, index=index.astype(np.int32), tokens=tokens)


def without_duplicates(addresses: Iterable[LocatedAddress]) -> list[LocatedAddress]:
    """Return the simplest of all addresses with equal indexes; omit addresses without any token."""
    distinct: dict[bytes, LocatedAddress] = {}
    for located in sorted(addresses, key=lambda located: located.address.cost):
        if (located.index >= 0).any():
            distinct.setdefault(located.key, located)
    return list(distinct.values())
