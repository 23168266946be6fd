"""The contract of a task: what a sequence is, and which of its tokens are computed together."""

from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from lengthwise.errors import PromptError, SettingError
from lengthwise.example import Examples


@runtime_checkable
class Task(Protocol):
    """A family of sequences, one distribution per length.

    ``length`` is the task's own size (bits, digits, symbols), never the number of tokens. The same generator state and
    ``version`` give the same examples, forever.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
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


def check_sizes(task: str, length: int, size: int, smallest: int = 1) -> None:
    """Refuse sizes that no sequence can have."""
    if length < smallest:
        raise SettingError(f"length {length} is too short for {task}; lengths start at {smallest}: use one of those")
    if size < 1:
        raise SettingError(f"size {size} asks for no sequence; ask for at least 1")


def numbers_of(symbols: list[str], allowed: tuple[str, ...], task: str, form: str) -> Int[np.ndarray, " seq"]:
    """The place of each symbol in ``allowed``; ``PromptError`` names the first that is not there."""
    for symbol in symbols:
        if symbol not in allowed:
            raise PromptError(f"'{symbol}' cannot stand in a prompt of {task}; write {form}")
    if not symbols:
        raise PromptError(f"the prompt is empty; {task} takes {form}")
    return np.array([allowed.index(symbol) for symbol in symbols])
