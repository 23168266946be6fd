"""A task's examples as plain text, for models and tools that know nothing of its tokens: one form for all tasks."""

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, is_graded_by_loss

END = "end"
# Examples shown before each that is asked, where nothing else is said.
SHOTS = 4
# Draws of as many examples as are wanted, before a length counts as having no other prompt.
TRIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TextExample:
    """An example such as ``0 1 0 = 0`` with the response `` 0 1 1`` and a newline; one behind the other is the text.

    Symbols stand with one space between them, the separator ends the prompt, and the end token is a newline. So no
    symbol of the prompt touches one of the response, and examples behind one another are one line each.
    """

    prompt: str
    response: str

    @property
    def answer(self) -> str:
        """The response without what surrounds it: ``0 1 1``."""
        return self.response.strip()

    @property
    def spans(self) -> list[tuple[int, int]]:
        """For each symbol of the sequence, the end token included, where it begins and ends in prompt + response."""
        return [found.span() for found in re.finditer(r"[^ \n]+|\n", self.prompt + self.response)]

    @property
    def symbols(self) -> list[str]:
        """The task's symbols again, in prompt and response."""
        text = self.prompt + self.response
        return [END if text[first:last] == "\n" else text[first:last] for first, last in self.spans]


def format_examples(task: Task, examples: Examples) -> list[TextExample]:
    """Each sequence as text; ``SettingError`` for a task that is graded by loss, or a symbol that has white space."""
    if is_graded_by_loss(task):
        raise SettingError(f"task {task.name} is graded by loss and asks no question; choose a task with an answer")
    vocabulary = task.vocabulary
    found = []
    for tokens, first, last in zip(examples.tokens, examples.prompt_length, examples.response_end, strict=True):
        symbols = _words(task, vocabulary, tokens[:last])
        response = "".join(f" {symbol}" for symbol in symbols[first:])
        found.append(TextExample(prompt=" ".join(symbols[:first]), response=f"{response}\n"))
    return found


def sample_shots(
    task: Task, length: int, number: int, rng: np.random.Generator, *, tested: Collection[str]
) -> list[TextExample]:
    """Examples to show, none with a prompt that is tested; ``SettingError`` where the length has no other prompt."""
    found: list[TextExample] = []
    for _ in range(TRIES if number else 0):
        drawn = format_examples(task, task.sample(length=length, size=number, rng=rng))
        found += [text for text in drawn if text.prompt not in tested]
        if len(found) >= number:
            return found[:number]
    if number:
        raise SettingError(
            f"length {length} of {task.name} has too few prompts to show {number} that are not tested; "
            "use a longer length, fewer examples, or --shots 0"
        )
    return []


def _words(task: Task, vocabulary: tuple[str, ...], tokens: Int[np.ndarray, " seq"]) -> list[str]:
    words = [vocabulary[token] for token in tokens]
    for word in words:
        if word.split() != [word]:
            raise SettingError(
                f"the symbol {word!r} of {task.name} has white space, which in text is between symbols; rename it"
            )
    return words
