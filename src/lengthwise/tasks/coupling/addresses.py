"""Addresses: rules that name one earlier token for each answer, such as the prompt token with the same number."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.coupling.answer_steps import AFTER, ANYWHERE, BEFORE, NO_TOKEN, AnswerSteps

FIRST, LAST = "first", "last"
# Slopes and offsets of addresses that move through the prompt, from simple to complex.
SLOPES = (1, -1, 0, 2, -2)
OFFSETS = (0, 1, -1, 2, -2, 3, -3)
MATCH_OFFSETS = (1, -1, 2, -2, 3)
# Number of preceding answers, in addition to the number of phases.
NUM_LAGS = 2
# A token that every prompt contains equally often, at most this often, is an anchor.
MAX_ANCHOR_COUNT = 4
# Upper limit of tokens that can stand next to a match.
MAX_CONTEXT_TOKENS = 4
MATCH_COST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAddress:
    """Prompt token at ``anchor + slope * place + offset``.

    ``anchor`` is ``first``, ``last`` (the token before the start token) or ``#TOKEN.N`` (occurrence N of a token).
    """

    anchor: str
    slope: int
    offset: int

    @property
    def text(self) -> str:
        """Form of the address in saved files, such as ``prompt first +1 -2``."""
        return f"prompt {self.anchor} {self.slope:+d} {self.offset:+d}"

    @property
    def cost(self) -> int:
        """Order of addresses from simple to complex."""
        # A token as anchor is simpler than an offset: the number of tokens before it can change.
        occurrence = 0 if self.anchor in (FIRST, LAST) else 1 + 2 * int(self.anchor.split(".")[1])
        return occurrence + 2 * SLOPES.index(self.slope) + 2 * abs(self.offset)

    def locate(self, steps: AnswerSteps, place: Int[np.ndarray, " step"]) -> Int[np.ndarray, " step"]:
        """Return the indexes; they can lie outside the prompt."""
        return self._anchor_index(steps) + self.slope * place + self.offset

    def _anchor_index(self, steps: AnswerSteps) -> Int[np.ndarray, " step"]:
        if self.anchor == FIRST:
            return np.zeros(len(steps), dtype=np.int64)
        if self.anchor == LAST:
            return steps.prompt_length - 2
        token, occurrence = (int(part) for part in self.anchor[1:].split("."))
        is_token = steps.is_prompt & (steps.tokens == token)
        # An anchor that is missing in a prompt is after its last token.
        order = np.argsort(~is_token, axis=1, kind="stable")[:, occurrence]
        index = np.where(is_token.sum(axis=1) > occurrence, order, steps.prompt_lengths)
        return index[steps.sequence]


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

    def locate(self, steps: AnswerSteps, place: Int[np.ndarray, " step"]) -> Int[np.ndarray, " step"]:
        """Return the indexes; ``NO_TOKEN`` before the start token."""
        return np.where(steps.number >= self.lag - 1, steps.prompt_length + steps.number - self.lag, NO_TOKEN)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchAddress:
    """Prompt token ``offset`` tokens after the first match of an earlier token, the key.

    ``key`` is ``answer N`` (N steps before) or ``prompt N`` (the last prompt token but N). A match is the first equal
    prompt token that stands ``side`` (before or after) ``context``, or anywhere.
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

    def locate(self, steps: AnswerSteps, place: Int[np.ndarray, " step"]) -> Int[np.ndarray, " step"]:
        """Return the indexes; ``NO_TOKEN`` without a match."""
        match = self.match(steps)
        return np.where(match >= 0, match + self.offset, NO_TOKEN)

    def key_index(self, steps: AnswerSteps) -> Int[np.ndarray, " step"]:
        """Return the index of the key."""
        kind, number = self.key.split()
        if kind == "prompt":
            return steps.prompt_length - 2 - int(number)
        return AnswerAddress(lag=int(number)).locate(steps, steps.number)

    def match(self, steps: AnswerSteps) -> Int[np.ndarray, " step"]:
        """Return the index of the first match of the key."""
        key_index = self.key_index(steps)
        first = steps.first_occurrences(self.side, self.context)
        key = steps.token_at(key_index)
        match = np.where(key >= 0, first[steps.sequence, key], NO_TOKEN)
        return np.where(match == key_index, NO_TOKEN, match)


