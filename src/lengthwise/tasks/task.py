"""The contract of a task: what a sequence is, and which of its tokens are computed together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int, Integer

from lengthwise.core.devices import check_memory
from lengthwise.core.errors import PromptError, SettingError
from lengthwise.tasks.examples import Examples

# Lengths of a file that are measured where nobody names any.
MOST_LENGTHS = 12
# What an example takes of memory per token, at least: tokens, coupling, and what both are made of.
TOKEN_BYTES = 32


@runtime_checkable
class Task(Protocol):
    """A family of sequences, one distribution per length.

    ``length`` is the task's own size (bits, digits, symbols), never the number of tokens. The same generator state and
    ``version`` give the same examples, forever. A class that inherits from this one has to have all
    of it but a summary and a paper.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    version: ClassVar[int]

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every symbol, in the order of its token number."""
        ...

    @property
    def separators(self) -> tuple[str, ...]:
        """The symbols that end a segment: what follows the last of them is the response."""
        ...

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw ``size`` sequences of the given length; ``SettingError`` below the task's smallest length."""
        ...

    def from_prompt(self, prompt: str) -> Examples:
        """The one example whose prompt a user wrote, with its right answer; ``PromptError`` if it is none."""
        ...

    def variants(self) -> Mapping[str, "Task"]:
        """Named distributions over the same sequences, for evaluation; empty when there is one only."""
        ...


@runtime_checkable
class HasStages(Protocol):
    """What a task has that can be learned step by step: easier versions of itself."""

    def stages(self) -> Sequence[Task]:
        """From the easiest to itself; all with the vocabulary of the last."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedDocument:
    """A text by its name, as token numbers: the whole of it, or a piece that begins at its token ``first``."""

    name: str
    tokens: Integer[np.ndarray, " seq"]
    first: int = 0


@runtime_checkable
class GradedByLoss(Protocol):
    """What a task has whose answers are not the only right ones: instead of exact match, its loss is measured."""

    def token_bytes(self) -> Int[np.ndarray, " vocab"]:
        """How many bytes of text each token stands for."""
        ...

    def held_out(self) -> Sequence[TokenizedDocument]:
        """Documents that no training example comes from."""
        ...

    def lay_out(self, tokens: Int[np.ndarray, "batch seq"]) -> Examples:
        """Parts of documents as examples."""
        ...


def is_graded_by_loss(task: Task) -> bool:
    """Return True for a task with several valid answers, which is graded by its loss and not by exact match."""
    return isinstance(task, GradedByLoss)


@runtime_checkable
class HasRunFiles(Protocol):
    """What a task has that reads files: a run keeps those without which nobody could use what was trained."""

    def run_files(self) -> Mapping[str, bytes]:
        """Names and contents."""
        ...

    def from_run_folder(self, folder: Path) -> Task:
        """The same task, with the files that a run folder keeps."""
        ...

    def placeholder_example(self) -> Examples:
        """One example of the form that all have, made without the files: a run is loaded also where they are not."""
        ...


@runtime_checkable
class HasSource(Protocol):
    """A task whose examples come from files that its user named."""

    def source(self) -> Mapping[str, str]:
        """Return the path of what was named and the SHA-256 of its content; empty without one."""
        ...


def task_facts(task: Task) -> dict[str, str]:
    """Return a task's name and, of a task that reads files, which ones: what a result row says of its task."""
    return {"task": task.name, **(task.source() if isinstance(task, HasSource) else {})}


@runtime_checkable
class HasLengths(Protocol):
    """What a task has that has examples of some lengths only."""

    @property
    def available_lengths(self) -> tuple[int, ...]:
        """These lengths, shortest first."""
        ...


@runtime_checkable
class HasRecords(HasLengths, Protocol):
    """A task whose examples of a length are a list that ends: evaluation asks each of them at most once."""

    def num_records(self, length: int) -> int:
        """Return the number of different rows of a length; ``SettingError`` for a length without any."""
        ...

    def records_at(self, length: int, places: Int[np.ndarray, " batch"]) -> Examples:
        """Return the rows at these places, from 0 to ``num_rows(length)`` - 1."""
        ...


