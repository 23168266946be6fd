"""Parser of task files, which have one JSON object with a prompt and a response per line."""

import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import TaskFileError, unknown_name_error
from lengthwise.core.json_parsing import parse_json

SUFFIX = ".jsonl"
# Tokens that the task adds after each prompt and response; records must not contain them.
MARK, START, END = RESERVED_TOKENS = ("<mark>", "<start>", "end")
RECORD_KEYS = ("prompt", "response", "coupling", "length")
EXAMPLE_RECORD = '{"prompt": "a b", "response": "b a"}'
# Upper limit of coupling numbers and lengths, with room for the coupling numbers of the added tokens.
NUMBER_LIMIT = 1 << 30


@dataclass(frozen=True, kw_only=True)
class JSONLTable:
    """Records of a task file; ``tokens[starts[i] : starts[i + 1]]`` has the prompt and the response of record i.

    ``symbols`` has the names of the tokens. ``coupling`` has one number per level and token; it is None without a
    coupling. ``added_coupling`` has the numbers of ``<mark>`` and ``end``, if the records set them.
    """

    symbols: tuple[str, ...]
    tokens: Int[np.ndarray, " tokens"]
    starts: Int[np.ndarray, " starts"]
    prompt_lengths: Int[np.ndarray, " records"]
    lengths: Int[np.ndarray, " records"]
    coupling: Int[np.ndarray, "level tokens"] | None
    added_coupling: Int[np.ndarray, "level records 2"] | None = None

    @cached_property
    def records_by_length(self) -> Mapping[int, Int[np.ndarray, " records_of_length"]]:
        """Record indexes per length, in order of increasing length."""
        record_order = np.argsort(self.lengths, kind="stable")
        unique_lengths, first_order_indexes = np.unique(self.lengths[record_order], return_index=True)
        return dict(zip(unique_lengths.tolist(), np.split(record_order, first_order_indexes[1:]), strict=True))

    @cached_property
    def unique_records_by_length(self) -> Mapping[int, Int[np.ndarray, " records_of_length"]]:
        """Record indexes per length without repeated pairs of prompt and response."""
        first_records: dict[tuple[int, int, bytes], int] = {}
        for index, (start, stop) in enumerate(pairwise(self.starts.tolist())):
            tokens = self.tokens[start:stop].tobytes()
            first_records.setdefault((int(self.lengths[index]), int(self.prompt_lengths[index]), tokens), index)
        unique = np.fromiter(first_records.values(), dtype=np.int64)
        return {length: records[np.isin(records, unique)] for length, records in self.records_by_length.items()}

    @cached_property
    def descending_coupling_levels(self) -> tuple[bool, ...]:
        """Levels on which ``<mark>`` has a number below all others.

        Without a number in the records, ``<mark>`` is below if the smallest number of every record is the last.
        """
        if self.coupling is None:
            return ()
        if self.added_coupling is not None:
            return tuple((self.added_coupling[:, :, 0] == 0).all(axis=1).tolist())
        last, record_starts = self.coupling[:, self.starts[1:] - 1], self.starts[:-1]
        smallest = np.minimum.reduceat(self.coupling, record_starts, axis=1)
        largest = np.maximum.reduceat(self.coupling, record_starts, axis=1)
        return tuple(((last == smallest).all(axis=1) & (last < largest).any(axis=1)).tolist())

    def find_records_with_prompt(self, prompt: Int[np.ndarray, " prompt"]) -> Int[np.ndarray, " records_with_prompt"]:
        """Return the indexes of the records with this prompt."""
        (records,) = np.nonzero(self.prompt_lengths == len(prompt))
        prompts = self.tokens[self.starts[records, None] + np.arange(len(prompt))]
        return records[(prompts == prompt).all(axis=1)]


def parse_jsonl_records(lines: Iterable[bytes], name: str, symbols: Sequence[str] | None = None) -> JSONLTable:
    """Parse records; raise ``TaskFileError`` with the file and the line of the first invalid record.

    Token IDs follow the order of appearance or, for a trained run, of its ``symbols``, which must include every token.
    """
    builder = _TableBuilder(symbols)
    for line_number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        try:
            builder.add_record(line)
        except _RecordError as error:
            raise TaskFileError(f"{name} line {line_number}: {error}") from None
    if not builder.lengths:
        raise TaskFileError(f"{name} has no records; write one per line, such as {EXAMPLE_RECORD}")
    return builder.build()


def is_json_object(text: str) -> bool:
    """Return True if a prompt is a JSON object instead of a list of tokens."""
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


class _RecordError(Exception):
    """Error for an invalid record of a task file."""


