"""Task from a JSONL file with one prompt and response per line."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError, TaskFileError
from lengthwise.core.files import check_regular_file, read_file, write_atomically
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_table import (
    EXAMPLE_RECORD,
    MARK,
    RESERVED_TOKENS,
    START,
    SUFFIX,
    JSONLTable,
    is_json_object,
    parse_jsonl_records,
)
from lengthwise.tasks.task import Task, check_length_and_size, parse_symbols

# Name of the file with the token names in the run folder.
RUN_FILE = "rows.json"
# Number of response tokens for an unknown prompt, in addition to the length of the prompt.
EXTRA_RESPONSE_TOKENS = 64
BUILT_IN_LENGTHS, BUILT_IN_RECORDS, BUILT_IN_LETTERS = range(1, 21), 64, "abcdefgh"


@dataclass(frozen=True, kw_only=True)
class JSONLTask(Task):
    """Layout ``p_1 .. p_n <mark> <start> r_1 .. r_m end``: prompt and response of a record of ``file``.

    All records of a length have equal probability. The length is the number of prompt tokens, unless the record sets a
    ``length``. Without a file, the task reverses built-in strings of letters. ``digest`` is the SHA-256 of the file
    when the task was created. ``run_folder`` is the folder of a run whose token IDs the task uses; it is never saved.

    In a coupling, a response token has the same number as the prompt tokens that it depends on. The ID of each token
    from ``<start>`` on is the number of the next token, so the required prompt tokens are at ID distance 0. The last
    token has the ID of ``<mark>``, an extra number. This number is below all other numbers if the coupling of the
    responses descends, and above all other numbers otherwise.
    """

    file: str | None = None
    digest: str | None = None
    run_folder: str | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "rows"
    summary: ClassVar[str] = "prompts and responses from a custom file: --task FILE.jsonl"
    separators: ClassVar[tuple[str, ...]] = (MARK, START)

    def __post_init__(self) -> None:
        check_types(self)
        if self.file is None:
            return
        # The run may be loaded from another working directory.
        object.__setattr__(self, "file", str(Path(self.file).absolute()))
        if self.digest is None:
            object.__setattr__(self, "digest", _digest(self.file))

    def __getstate__(self) -> dict[str, Any]:
        # Omit the cached table, because a worker process reads the file again.
        return {setting.name: getattr(self, setting.name) for setting in fields(self)}

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Tokens of all records in order of appearance, then ``<mark>``, ``<start>`` and ``end``."""
        return (*self._symbols, *RESERVED_TOKENS)

    @property
    def available_lengths(self) -> tuple[int, ...]:
        """Lengths with records, in increasing order."""
        return tuple(self._table.records_by_length)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample records uniformly with replacement."""
        check_length_and_size(self.name, length, size)
        record_indexes = self._select_records(length, self._table.records_by_length)
        return self._lay_out(record_indexes[rng.integers(0, len(record_indexes), size=size)])

    def num_records(self, length: int) -> int:
        """Return the number of distinct records of a length; equal prompts with equal responses count once."""
        return len(self._select_records(length, self._table.unique_records_by_length))

    def num_rows(self, length: int) -> int:
        """Return the number of records of a length in the file, with repeated ones."""
        return len(self._select_records(length, self._table.records_by_length))

    def records_at(self, length: int, indices: Int[np.ndarray, " batch"]) -> Examples:
        """Return the distinct records of a length at these indexes in file order."""
        return self._lay_out(self._select_records(length, self._table.unique_records_by_length)[indices])

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse tokens with spaces between them, or a record in the format of the file.

        For tokens, the first record with this prompt provides the answer and the coupling; otherwise they are unknown.
        """
        if is_json_object(prompt):
            table = parse_jsonl_records([prompt.encode()], "the prompt", self._symbols)
            return build_examples_from_records(table, np.array([0]), self._metadata["falls"])
        words = prompt.split()
        words = words[:-2] if words[-2:] == [MARK, START] else words
        example = " ".join(self._symbols[:3])
        expected_format = f"tokens of its file with spaces between them, such as {example}"
        tokens = parse_symbols(words, self._symbols, self.name, expected_format)
        # A run can be used without the file.
        if self.file is None or Path(self.file).exists():
            record_indexes = self._table.find_records_with_prompt(tokens)
            if len(record_indexes):
                return self._lay_out(record_indexes[:1])
        mark_tokens, end_token = len(self._symbols) + np.arange(2), len(self._symbols) + 2
        response_tokens = np.full(EXTRA_RESPONSE_TOKENS + len(tokens), end_token)
        padded = np.concatenate([tokens, mark_tokens, response_tokens])[None]
        return Examples.from_unanswered_prompt(padded, len(tokens) + 2)

    def placeholder_example(self) -> Examples:
        """Return a record with one prompt token and one response token, and a coupling if the run has a coupling."""
        falls = self._metadata["falls"]
        record = {"prompt": self._symbols[:1], "response": self._symbols[:1], "coupling": [[0, 0]] * len(falls) or None}
        table = parse_jsonl_records([json.dumps(record).encode()], self._label, self._symbols)
        return build_examples_from_records(table, np.array([0]), falls)

    def files_to_save(self) -> Mapping[str, bytes]:
        """Return the name and content of a file with the token names, and the presence and direction of a coupling."""
        return {RUN_FILE: json.dumps(self._metadata).encode() + b"\n"}

    def data_source(self) -> Mapping[str, str]:
        """Return the path of the file and the SHA-256 of its content."""
        return {} if self.file is None or self.digest is None else {"file": self.file, "file_sha256": self.digest}

    def from_run_folder(self, folder: Path) -> "JSONLTask":
        """Return a copy of the task with the token IDs of a run."""
        if not (folder / RUN_FILE).is_file():
            raise TaskFileError(
                f"{folder} was not trained on a task file (it has no {RUN_FILE}); use the task of the run"
            )
        task = replace(self, run_folder=str(folder))
        # Raises an error if the stored file is damaged.
        _ = task._metadata
        return task

    def read(self) -> "JSONLTask":
        """Parse the file and return the task; raise ``TaskFileError`` for an invalid file."""
        _ = self._table
        return self

    @cached_property
    def _metadata(self) -> Mapping[str, Any]:
        """Token names, and the direction of each coupling level (``falls``)."""
        if self.run_folder is None:
            return {"symbols": self._table.symbols, "falls": self._table.descending_coupling_levels}
        return _read_metadata(Path(self.run_folder) / RUN_FILE)

    @property
    def _symbols(self) -> tuple[str, ...]:
        return self._metadata["symbols"]

    @cached_property
    def _table(self) -> JSONLTable:
        symbols = None if self.run_folder is None else self._symbols
        if self.file is None:
            return parse_jsonl_records(_built_in_lines(), self._label, symbols)
        if _digest(self.file) != self.digest:
            raise TaskFileError(
                f"{self._label} has changed since the task was created; restore the file, or pass it to --task again"
            )
        with open(self.file, "rb") as lines:
            return parse_jsonl_records(lines, self._label, symbols)

    def _select_records(self, length: int, by_length: Mapping[int, Any]) -> Int[np.ndarray, " records_of_length"]:
        records: np.ndarray | None = by_length.get(length)
        if records is None:
            raise SettingError(f"{self._label} has no records of length {length}; use one of {self._length_ranges}")
        return records

    @property
    def _label(self) -> str:
        return "the built-in task file" if self.file is None else self.file

    @property
    def _length_ranges(self) -> str:
        groups = groupby(enumerate(self.available_lengths), lambda pair: pair[1] - pair[0])
        ranges = [[length for _, length in group] for _, group in groups]
        texts = [f"{lengths[0]}-{lengths[-1]}" if len(lengths) > 1 else str(lengths[0]) for lengths in ranges]
        return ", ".join(texts if len(texts) <= 12 else [*texts[:6], "...", *texts[-6:]])

    def _lay_out(self, record_indexes: Int[np.ndarray, " batch"]) -> Examples:
        return build_examples_from_records(self._table, record_indexes, self._metadata["falls"])


