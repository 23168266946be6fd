"""Phases: groups of answers that one rule explains, such as every second answer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.coupling.answer_steps import AnswerSteps

ONE, FIRST_APART = "one", "first"
# Largest number of answers that take turns, in a response without and with lines.
MAX_PERIOD, MAX_LINE_PERIOD = 3, 2
# Smallest share of the sequences that have the last token of a line in their response.
MIN_LINE_SHARE = 0.5
# End of the messages for texts that no found coupling has.
ADVICE = "use a coupling that lengthwise couple has found"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Phase of each answer, from 0, and its place: the number of earlier answers of the same phase (in its line).

    ``line`` is the line of each answer, from 0, and ``line_width`` the number of tokens of the lines of its response.
    A response without lines has one line, with the width 0.
    """

    division: str
    names: tuple[str, ...]
    phase: Int[np.ndarray, " step"]
    place: Int[np.ndarray, " step"]
    line: Int[np.ndarray, " step"]
    line_width: Int[np.ndarray, " step"]

    @property
    def has_lines(self) -> bool:
        """True for a division into lines."""
        return self.division.startswith("lines")

    @property
    def is_complete(self) -> bool:
        """True if every phase has an answer."""
        return len(np.unique(self.phase)) == len(self.names)

    def where(self, mask: Bool[np.ndarray, " step"]) -> "Phases":
        """Return the phases of the steps of a mask."""
        fields = ("phase", "place", "line", "line_width")
        return replace(self, **{name: getattr(self, name)[mask] for name in fields})


def iter_divisions(steps: AnswerSteps) -> Iterator[tuple[str, ...]]:
    """Yield groups of divisions of the answers into phases, from simple to complex; those of a group compete."""
    yield (ONE,)
    yield (FIRST_APART,)
    periods = tuple(f"period {period}" for period in range(2, MAX_PERIOD + 1))
    lines = [f"lines {token} {period}" for token in _line_ends(steps) for period in range(1, MAX_LINE_PERIOD + 1)]
    if lines:
        # With lines, a wrong period can explain most answers, so all of these divisions compete.
        yield (*periods, *lines)
    else:
        yield from ((period,) for period in periods)


def number_of_phases(division: str) -> int:
    """Return the number of phases of a division that pointers can follow; raise ``SettingError`` for another text."""
    numbers = {ONE: 1, FIRST_APART: 2} | {f"period {period}": period for period in range(2, MAX_PERIOD + 1)}
    if division not in numbers:
        raise SettingError(f"invalid division '{division}' of a found coupling; {ADVICE}")
    return numbers[division]


def divide(steps: AnswerSteps, division: str) -> Phases:
    """Return the phases of a division.

    Divisions are ``one``, ``first`` (the first answer apart), ``period N`` (N answers take turns), and
    ``lines TOKEN N`` (lines that end with a token, the first line apart, with N answers that take turns in each line).
    """
    number, zeros = steps.number, np.zeros_like(steps.number)
    kind, *parts = division.split()
    if kind == "lines":
        return _divide_lines(steps, division, token=int(parts[0]), period=int(parts[1]))
    names: tuple[str, ...] = ("every answer",)
    phase, place = zeros, number
    if kind == FIRST_APART:
        names = ("the first answer", "every later answer")
        phase = np.minimum(number, 1)
    elif kind == "period":
        period = int(parts[0])
        names, phase, place = _turns(period), number % period, number // period
    return Phases(division=division, names=names, phase=phase, place=place, line=zeros, line_width=zeros)


def _divide_lines(steps: AnswerSteps, division: str, *, token: int, period: int) -> Phases:
    width = np.maximum(_first_number(steps, token) + 1, 1)[steps.sequence]
    line, column = steps.number // width, steps.number % width
    turns = _turns(period) if period > 1 else ("every answer",)
    return Phases(
        division=division,
        names=tuple(f"{turn} {where}" for where in ("in the first line", "in the later lines") for turn in turns),
        phase=period * np.minimum(line, 1) + column % period,
        place=column // period,
        line=line,
        line_width=width,
    )


def _turns(period: int) -> tuple[str, ...]:
    return tuple(f"answer {phase + 1} of every {period}" for phase in range(period))


def _first_number(steps: AnswerSteps, token: int) -> Int[np.ndarray, " sequence"]:
    """Return the number of the first answer of each sequence that is the token, or that of its last answer."""
    numbers = np.full(len(steps.tokens), -1)
    np.maximum.at(numbers, steps.sequence, steps.number)
    is_token = steps.target == token
    np.minimum.at(numbers, steps.sequence[is_token], steps.number[is_token])
    return numbers


def _line_ends(steps: AnswerSteps) -> list[int]:
    """Return the tokens that divide every response into lines of equal width; the last answer can replace one."""
    last_number = np.zeros(len(steps.tokens), dtype=np.int64)
    np.maximum.at(last_number, steps.sequence, steps.number)
    is_last = steps.number == last_number[steps.sequence]
    ends = []
    for token in np.unique(steps.target[~is_last]).tolist():
        is_token = (steps.target == token) & ~is_last
        if len(np.unique(steps.sequence[is_token])) < MIN_LINE_SHARE * len(steps.tokens):
            continue
        width = _first_number(steps, token)[steps.sequence] + 1
        is_line_end = (steps.number + 1) % width == 0
        if (is_token == is_line_end)[~is_last].all() and width.min() > 1 and (steps.number >= width).any():
            ends.append(token)
    return ends
