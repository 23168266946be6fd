"""Answers of many examples as one table, with one row (step) per answer token, and their division into phases."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.examples import Examples

# Token of a step without a token at a locator, for example after the end of the prompt.
NO_TOKEN = -1
# Number of steps for unknown answers: as many as answers can take turns, since a step without a pointer points at what
# a later one needs.
NUM_UNKNOWN_STEPS = 3
# Largest number of cells of the table of all tokens.
MAX_CELLS = 1 << 24
# Sides of a context token, and no context token.
BEFORE, AFTER, ANYWHERE = "before", "after", "anywhere"
ONE, FIRST_APART = "one", "first"
# Divisions into two parts; the first part has as many answers as the prompt has tokens, or half as many.
SPLITS = ("split whole", "split half down", "split half up")
# Largest number of answers that take turns, in a response without and with lines.
MAX_PERIOD, MAX_LINE_PERIOD = 3, 2
# Smallest share of the sequences that have the last token of a line in their response.
MIN_LINE_SHARE = 0.5
# End of the messages for texts that no found coupling has.
ADVICE = "use a coupling that lengthwise couple has found"


@dataclass(frozen=True, kw_only=True)
class AnswerSteps:
    """Answer tokens of distinct sequences, including the end tokens.

    ``tokens`` has the sequences, padded with ``NO_TOKEN``. ``sequence`` and ``number`` are the sequence and the place
    of each answer in its response, counted from 0.
    """

    tokens: Int[np.ndarray, "sequence seq"]
    prompt_lengths: Int[np.ndarray, " sequence"]
    lengths: Int[np.ndarray, " sequence"]
    sequence: Int[np.ndarray, " step"]
    number: Int[np.ndarray, " step"]
    _occurrences: dict[tuple[str, int, int], tuple[Int[np.ndarray, " pair"], Int[np.ndarray, " pair"]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def num_tokens(self) -> int:
        """Number of token IDs, from 0 to the largest one."""
        return int(self.tokens.max()) + 1

    @cached_property
    def is_prompt(self) -> Bool[np.ndarray, "sequence seq"]:
        """True for prompt tokens before the start token, which a rule cannot read."""
        return np.arange(self.tokens.shape[1]) < self.prompt_lengths[:, None] - 1

    @property
    def prompt_length(self) -> Int[np.ndarray, " step"]:
        """Number of prompt tokens of each step's sequence."""
        return self.prompt_lengths[self.sequence]

    @property
    def length(self) -> Int[np.ndarray, " step"]:
        """Length of each step's example."""
        return self.lengths[self.sequence]

    @property
    def target(self) -> Int[np.ndarray, " step"]:
        """Answer token of each step."""
        return self.token_at(self.prompt_length + self.number)

    @cached_property
    def is_end(self) -> Bool[np.ndarray, " step"]:
        """True for the last answer of each sequence, which is its end token."""
        return np.diff(self.sequence, append=-1) != 0

    def token_at(self, index: Int[np.ndarray, " step"]) -> Int[np.ndarray, " step"]:
        """Return the token at an index of each step's sequence; ``NO_TOKEN`` for a negative index."""
        return np.where(index < 0, NO_TOKEN, self.tokens[self.sequence, np.maximum(index, 0)])

    def find_first_match(
        self, key: Int[np.ndarray, " step"], side: str, context: int, start: int = 0
    ) -> Int[np.ndarray, " step"]:
        """Return the first index from ``start`` on of a token in the prompt of each step; ``NO_TOKEN`` without one.

        Only tokens directly before or after the token ``context`` count, unless ``side`` is ``ANYWHERE``.
        """
        if (side, context, start) not in self._occurrences:
            matches, is_context = self.is_prompt & (np.arange(self.tokens.shape[1]) >= start), self.tokens == context
            if side == BEFORE:
                matches = matches & np.pad(is_context, ((0, 0), (0, 1)))[:, 1:]
            elif side == AFTER:
                matches = matches & np.pad(is_context, ((0, 0), (1, 0)))[:, :-1]
            rows, columns = np.nonzero(matches)
            # A table of all sequences and tokens would be too large.
            pairs, first = np.unique(rows * self.num_tokens + self.tokens[rows, columns], return_index=True)
            self._occurrences[side, context, start] = pairs, columns[first]
        pairs, columns = self._occurrences[side, context, start]
        if not len(pairs):
            return np.full_like(key, NO_TOKEN)
        wanted = self.sequence * self.num_tokens + key
        place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        return np.where((key >= 0) & (pairs[place] == wanted), columns[place], NO_TOKEN)

    def select(self, mask: np.ndarray) -> "AnswerSteps":
        """Return the steps of a mask, with all sequences."""
        return replace(self, sequence=self.sequence[mask], number=self.number[mask])


def build_answer_steps(examples: Examples, length: int = 0) -> AnswerSteps:
    """Return the answers of all examples, which have this length; of unknown answers, the first steps."""
    seq = np.arange(examples.tokens.shape[1])
    num_unknown = np.minimum(NUM_UNKNOWN_STEPS, len(seq) - examples.prompt_length)
    counts = np.where(examples.is_answer.any(axis=1), examples.response_end + 1 - examples.prompt_length, num_unknown)
    is_known = seq < (examples.prompt_length + counts)[:, None]
    return AnswerSteps(
        tokens=np.where(is_known, examples.tokens, NO_TOKEN),
        prompt_lengths=examples.prompt_length,
        lengths=np.full(len(examples), length),
        sequence=np.repeat(np.arange(len(examples)), counts),
        number=_count_from_0(counts),
    )