def build_examples_from_records(
    table: JSONLTable, records: Int[np.ndarray, " batch"], descending_coupling_levels: Sequence[bool]
) -> Examples:
    """Return the examples ``p_1 .. p_n <mark> <start> r_1 .. r_m end`` of records.

    ``descending_coupling_levels`` are the levels on which ``<mark>`` has the smallest number.
    """
    record_start, mark_index = table.starts[records, None], table.prompt_lengths[records, None]
    last_response_index = table.starts[records + 1, None] - record_start + 1
    token_index = np.arange(int(last_response_index.max()) + 2)
    is_prompt = token_index < mark_index
    is_response = (token_index > mark_index + 1) & (token_index <= last_response_index)
    is_record_token = is_prompt | is_response
    table_index = record_start + np.where(is_prompt, token_index, token_index - 2)
    tokens = np.full(is_record_token.shape, len(table.symbols) + 2)
    tokens[is_record_token] = table.tokens[table_index[is_record_token]]
    tokens[token_index == mark_index] -= 2
    tokens[token_index == mark_index + 1] -= 1
    coupling = None
    if table.coupling is not None:
        # From the start token on, each token has the number of the next token.
        has_number = (token_index != mark_index) & (token_index < last_response_index)
        number_index = (record_start + np.where(is_prompt, token_index, token_index - 1))[has_number]
        coupling = np.zeros((len(table.coupling), *has_number.shape), dtype=np.int64)
        for level, (numbers, record_numbers) in enumerate(zip(coupling, table.coupling, strict=True)):
            # Increase the numbers by one, so that the mark can have a smaller number.
            numbers[has_number] = record_numbers[number_index] + 1
            number_above = numbers.max(axis=1, keepdims=True) + 1
            if table.added_coupling is not None:
                mark_number, end_number = np.split(table.added_coupling[level, records] + 1, 2, axis=1)
                number_above = np.maximum(number_above - 1, np.maximum(mark_number, end_number))
            elif descending_coupling_levels[level]:
                smallest = numbers.min(axis=1, keepdims=True, where=has_number, initial=np.iinfo(np.int64).max)
                mark_number = end_number = smallest - 1
            else:
                mark_number = end_number = number_above
            # The last response token has the number of the end token.
            added_numbers = np.where(token_index == last_response_index, end_number, mark_number)
            added_numbers = np.where(token_index > last_response_index, number_above + 1, added_numbers)
            numbers[~has_number] = added_numbers[~has_number]
    return Examples(
        tokens=tokens,
        prompt_length=mark_index[:, 0].astype(np.int64) + 2,
        is_answer=is_response | (token_index == last_response_index + 1),
        coupling=coupling,
    )


