"""Index hints: a wrapper of another task that adds a numbered hint before each digit, bit or letter."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import SettingError, UnsupportedTaskError
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.task import INDEX_HINTS, Task, check_length_and_size, declared_given


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHints(Task):
    """Sequences of ``task`` with the hint ``#(start + p - 1)`` before every token with place p.

    Prompt and response share ``start``. It is uniform over all values for which ``num_hints`` suffices, so training on
    short sequences covers every hint. The model also writes the hints of the response. In ``example_from_prompt``, the
    prompt has no hints and ``start`` is 0. Hints count in token order, so related symbols of prompt and response have
    equal hints only if their order is the same. A hint depends on the previous hint; the first hint of the response
    depends on the first hint of the prompt and on the preceding token. Others depend on the same as in ``task``.
    """

    task: Task = field(default_factory=Parity)
    num_hints: int = 512

    name: ClassVar[str] = "index_hints"
    summary: ClassVar[str] = "another task (by default parity) with a numbered hint before each symbol"
    paper: ClassVar[str] = "Zhou et al. 2023 (arXiv 2310.16028)"

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_hints")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Symbols of ``task``, then the hints."""
        return (*self.task.vocabulary, *(f"#{hint}" for hint in range(self.num_hints)))

    @property
    def separators(self) -> tuple[str, ...]:
        """Separators of ``task``, which have no hints."""
        return self.task.separators

    @property
    def given(self) -> tuple[str, ...]:
        """Kinds of knowledge of ``task``, then ``"index hints"``."""
        return (*declared_given(self.task), INDEX_HINTS)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample examples of ``task``, then the number of the first hint of each example."""
        check_length_and_size(self.name, length, size)
        examples = self.task.sample(length=length, size=size, rng=rng)
        first_hints = rng.integers(0, self.num_hints - int(self._step_index(examples).max()) + 1, size=size)
        return self._with_hints(examples, first_hints)

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse a prompt of ``task`` without hints."""
        return self._with_hints(self.task.example_from_prompt(prompt), np.zeros(1, dtype=np.int64))

    def variants(self) -> Mapping[str, Task]:
        """Return the variants of ``task``, each with hints."""
        return {name: replace(self, task=variant) for name, variant in self.task.variants().items()}

    def _step_index(self, examples: Examples) -> Int[np.ndarray, "batch seq"]:
        if examples.step_index is None:
            raise UnsupportedTaskError(
                f"task {self.task.name} declares no step_index for hints; use a task such as parity"
            )
        largest_place = int(examples.step_index.max())
        if largest_place > self.num_hints:
            raise SettingError(
                f"num_hints {self.num_hints} is too small for a sequence with {largest_place} places; "
                f"set num_hints to at least {largest_place}, or use a shorter length"
            )
        return examples.step_index

    def _with_hints(self, examples: Examples, first_hints: Int[np.ndarray, " batch"]) -> Examples:
        step_index, batch_index = self._step_index(examples), np.arange(len(examples))
        has_hint = step_index > 0
        new_index = np.arange(step_index.shape[1]) + has_hint.cumsum(axis=1)
        # The answer starts with the hint of its first token.
        prompt_length = new_index[batch_index, examples.prompt_length] - has_hint[batch_index, examples.prompt_length]
        response_end = new_index[batch_index, examples.response_end]
        output_index = np.arange(response_end.max() + 1)
        tokens = np.full((len(examples), len(output_index)), self.task.vocabulary.index("end"))
        row, column = np.nonzero(new_index <= response_end[:, None])
        tokens[row, new_index[row, column]] = examples.tokens[row, column]
        row, column = np.nonzero(has_hint)
        tokens[row, new_index[row, column] - 1] = (
            len(self.task.vocabulary) + first_hints[row] + step_index[row, column] - 1
        )
        is_answer = (output_index >= prompt_length[:, None]) & (output_index <= response_end[:, None])
        depends_on = (
            None if examples.depends_on is None else _depends_on(examples.depends_on, new_index, has_hint, is_answer)
        )
        return Examples(tokens=tokens, prompt_length=prompt_length, is_answer=is_answer, depends_on=depends_on)


def _depends_on(
    depends_on: Int[np.ndarray, "batch seq k"],
    new_index: Int[np.ndarray, "batch seq"],
    has_hint: Bool[np.ndarray, "batch seq"],
    is_answer: Bool[np.ndarray, "batch new_seq"],
) -> Int[np.ndarray, "batch new_seq new_k"]:
    """Return the support of ``task`` at the new token indexes, and the support of the hints."""
    max_sources = depends_on.shape[2]
    new_depends_on = np.full((*is_answer.shape, max(2, max_sources)), -1)
    row, column = np.nonzero(new_index < is_answer.shape[1])
    sources = depends_on[row, column]
    new_sources = np.where(sources < 0, -1, new_index[row[:, None], sources.clip(0)])
    new_depends_on[row, new_index[row, column], :max_sources] = new_sources
    row, column = np.nonzero(has_hint)
    previous_hint_index = np.maximum.accumulate(np.where(has_hint, new_index - 1, -1), axis=1)[row, column - 1]
    first_hint_index = new_index[np.arange(len(has_hint)), has_hint.argmax(axis=1)][row] - 1
    is_later_hint, hint_index = is_answer[row, previous_hint_index], new_index[row, column] - 1
    new_depends_on[row, hint_index, 0] = np.where(is_later_hint, previous_hint_index, first_hint_index)
    # The preceding token shows that the next hint is the first hint of the response.
    new_depends_on[row, hint_index, 1] = np.where(is_later_hint, -1, hint_index - 1)
    return np.where(is_answer[..., None], new_depends_on, -1)