def join_steps(parts: Sequence[AnswerSteps]) -> AnswerSteps:
    """Return the answers of all distinct sequences; a repeated sequence would confirm any dependence."""
    seq, num_sequences = max(part.tokens.shape[1] for part in parts), sum(len(part.tokens) for part in parts)
    if seq * num_sequences > MAX_CELLS:
        raise SettingError(
            f"a search in {num_sequences:,} examples of up to {seq:,} tokens is too large; leave out long examples "
            "with --lengths"
        )
    padded = [
        np.pad(part.tokens, ((0, 0), (0, seq - part.tokens.shape[1])), constant_values=NO_TOKEN) for part in parts
    ]
    tokens = np.concatenate(padded)
    _, distinct = np.unique(tokens, axis=0, return_index=True)
    distinct.sort()
    counts = np.concatenate([np.bincount(part.sequence, minlength=len(part.tokens)) for part in parts])[distinct]
    return AnswerSteps(
        tokens=tokens[distinct],
        prompt_lengths=np.concatenate([part.prompt_lengths for part in parts])[distinct],
        lengths=np.concatenate([part.lengths for part in parts])[distinct],
        sequence=np.repeat(np.arange(len(distinct)), counts),
        number=_count_from_0(counts),
    )


def _count_from_0(counts: Int[np.ndarray, " sequence"]) -> Int[np.ndarray, " step"]:
    """Return the number of each step in its sequence."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicAnswers:
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

    def select(self, mask: np.ndarray) -> "PeriodicAnswers":
        """Return the phases of the steps of a mask, or of their indexes."""
        fields = ("phase", "place", "line", "line_width")
        return replace(self, **{name: getattr(self, name)[mask] for name in fields})


def iter_phase_divisions(steps: AnswerSteps) -> Iterator[tuple[str, ...]]:
    """Yield groups of divisions of the answers into phases, from simple to complex; those of a group compete."""
    yield (ONE,)
    yield (FIRST_APART,)
    yield SPLITS
    periods = tuple(f"period {period}" for period in range(2, MAX_PERIOD + 1))
    lines = [f"lines {token} {period}" for token in _line_ends(steps) for period in range(1, MAX_LINE_PERIOD + 1)]
    if lines:
        # With lines, a wrong period can explain most answers, so all of these divisions compete.
        yield (*periods, *lines)
    else:
        yield from ((period,) for period in periods)


def count_phases(division: str) -> int:
    """Return the number of phases of a division that pointers can follow; raise ``SettingError`` for another text."""
    numbers = (
        {ONE: 1, FIRST_APART: 2}
        | dict.fromkeys(SPLITS, 2)
        | {f"period {period}": period for period in range(2, MAX_PERIOD + 1)}
    )
    if division not in numbers:
        raise SettingError(f"invalid division '{division}' of a found coupling; {ADVICE}")
    return numbers[division]


def divide_into_phases(steps: AnswerSteps, division: str) -> PeriodicAnswers:
    """Return the phases of a division.

    Divisions are ``one``, ``first`` (the first answer apart), those of ``SPLITS``, ``period N`` (N answers take turns),
    and ``lines TOKEN N`` (lines that end with a token, the first line apart, with N answers that take turns in each
    line).
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
    elif division in SPLITS:
        # The last two prompt tokens of every task are no content.
        content, share = steps.prompt_length - 2, division.removeprefix("split ")
        first = content if share == "whole" else (content + (share == "half up")) // 2
        names = (f"answers 1 to {'n' if share == 'whole' else 'n / 2'} of a prompt with n tokens", "every later answer")
        phase = (number >= first).astype(number.dtype)
        place = number - phase * first
    elif kind == "period":
        period = int(parts[0])
        names, phase, place = _turns(period), number % period, number // period
    return PeriodicAnswers(division=division, names=names, phase=phase, place=place, line=zeros, line_width=zeros)


def _divide_lines(steps: AnswerSteps, division: str, *, token: int, period: int) -> PeriodicAnswers:
    width = np.maximum(_first_number(steps, token) + 1, 1)[steps.sequence]
    line, column = steps.number // width, steps.number % width
    turns = _turns(period) if period > 1 else ("every answer",)
    return PeriodicAnswers(
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
    numbers[steps.sequence[steps.is_end]] = steps.number[steps.is_end]
    is_token = steps.target == token
    np.minimum.at(numbers, steps.sequence[is_token], steps.number[is_token])
    return numbers


def _line_ends(steps: AnswerSteps) -> list[int]:
    """Return the tokens that divide every response into lines of equal width; the last answer can replace one."""
    is_last, ends = steps.is_end, []
    for token in np.unique(steps.target[~is_last]).tolist():
        is_token = (steps.target == token) & ~is_last
        if len(np.unique(steps.sequence[is_token])) < MIN_LINE_SHARE * len(steps.tokens):
            continue
        width = _first_number(steps, token)[steps.sequence] + 1
        is_line_end = (steps.number + 1) % width == 0
        if (is_token == is_line_end)[~is_last].all() and width.min() > 1 and (steps.number >= width).any():
            ends.append(token)
    return ends