# Rules that give the index of one earlier token for each step.
Address = PromptAddress | AnswerAddress | MatchAddress


def parse_address(text: str) -> Address:
    """Return the address of its text; raise ``SettingError`` for an invalid text."""
    kind, *parts = text.split()
    try:
        if kind == "prompt":
            return PromptAddress(anchor=parts[0], slope=int(parts[1]), offset=int(parts[2]))
        if kind == "answer":
            return AnswerAddress(lag=int(parts[0]))
        return MatchAddress(
            key=f"{parts[0]} {int(parts[1])}", side=parts[2], context=int(parts[3]), offset=int(parts[4])
        )
    except (ValueError, IndexError):
        raise SettingError(f"invalid address '{text}'; use a coupling that lengthwise couple has found") from None


def iter_fixed_addresses(steps: AnswerSteps, num_phases: int) -> Iterator[Address]:
    """Yield addresses that depend only on the number of an answer."""
    for anchor in _anchors(steps):
        for slope in SLOPES:
            for offset in OFFSETS:
                yield PromptAddress(anchor=anchor, slope=slope, offset=offset)
    for lag in range(1, NUM_LAGS + num_phases + 1):
        yield AnswerAddress(lag=lag)


def iter_match_addresses(steps: AnswerSteps) -> Iterator[Address]:
    """Yield addresses near the first match of an earlier token."""
    contexts = [(ANYWHERE, 0)]
    for token in _context_tokens(steps):
        contexts += [(BEFORE, token), (AFTER, token)]
    for side, context in contexts:
        for key in ("answer 1", "answer 2", "prompt 0", "prompt 1"):
            for offset in MATCH_OFFSETS:
                yield MatchAddress(key=key, side=side, context=context, offset=offset)


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
        return not isinstance(self.address, AnswerAddress)

    def where(self, mask: Bool[np.ndarray, " step"]) -> "LocatedAddress":
        """Return the address for the steps of a mask."""
        return LocatedAddress(address=self.address, index=self.index[mask], tokens=self.tokens[mask])


def locate(address: Address, steps: AnswerSteps, place: Int[np.ndarray, " step"]) -> LocatedAddress:
    """Return the address with its index and token at each step."""
    index = address.locate(steps, place)
    if not isinstance(address, AnswerAddress):
        index = np.where((index >= 0) & (index < steps.prompt_length - 1), index, NO_TOKEN)
    return LocatedAddress(address=address, index=index, tokens=steps.token_at(index))


def without_duplicates(addresses: Iterable[LocatedAddress]) -> list[LocatedAddress]:
    """Return the simplest of all addresses with equal indexes; omit addresses without any token."""
    distinct: dict[bytes, LocatedAddress] = {}
    for located in sorted(addresses, key=lambda located: located.address.cost):
        if (located.index >= 0).any():
            distinct.setdefault(located.key, located)
    return list(distinct.values())


def _anchors(steps: AnswerSteps) -> list[str]:
    """Return the anchors: both ends of the prompt, and tokens that all prompts contain equally often."""
    anchors = [FIRST, LAST]
    for token in range(steps.num_tokens):
        counts = (steps.is_prompt & (steps.tokens == token)).sum(axis=1)
        if 1 <= counts.min() == counts.max() <= MAX_ANCHOR_COUNT:
            anchors += [f"#{token}.{occurrence}" for occurrence in range(int(counts.max()))]
    return anchors


def _context_tokens(steps: AnswerSteps) -> list[int]:
    """Return tokens that every prompt contains."""
    tokens = [
        token for token in range(steps.num_tokens) if (steps.is_prompt & (steps.tokens == token)).any(axis=1).all()
    ]
    return tokens[:MAX_CONTEXT_TOKENS]
