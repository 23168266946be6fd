"""A file of rows: prompts with their responses, one JSON object per line, read once into flat arrays."""

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import TaskFileError, unknown_name
from lengthwise.core.json_parsing import parse_json

ENDING = ".jsonl"
# Tokens that no row has: the task puts them behind every prompt and every response.
MARK, START, END = RESERVED = ("<mark>", "<start>", "end")
KEYS = ("prompt", "response", "coupling", "length")
SUCH_AS = '{"prompt": "a b", "response": "b a"}'
# Coupling numbers stay below this, so that those of the marks fit in beside them.
TOO_LARGE = 1 << 30


@dataclass(frozen=True, kw_only=True)
class JSONLTable:
    """Every row of a file: row i is ``tokens[starts[i] : starts[i + 1]]``, its prompt and behind it its response.

    ``symbols`` are the tokens' names. ``coupling``, where the file has one, has a number for each token.
    """

    symbols: tuple[str, ...]
    tokens: Int[np.ndarray, " tokens"]
    starts: Int[np.ndarray, " starts"]
    prompt_lengths: Int[np.ndarray, " rows"]
    lengths: Int[np.ndarray, " rows"]
    coupling: Int[np.ndarray, " tokens"] | None

    @cached_property
    def by_length(self) -> Mapping[int, Int[np.ndarray, " rows_of_length"]]:
        """The rows of each length that there is, shortest first."""
        order = np.argsort(self.lengths, kind="stable")
        found, first = np.unique(self.lengths[order], return_index=True)
        return dict(zip(found.tolist(), np.split(order, first[1:]), strict=True))

    @cached_property
    def distinct(self) -> Mapping[int, Int[np.ndarray, " rows_of_length"]]:
        """The rows of each length without those whose prompt and response another one before them has."""
        first: dict[tuple[int, int, bytes], int] = {}
        for row, (start, end) in enumerate(pairwise(self.starts.tolist())):
            key = (int(self.lengths[row]), int(self.prompt_lengths[row]), self.tokens[start:end].tobytes())
            first.setdefault(key, row)
        kept = np.fromiter(first.values(), dtype=np.int64)
        return {length: rows[np.isin(rows, kept)] for length, rows in self.by_length.items()}

    @cached_property
    def falls(self) -> bool:
        """Whether responses are read off downwards: the last number of each is the smallest of its row."""
        if self.coupling is None:
            return False
        last, first = self.coupling[self.starts[1:] - 1], self.starts[:-1]
        smallest, largest = np.minimum.reduceat(self.coupling, first), np.maximum.reduceat(self.coupling, first)
        return bool((last == smallest).all() and (last < largest).any())

    def with_prompt(self, prompt: Int[np.ndarray, " prompt"]) -> Int[np.ndarray, " rows_found"]:
        """The rows that have this prompt."""
        (rows,) = np.nonzero(self.prompt_lengths == len(prompt))
        return rows[(self.tokens[self.starts[rows, None] + np.arange(len(prompt))] == prompt).all(axis=1)]


def read_table(lines: Iterable[bytes], name: str, symbols: Sequence[str] | None = None) -> JSONLTable:
    """Read rows, line by line; ``TaskFileError`` names the file and the line of the first that is none.

    Tokens are numbered as they appear; with ``symbols``, those of a run, any other token is refused.
    """
    reader = _Reader(symbols)
    for number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        try:
            reader.add(line)
        except _MalformedError as error:
            raise TaskFileError(f"{name} line {number}: {error}") from None
    if not reader.lengths:
        raise TaskFileError(f"{name} has no row; write one in each line, such as {SUCH_AS}")
    return reader.table()


def is_record(text: str) -> bool:
    """Whether a text is a JSON object, and no tokens."""
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


class _MalformedError(Exception):
    """What is wrong with a row, and how to mend it."""


