"""Answers of many examples as one table, with one row (step) per answer token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.examples import Examples

# Token of a step without a token at an address, for example after the end of the prompt.
NO_TOKEN = -1
# Number of steps for unknown answers: as many as answers can take turns, since a step without a pointer points at what
# a later one needs.
NUM_UNKNOWN_STEPS = 3
# Largest number of cells of the table of all tokens.
MAX_CELLS = 1 << 24
# Sides of a context token, and no context token.
BEFORE, AFTER, ANYWHERE = "before", "after", "anywhere"


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

    def first_match(
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
        wanted = self.sequence * self.num_tokens + key
        place = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
        return (
            np.where((key >= 0) & (pairs[place] == wanted), columns[place], NO_TOKEN)
            if len(pairs)
            else np.full_like(key, NO_TOKEN)
        )

    def where(self, mask: np.ndarray) -> "AnswerSteps":
        """Return the steps of a mask, with all sequences."""
        return AnswerSteps(
            tokens=self.tokens,
            prompt_lengths=self.prompt_lengths,
            lengths=self.lengths,
            sequence=self.sequence[mask],
            number=self.number[mask],
            _occurrences=self._occurrences,
        )


def answer_steps(examples: Examples, length: int = 0) -> AnswerSteps:
    """Return the answers of all examples, which have this length; of unknown answers, the first steps."""
    seq = np.arange(examples.tokens.shape[1])
    num_unknown = np.minimum(NUM_UNKNOWN_STEPS, len(seq) - examples.prompt_length)
    counts = np.where(examples.is_answer.any(axis=1), examples.response_end + 1 - examples.prompt_length, num_unknown)
    is_known = seq < (examples.prompt_length + counts)[:, None]
    sequence = np.repeat(np.arange(len(examples)), counts)
    return AnswerSteps(
        tokens=np.where(is_known, examples.tokens, NO_TOKEN),
        prompt_lengths=examples.prompt_length,
        lengths=np.full(len(examples), length),
        sequence=sequence,
        number=np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts),
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
    sequence = np.repeat(np.arange(len(distinct)), counts)
    return AnswerSteps(
        tokens=tokens[distinct],
        prompt_lengths=np.concatenate([part.prompt_lengths for part in parts])[distinct],
        lengths=np.concatenate([part.lengths for part in parts])[distinct],
        sequence=sequence,
        number=np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts),
    )
