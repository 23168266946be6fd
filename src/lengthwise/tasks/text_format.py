"""Plain-text format of task examples, for models and tools without the vocabulary of the task."""

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from lengthwise.core.defaults import DEFAULT_NUM_SHOTS
from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import GradedByLoss, Task

END_SYMBOL = "end"
# Maximum number of batches to sample for shots before raising an error.
MAX_SHOT_BATCHES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFormat:
    """Format of the prompts of a language model.

    ``shots`` solved examples precede each prompt, one per line. They show the format of the task. They have
    ``shot_length``, or by default the length of the prompt, and their prompts differ from the test prompt. With
    ``in_tokens``, test lengths are numbers of tokens of the whole text.
    """

    shots: int = DEFAULT_NUM_SHOTS
    shot_length: int | None = None
    in_tokens: bool = False

    def __post_init__(self) -> None:
        check_types(self)
        if self.shots < 0:
            raise SettingError(f"invalid number of shots {self.shots}; use 0 or more")
        if self.shot_length is not None and self.shot_length < 1:
            raise SettingError(f"invalid shot length {self.shot_length}; use at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample:
    """Example as text, such as the prompt ``0 1 0 = 0`` and the response `` 0 1 1`` with a newline.

    A space separates adjacent symbols, a separator ends the prompt, and the end token is a newline. A response starts
    with a space, so prompt and response can be concatenated. Each example is one line.
    """

    prompt: str
    response: str

    @property
    def answer(self) -> str:
        """Response without surrounding whitespace, such as ``0 1 1``."""
        return self.response.strip()

    @property
    def symbol_spans(self) -> list[tuple[int, int]]:
        """Start and end index of the characters of each symbol in ``prompt + response``, including the end token."""
        return [match.span() for match in re.finditer(r"[^ \n]+|\n", self.prompt + self.response)]

    @property
    def symbols(self) -> list[str]:
        """Task symbols of the prompt and the response."""
        text = self.prompt + self.response
        return [END_SYMBOL if text[start:end] == "\n" else text[start:end] for start, end in self.symbol_spans]


def format_examples(task: Task, examples: Examples) -> list[TextExample]:
    """Return each sequence as text; raise ``SettingError`` for tasks graded by loss and symbols with whitespace."""
    if isinstance(task, GradedByLoss):
        raise SettingError(f"task {task.name} is graded by loss and has no prompts; use a task with one correct answer")
    vocabulary, texts = task.vocabulary, []
    for tokens in examples.prompts_and_responses():
        prompt, response = ([vocabulary[token] for token in part] for part in tokens)
        for symbol in (*prompt, *response):
            if symbol.split() != [symbol]:
                raise SettingError(f"the symbol {symbol!r} of {task.name} contains whitespace; rename the symbol")
        texts.append(TextExample(prompt=" ".join(prompt), response="".join(f" {symbol}" for symbol in response) + "\n"))
    return texts


def sample_few_shot_examples(
    task: Task, length: int, num_shots: int, rng: np.random.Generator, *, excluded_prompts: Collection[str]
) -> list[TextExample]:
    """Sample ``num_shots`` examples with other prompts; raise ``SettingError`` if sampling finds too few of them."""
    shots: list[TextExample] = []
    for _ in range(MAX_SHOT_BATCHES if num_shots else 0):
        texts = format_examples(task, task.sample(length=length, size=num_shots, rng=rng))
        shots += [text for text in texts if text.prompt not in excluded_prompts]
        if len(shots) >= num_shots:
            return shots[:num_shots]
    if num_shots:
        raise SettingError(
            f"length {length} of {task.name} has too few prompts for {num_shots} shots that differ from the "
            "test prompts; use a longer length, fewer examples, or --shots 0"
        )
    return []