def record_facts(task: Task, length: int) -> dict[str, int]:
    """Return what a result row says of a file: ``num_rows``, how many different rows it has of the length."""
    return {"num_rows": task.num_records(length)} if isinstance(task, HasRecords) else {}


def num_shared_records(task: HasRecords, other: HasRecords, length: int) -> int:
    """Return how many different rows of a length two tasks with the same vocabulary share."""
    if length not in other.available_lengths:
        return 0
    return len(_rows_of(task, length) & _rows_of(other, length))


def _rows_of(task: HasRecords, length: int) -> set[tuple[int, bytes]]:
    examples = task.records_at(length, np.arange(task.num_records(length)))
    ends = (examples.response_end + 1).tolist()
    return {
        (int(prompt), tokens[:end].astype(np.int64).tobytes())
        for prompt, tokens, end in zip(examples.prompt_length, examples.tokens, ends, strict=True)
    }


def default_lengths(task: HasLengths) -> tuple[int, ...]:
    """Return the task's lengths or, of many, some of them at equal steps, the shortest and the longest included."""
    known = task.available_lengths
    places = np.linspace(0, len(known) - 1, min(len(known), MOST_LENGTHS))
    return tuple(known[place] for place in places.round().astype(int).tolist())


def lengths_between(task: Task, first: int, last: int) -> Sequence[int]:
    """The lengths from ``first`` to ``last`` that the task has; one that is asked for examples of others refuses."""
    if not isinstance(task, HasLengths):
        return range(first, last + 1)
    return [length for length in task.available_lengths if first <= length <= last] or [first]


def nearest_length(task: Task, length: int) -> int:
    """The length itself or, where the task has no examples of it, the next shorter one, or else the shortest."""
    if not isinstance(task, HasLengths):
        return length
    return max((shorter for shorter in task.available_lengths if shorter <= length), default=task.available_lengths[0])


def check_sizes(task: str, length: int, size: int, smallest: int = 1) -> None:
    """Refuse sizes that no sequence can have."""
    if length < smallest:
        raise SettingError(f"length {length} is too short for {task}; lengths start at {smallest}: use one of those")
    if size < 1:
        raise SettingError(f"size {size} asks for no sequence; ask for at least 1")
    change = "use a shorter length" if size == 1 else "use a shorter length or fewer examples at once"
    check_memory(size * length * TOKEN_BYTES, f"{task}: drawing {size:,} of length {length:,}", change)


def distinct(number: int, among: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size number"]:
    """Different numbers below ``among`` in random order, every row its own."""
    keys = rng.random((size, among))
    if number == among:
        return keys.argsort(axis=1)
    least = keys.argpartition(number - 1, axis=1)[:, :number]
    return np.take_along_axis(least, np.take_along_axis(keys, least, axis=1).argsort(axis=1), axis=1)


def numbers_of(symbols: list[str], allowed: tuple[str, ...], task: str, form: str) -> Int[np.ndarray, " seq"]:
    """The place of each symbol in ``allowed``; ``PromptError`` names the first that is not there."""
    for symbol in symbols:
        if symbol not in allowed:
            raise PromptError(f"'{symbol}' cannot stand in a prompt of {task}; write {form}")
    if not symbols:
        raise PromptError(f"the prompt is empty; {task} takes {form}")
    return np.array([allowed.index(symbol) for symbol in symbols])


def summands(prompt: str, parts: list[str], task: str, form: str) -> list[Int[np.ndarray, " digits"]]:
    """The digits of each part of a sum, least significant first; ``PromptError`` says which of them is missing."""
    if "" in parts:
        raise PromptError(f"number {parts.index('') + 1} of the sum '{prompt}' is missing; write a sum such as {form}")
    digits = tuple(str(digit) for digit in range(10))
    return [numbers_of(list(part), digits, task, f"a sum such as {form}")[::-1] for part in parts]
