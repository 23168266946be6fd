"""Index hints: another task, with a symbol before each digit, bit or letter that says which one it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import SettingError, UnsupportedTaskError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.task import Task, check_sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHints:
    """The sequences of ``task``, with the hint ``#(start + p - 1)`` before every token with place p.

    Prompt and response share ``start``, which is uniform among the numbers that leave hints for all places: short
    sequences show every hint. The response's hints have to be written as well. An asked prompt is given without hints,
    and ``start`` is 0. Hints count in writing order, so they match where the response has the order of the prompt.
    A hint depends on the one before it, the response's first on the prompt's first and on the token before it; all
    else on what the task says: k is the task's, and at least 2.
    """

    task: Task = field(default_factory=Parity)
    num_hints: int = 512

    name: ClassVar[str] = "index_hints"
    summary: ClassVar[str] = "another task (parity), with a hint before each symbol that says which one it is"
    paper: ClassVar[str] = "Zhou et al. 2023 (arXiv 2310.16028)"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_hints < 1:
            raise SettingError(f"num_hints {self.num_hints} leaves no symbol to hint with; use at least 1")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The task's own symbols, then the hints."""
        return (*self.task.vocabulary, *(f"#{hint}" for hint in range(self.num_hints)))

    @property
    def separators(self) -> tuple[str, ...]:
        """Those of the task."""
        return self.task.separators

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw the task's own examples, then where the hints start."""
        check_sizes(self.name, length, size)
        examples = self.task.sample(length=length, size=size, rng=rng)
        places = self._places(examples)
        starts = rng.integers(0, self.num_hints - int(places.max()) + 1, size=size)
        return self._with_hints(examples, places, starts)

    def from_prompt(self, prompt: str) -> Examples:
        """Read what the task reads, without hints."""
        examples = self.task.from_prompt(prompt)
        return self._with_hints(examples, self._places(examples), np.zeros(1, dtype=np.int64))

    def variants(self) -> Mapping[str, Task]:
        """Those of the task."""
        return {name: replace(self, task=variant) for name, variant in self.task.variants().items()}

    def _places(self, examples: Examples) -> Int[np.ndarray, "batch seq"]:
        if examples.places is None:
            raise UnsupportedTaskError(
                f"the task {self.task.name} declares no places to hint at; wrap one such as parity"
            )
        largest = int(examples.places.max())
        if largest > self.num_hints:
            raise SettingError(
                f"a sequence of {largest} places needs as many hints but num_hints is {self.num_hints}; "
                f"set it to at least {largest} or use shorter lengths"
            )
        return examples.places

    def _with_hints(
        self, examples: Examples, places: Int[np.ndarray, "batch seq"], starts: Int[np.ndarray, " batch"]
    ) -> Examples:
        rows = np.arange(len(examples))
        hinted = places > 0
        moved = np.arange(places.shape[1]) + hinted.cumsum(axis=1)
        # The answer starts with the hint of its first token.
        prompt_length = moved[rows, examples.prompt_length] - hinted[rows, examples.prompt_length]
        response_end = moved[rows, examples.response_end]
        index = np.arange(response_end.max() + 1)
        tokens = np.full((len(examples), len(index)), self.task.vocabulary.index("end"))
        row, old = np.nonzero(moved <= response_end[:, None])
        tokens[row, moved[row, old]] = examples.tokens[row, old]
        row, old = np.nonzero(hinted)
        tokens[row, moved[row, old] - 1] = len(self.task.vocabulary) + starts[row] + places[row, old] - 1
        is_answer = (index >= prompt_length[:, None]) & (index <= response_end[:, None])
        support = None if examples.support is None else _support(examples.support, moved, hinted, is_answer)
        return Examples(tokens=tokens, prompt_length=prompt_length, is_answer=is_answer, support=support)


def _support(
    support: Int[np.ndarray, "batch seq k"],
    moved: Int[np.ndarray, "batch seq"],
    hinted: Bool[np.ndarray, "batch seq"],
    is_answer: Bool[np.ndarray, "batch new_seq"],
) -> Int[np.ndarray, "batch new_seq new_k"]:
    """The task's own, moved with its tokens; a hint depends on the one before it, an answer's first on the first."""
    width = support.shape[2]
    new = np.full((*is_answer.shape, max(2, width)), -1)
    row, old = np.nonzero(moved < is_answer.shape[1])
    named = support[row, old]
    new[row, moved[row, old], :width] = np.where(named < 0, -1, moved[row[:, None], named.clip(0)])
    row, old = np.nonzero(hinted)
    before = np.maximum.accumulate(np.where(hinted, moved - 1, -1), axis=1)[row, old - 1]
    first = moved[np.arange(len(hinted)), hinted.argmax(axis=1)][row] - 1
    follows, hint = is_answer[row, before], moved[row, old] - 1
    new[row, hint, 0] = np.where(follows, before, first)
    # That it is the first, the token before it says.
    new[row, hint, 1] = np.where(follows, -1, hint - 1)
    return np.where(is_answer[..., None], new, -1)