class _TableBuilder:
    def __init__(self, symbols: Sequence[str] | None) -> None:
        self.has_fixed_symbols = symbols is not None
        self.token_ids = {symbol: token_id for token_id, symbol in enumerate(symbols or ())}
        self.tokens = array("i")
        # Numbers of the records' tokens, and those of <mark> and end, of each level.
        self.levels: list[array[int]] = []
        self.added: list[array[int]] = []
        self.starts, self.prompt_lengths, self.lengths = array("q", [0]), array("i"), array("i")
        # Number of coupling levels, and True if the coupling has numbers for <mark> and end.
        self.form: tuple[int, bool] | None = None

    def add_record(self, line: bytes) -> None:
        record = _parse_record(line)
        prompt, response = _parse_tokens(record, "prompt"), _parse_tokens(record, "response")
        coupling = _parse_coupling(record, len(prompt), len(response))
        self._check_form(coupling, len(prompt) + len(response))
        length = record.get("length", len(prompt))
        if type(length) is not int or not 1 <= length < NUMBER_LIMIT:
            raise _RecordError(f"invalid length {_excerpt(length)}; use a positive integer, or leave the length out")
        self.tokens.extend([self._token_id(word) for word in (*prompt, *response)])
        for level, added, numbers in zip(self.levels, self.added, coupling, strict=True):
            if len(numbers) > len(prompt) + len(response):
                added.extend((numbers.pop(len(prompt)), numbers.pop()))
            level.extend(numbers)
        self.starts.append(len(self.tokens))
        self.prompt_lengths.append(len(prompt))
        self.lengths.append(length)

    def _check_form(self, coupling: list[list[int]], num_tokens: int) -> None:
        form = (len(coupling), bool(coupling) and len(coupling[0]) > num_tokens)
        if self.form is None:
            self.form = form
            self.levels, self.added = ([array("i") for _ in coupling] for _ in range(2))
        elif bool(self.form[0]) != bool(coupling):
            problem = f"the record has {'a' if coupling else 'no'} coupling, unlike the records before it"
            raise _RecordError(f"{problem}; add a coupling to all records or remove it from all")
        elif form != self.form:
            forms = f"{_describe_form(form)}, but {_describe_form(self.form)} in the records before it"
            raise _RecordError(f"the coupling has {forms}; use the same form in all records")

    def _token_id(self, word: str) -> int:
        if word not in self.token_ids:
            if word in RESERVED_TOKENS:
                record_key = "response" if word == END else "prompt"
                raise _RecordError(
                    f"the task adds the token '{word}' to every {record_key}; remove or rename this token in the record"
                )
            if self.has_fixed_symbols:
                raise _RecordError(
                    f"the token '{word}' is not one of the {len(self.token_ids)} tokens of the run; "
                    "remove the record, or train on a file with this token"
                )
            self.token_ids[word] = len(self.token_ids)
        return self.token_ids[word]

    def build(self) -> JSONLTable:
        added = np.array(self.added, dtype=np.int64).reshape(len(self.levels), -1, 2) if self.levels else None
        return JSONLTable(
            symbols=tuple(self.token_ids),
            tokens=np.array(self.tokens),
            starts=np.array(self.starts, dtype=np.int64),
            prompt_lengths=np.array(self.prompt_lengths),
            lengths=np.array(self.lengths),
            coupling=np.array(self.levels, dtype=np.int64) if self.levels else None,
            added_coupling=added if added is not None and added.size else None,
        )


def _parse_record(line: bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = parse_json(line)
    except UnicodeDecodeError:
        raise _RecordError("the text is not in UTF-8; save the file with the encoding UTF-8") from None
    except ValueError as error:
        raise _RecordError(
            f"invalid record ({error}); write one JSON object per line, such as {EXAMPLE_RECORD}"
        ) from None
    for key in record:
        if key not in RECORD_KEYS:
            raise _RecordError(f"{unknown_name_error('key', key, RECORD_KEYS)}; rename or remove the key")
    return record


def _parse_tokens(record: Mapping[str, Any], key: str) -> list[str]:
    if key not in record:
        raise _RecordError(f'the record has no "{key}"; write one object such as {EXAMPLE_RECORD}')
    words = record[key]
    if isinstance(words, str):
        words = words.split()
    elif not isinstance(words, list):
        raise _RecordError(f"invalid {key} {_excerpt(words)}; use a list of tokens, or a string")
    for word in words:
        if not isinstance(word, str) or not word:
            raise _RecordError(f"invalid token {_excerpt(word)} in the {key}; use non-empty strings")
    if not words:
        raise _RecordError(f"the {key} is empty; write at least one token")
    return words


def _parse_coupling(record: Mapping[str, Any], num_prompt_tokens: int, num_response_tokens: int) -> list[list[int]]:
    """Return the numbers by level; an empty list without a coupling."""
    coupling = record.get("coupling")
    if coupling is None:
        return []
    if not isinstance(coupling, list):
        raise _RecordError(f"invalid coupling {_excerpt(coupling)}; use a list of integers, or one list per level")
    levels = coupling if coupling and isinstance(coupling[0], list) else [coupling]
    num_tokens = num_prompt_tokens + num_response_tokens
    for level in levels:
        _check_level(level)
        if len(level) not in (num_tokens, num_tokens + 2):
            raise _RecordError(
                f"the coupling has {len(level)} numbers; write {num_tokens}, one for each token of the prompt "
                f"({num_prompt_tokens}) and of the response ({num_response_tokens}), or {num_tokens + 2} "
                "with numbers for <mark> and end"
            )
        if len(level) != len(levels[0]):
            raise _RecordError(
                f"the levels of the coupling have {len(levels[0])} and {len(level)} numbers; use the same number"
            )
    return levels


def _check_level(level: object) -> None:
    if not isinstance(level, list):
        raise _RecordError(f"invalid coupling level {_excerpt(level)}; use a list of integers for every level")
    for entry in level:
        if type(entry) is not int or not 0 <= entry < NUMBER_LIMIT:
            raise _RecordError(
                f"invalid coupling number {_excerpt(entry)}; use an integer from 0 to {NUMBER_LIMIT - 1}"
            )


def _describe_form(form: tuple[int, bool]) -> str:
    levels = "1 level" if form[0] == 1 else f"{form[0]} levels"
    return f"{levels} {'with' if form[1] else 'without'} numbers for <mark> and end"


def _excerpt(json_value: Any) -> str:
    json_text = json.dumps(json_value)
    return json_text if len(json_text) <= 40 else f"{json_text[:40]}..."