class _Reader:
    """Collects rows in arrays that grow."""

    def __init__(self, symbols: Sequence[str] | None) -> None:
        self.fixed = symbols is not None
        self.numbers = {symbol: number for number, symbol in enumerate(() if symbols is None else symbols)}
        self.tokens, self.coupling = array("i"), array("i")
        self.starts, self.prompt_lengths, self.lengths = array("q", [0]), array("i"), array("i")
        self.coupled: bool | None = None

    def add(self, line: bytes) -> None:
        row = _object_of(line)
        prompt, response = _words(row, "prompt"), _words(row, "response")
        coupling = _coupling(row, len(prompt), len(response))
        if self.coupled is None:
            self.coupled = coupling is not None
        elif self.coupled != (coupling is not None):
            others = "have one" if self.coupled else "have none"
            raise _MalformedError(
                f"the row has {'no' if self.coupled else 'a'} coupling and the rows before it {others}; "
                "give it in all rows or in none"
            )
        length = row.get("length", len(prompt))
        if type(length) is not int or not 1 <= length < TOO_LARGE:
            raise _MalformedError(
                f"length {_shown(length)} is no length; give a whole number from 1 on, or leave it out"
            )
        self.tokens.extend([self._number(word) for word in (*prompt, *response)])
        self.coupling.extend(coupling or ())
        self.starts.append(len(self.tokens))
        self.prompt_lengths.append(len(prompt))
        self.lengths.append(length)

    def _number(self, word: str) -> int:
        number = self.numbers.get(word)
        if number is None:
            if word in RESERVED:
                raise _MalformedError(
                    f"the token '{word}' is put behind every {'response' if word == END else 'prompt'} anyway; "
                    "leave it out or give it another name"
                )
            if self.fixed:
                raise _MalformedError(
                    f"the token '{word}' is none of the {len(self.numbers)} that the run was trained on; "
                    "leave out the row, or train on a file that has it"
                )
            number = self.numbers[word] = len(self.numbers)
        return number

    def table(self) -> JSONLTable:
        return JSONLTable(
            symbols=tuple(self.numbers),
            tokens=np.array(self.tokens),
            starts=np.array(self.starts, dtype=np.int64),
            prompt_lengths=np.array(self.prompt_lengths),
            lengths=np.array(self.lengths),
            coupling=np.array(self.coupling) if self.coupled else None,
        )


def _object_of(line: bytes) -> dict[str, Any]:
    try:
        row: dict[str, Any] = parse_json(line)
    except ValueError as error:
        raise _MalformedError(f"this is no row ({error}); write one JSON object such as {SUCH_AS}") from None
    for key in row:
        if key not in KEYS:
            raise _MalformedError(f"{unknown_name('key', key, KEYS)}; leave it out")
    return row


def _words(row: Mapping[str, Any], key: str) -> list[str]:
    """The tokens of a prompt or response: those of a list, or the words of a text."""
    if key not in row:
        raise _MalformedError(f'the row has no "{key}"; write one object such as {SUCH_AS}')
    words = row[key]
    if isinstance(words, str):
        words = words.split()
    elif not isinstance(words, list):
        raise _MalformedError(
            f"the {key} is {_shown(words)}; give a list of tokens, or a text with spaces between them"
        )
    for word in words:
        if not isinstance(word, str) or not word:
            raise _MalformedError(f"the {key} has the token {_shown(word)}; tokens are words, in quotes and not empty")
    if not words:
        raise _MalformedError(f"the {key} is empty; give it at least one token")
    return words


def _coupling(row: Mapping[str, Any], prompt: int, response: int) -> list[int] | None:
    coupling = row.get("coupling")
    if coupling is None:
        return None
    if not isinstance(coupling, list):
        raise _MalformedError(f"the coupling is {_shown(coupling)}; give a list of whole numbers")
    for number in coupling:
        if type(number) is not int or not 0 <= number < TOO_LARGE:
            raise _MalformedError(f"the coupling has {_shown(number)}; give whole numbers from 0 on")
    if len(coupling) != prompt + response:
        raise _MalformedError(
            f"the coupling has {len(coupling)} numbers; give {prompt + response}, one for each token of the prompt "
            f"({prompt}) and of the response ({response})"
        )
    return coupling


def _shown(value: Any) -> str:
    """A value as JSON writes it, or the beginning of it."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
