"""Tasks: their protocols, and functions for their sizes, prompts, lengths and fields in result rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Integer

from lengthwise.core.devices import check_memory
from lengthwise.core.errors import PromptError, SettingError
from lengthwise.tasks.examples import Examples

# Kinds of knowledge in the sequences of a task, for the column ``given`` of result tables.
SCRATCHPAD, INDEX_HINTS = "scratchpad", "index hints"
DIGITS = tuple("0123456789")
# Number of lengths in an evaluation without explicit lengths.
MAX_NUM_LENGTHS = 12
# Minimum memory per token of an example in bytes: tokens, coupling and intermediate arrays.
BYTES_PER_TOKEN = 32


@runtime_checkable
class Task(Protocol):
    """Family of sequences with one distribution per length.

    ``length`` is the size of the input (bits, digits, symbols), not the number of tokens. The same generator state and
    ``version`` always give the same examples. A subclass must define ``name``, ``vocabulary``, ``separators``,
    ``sample`` and ``example_from_prompt``; constants can be class attributes.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    version: ClassVar[int] = 1

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Symbols in the order of their token IDs."""

    @property
    def separators(self) -> tuple[str, ...]:
        """Symbols that end a segment; the response follows the last separator."""

    @property
    def given(self) -> tuple[str, ...]:
        """Knowledge beyond the training data, for the column ``given``: ``scratchpad`` or ``index hints``."""
        return ()

    @property
    def min_length(self) -> int:
        """Smallest length with examples."""
        return 1

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample ``size`` sequences; raise ``SettingError`` if ``length`` is below ``min_length``."""

    def example_from_prompt(self, prompt: str) -> Examples:
        """Return one example with this prompt and its correct answer; raise ``PromptError`` for an invalid prompt."""

    def variants(self) -> Mapping[str, "Task"]:
        """Return variants of the task for evaluation by name, with the same vocabulary; by default none."""
        return {}

    def curriculum_stages(self) -> Sequence["Task"]:
        """Return tasks of increasing difficulty for a curriculum, which end with the task itself; by default none."""
        return ()

    def data_source(self) -> Mapping[str, str]:
        """Return the path and the SHA-256 digest of the user file with the examples; by default there is no file."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedDocument:
    """Token IDs of a named text, or of the part of a text that starts at token index ``start_index``."""

    name: str
    tokens: Integer[np.ndarray, " seq"]
    start_index: int = 0


@runtime_checkable
class GradedByLoss(Protocol):
    """Protocol for a task with several valid answers, which is evaluated by its loss instead of exact match."""

    def count_token_bytes(self) -> Int[np.ndarray, " vocab"]:
        """Return the number of text bytes of each token ID."""

    def held_out(self) -> Sequence[TokenizedDocument]:
        """Return documents that training never uses."""

    def tokens_to_examples(self, tokens: Int[np.ndarray, "batch seq"]) -> Examples:
        """Return examples that each consist of one row of document tokens."""


@runtime_checkable
class HasPlaceholderExample(Protocol):
    """Protocol for a task whose examples need a file that a run does not store."""

    def placeholder_example(self) -> Examples:
        """Return one example with the same arrays as sampled examples, without reading the file."""


@runtime_checkable
class HasFilesToSave(HasPlaceholderExample, Protocol):
    """Protocol for a task that reads user files and copies the data that a run needs into the run folder."""

    def files_to_save(self) -> Mapping[str, bytes]:
        """Return names and contents of the files to store in the run folder."""

    def from_run_folder(self, folder: Path) -> Task:
        """Return a copy of the task that reads the stored files of this run folder."""


def task_result_fields(task: Task) -> dict[str, str]:
    """Return the task fields of a result row: the name, and the path and digest of the source if the task has one."""
    return {"task": task.name, **task.data_source()}


def declared_given(declarer: object) -> tuple[str, ...]:
    """Return the kinds of knowledge that a task or an encoding declares, see docs/schemes.md; empty if it has none."""
    given: tuple[str, ...] = getattr(declarer, "given", ())
    return given


@runtime_checkable
class HasFixedLengths(Protocol):
    """Protocol for a task that has examples only at certain lengths."""

    @property
    def available_lengths(self) -> tuple[int, ...]:
        """Lengths with examples, in increasing order."""


@runtime_checkable
class HasRecords(HasFixedLengths, Protocol):
    """Protocol for a task with a finite list of examples per length; evaluation uses each example at most once."""

    def num_records(self, length: int) -> int:
        """Return the number of distinct records of a length; raise ``SettingError`` for a length without records."""

    def records_at(self, length: int, indices: Int[np.ndarray, " batch"]) -> Examples:
        """Return the distinct records of a length at these indices, from 0 to ``num_records(length) - 1``."""


def record_count_field(task: Task, length: int) -> dict[str, int]:
    """Return ``num_rows`` of a result row, the number of distinct records of a length; {} for tasks without records."""
    return {"num_rows": task.num_records(length)} if isinstance(task, HasRecords) else {}


def num_shared_records(task: HasRecords, other_task: HasRecords, length: int) -> int:
    """Return the number of distinct records of a length that two tasks with the same vocabulary share."""
    if length not in other_task.available_lengths:
        return 0
    return len(_list_record_keys(task, length) & _list_record_keys(other_task, length))


def _list_record_keys(task: HasRecords, length: int) -> set[tuple[tuple[int, ...], ...]]:
    examples = task.records_at(length, np.arange(task.num_records(length)))
    return {tuple(tuple(tokens.tolist()) for tokens in record) for record in examples.prompts_and_responses()}


def default_lengths(task: HasFixedLengths) -> tuple[int, ...]:
    """Return up to ``MAX_NUM_LENGTHS`` evenly spaced lengths of the task, including the first and the last length."""
    lengths = task.available_lengths
    indices = np.linspace(0, len(lengths) - 1, min(len(lengths), MAX_NUM_LENGTHS))
    return tuple(lengths[index] for index in indices.round().astype(int).tolist())


def lengths_between(task: Task, shortest: int, longest: int) -> Sequence[int]:
    """Return all task lengths from ``shortest`` to ``longest``, or ``[shortest]`` if no length is in this range."""
    if not isinstance(task, HasFixedLengths):
        return range(shortest, longest + 1)
    return [length for length in task.available_lengths if shortest <= length <= longest] or [shortest]


def nearest_length(task: Task, length: int) -> int:
    """Return the largest task length up to ``length``, or the smallest task length if all are larger."""
    if not isinstance(task, HasFixedLengths):
        return length
    lengths = task.available_lengths
    return max((available for available in lengths if available <= length), default=lengths[0])


def check_length_and_size(task: str, length: int, size: int, min_length: int = 1) -> None:
    """Raise ``SettingError`` for a length or batch size that is too small or requires too much memory."""
    if length < min_length:
        raise SettingError(f"length {length} is too short for {task}; use at least {min_length}")
    if size < 1:
        raise SettingError(f"size {size} is too small; use at least 1 example")
    advice = "use a shorter length" if size == 1 else "use a shorter length or fewer examples at once"
    check_memory(size * length * BYTES_PER_TOKEN, f"{task}: sampling {size:,} examples of length {length:,}", advice)


def sample_integers(count: int, limit: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size count"]:
    """Return ``size`` samples of ``count`` different integers from 0 to ``limit - 1``, in random order."""
    sort_keys = rng.random((size, limit))
    if count == limit:
        return sort_keys.argsort(axis=1)
    integers = sort_keys.argpartition(count - 1, axis=1)[:, :count]
    return np.take_along_axis(integers, np.take_along_axis(sort_keys, integers, axis=1).argsort(axis=1), axis=1)


def parse_symbols(
    symbols: list[str], alphabet: tuple[str, ...], task: str, expected_format: str
) -> Int[np.ndarray, " seq"]:
    """Return the index of each symbol in ``alphabet``; raise ``PromptError`` for the first unknown symbol."""
    for symbol in symbols:
        if symbol not in alphabet:
            raise PromptError(f"invalid symbol '{symbol}' in a prompt of {task}; write {expected_format}")
    if not symbols:
        raise PromptError(f"the prompt is empty; {task} needs {expected_format}")
    return np.array([alphabet.index(symbol) for symbol in symbols])


def parse_summands(prompt: str, task: str, expected_format: str) -> Int[np.ndarray, "summand digits"]:
    """Return the digits of each number in a sum, least significant first, padded with zeros."""
    summands = prompt.replace(" ", "").removesuffix("=").split("+")
    if len(summands) < 2:
        raise PromptError(f"invalid sum '{prompt}'; write a sum such as {expected_format}")
    if "" in summands:
        number = summands.index("") + 1
        raise PromptError(f"number {number} of the sum '{prompt}' is missing; write a sum such as {expected_format}")
    expected = f"a sum such as {expected_format}"
    digit_rows = [parse_symbols(list(summand), DIGITS, task, expected)[::-1] for summand in summands]
    num_digits = max(map(len, digit_rows))
    return np.array([np.pad(digits, (0, num_digits - len(digits))) for digits in digit_rows])


def add_carries(place_sums: Int[np.ndarray, "batch place"]) -> Int[np.ndarray, "batch place"]:
    """Return the sum at each place together with the carry from the place before, least significant place first."""
    totals = place_sums.copy()
    for place in range(1, totals.shape[1]):
        totals[:, place] += totals[:, place - 1] // 10
    return totals