def write_records(
    path: Path,
    groups: Iterable[tuple[int, Examples]],
    vocabulary: Sequence[str],
    *,
    num_layout_tokens: int = len((MARK, START)),
) -> None:
    """Write examples of each length as records without a coupling, except the last tokens of their prompts."""
    names, records = np.array(vocabulary, dtype=object), []
    for length, examples in groups:
        for prompt, response in examples.prompts_and_responses():
            words = names[prompt[: len(prompt) - num_layout_tokens]].tolist()
            records.append({"prompt": words, "response": names[response].tolist(), "length": length})
    write_json_lines(path, records)


def write_json_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write one JSON object per line."""
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in records).encode())


def is_task_file(name: str) -> bool:
    """Return True if the name of a task is the path of a JSONL file."""
    return name.endswith(SUFFIX)


def wrong_task_file_error(name: str) -> TaskFileError:
    """Return the error for a file of another format, such as a table of a spreadsheet program."""
    advice = f"write one record per line, such as {EXAMPLE_RECORD}, to a file whose name ends in {SUFFIX}"
    return TaskFileError(f"'{name}' is not a task file; {advice}")


def _read_metadata(path: Path) -> Mapping[str, Any]:
    try:
        metadata = parse_json(read_file(path))
        symbols, falls = tuple(metadata["symbols"]), metadata["falls"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TaskFileError(f"{path} cannot be read ({error!r}); train the run again") from None
    has_flags = isinstance(falls, list) and all(type(is_falling) is bool for is_falling in falls)
    if not all(isinstance(symbol, str) for symbol in symbols) or not has_flags:
        raise TaskFileError(
            f"{path} cannot be read (it has invalid token names or an invalid coupling entry); train the run again"
        )
    return {"symbols": symbols, "falls": tuple(falls)}


def _digest(file: str) -> str:
    try:
        check_regular_file(file)
        with open(file, "rb") as task_file:
            return hashlib.file_digest(task_file, "sha256").hexdigest()
    except OSError as error:
        raise TaskFileError(
            f"{file} cannot be read ({error.strerror}); pass the path of a readable file to --task"
        ) from None


def _built_in_lines() -> Iterator[bytes]:
    rng = random_stream(0, "own rows")
    for length in BUILT_IN_LENGTHS:
        for _ in range(BUILT_IN_RECORDS):
            prompt = [BUILT_IN_LETTERS[index] for index in rng.integers(0, len(BUILT_IN_LETTERS), size=length)]
            numbers = list(range(1, length + 1))
            record = {"prompt": prompt, "response": prompt[::-1], "coupling": numbers + numbers[::-1]}
            yield json.dumps(record).encode()
