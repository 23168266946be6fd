"""Recall: keys with values somewhere in a text of fillers, and questions for the values of some keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes, distinct, numbers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """Layout ``i_1 .. i_length = q_1 .. q_m > v_1 .. v_m end``: every item i is a filler or a key with its value.

    ``num_pairs`` of the items, at most all, are a key and, right behind it, a value; their places are uniform and no
    key is there twice. ``num_queries`` of the keys, at most all, are asked for; ``v_i`` is the value of ``q_i``. With
    one pair it is a needle in a haystack. An answer depends on its question, the key and the value: k = 3.

    A key and its value share an ID. The token before an answer has the ID of its question, the last answer that of the
    ``=``; where the value stands is for the model to find.
    """

    num_pairs: int = 4
    num_queries: int = 1
    num_keys: int = 16
    num_values: int = 16
    num_fillers: int = 8

    name: ClassVar[str] = "recall"
    summary: ClassVar[str] = "the values of keys that stand somewhere in a text"
    paper: ClassVar[str] = "Arora et al. 2024 (arXiv 2312.04927)"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        for setting in ("num_pairs", "num_queries", "num_keys", "num_values", "num_fillers"):
            if getattr(self, setting) < 1:
                raise SettingError(f"{setting} {getattr(self, setting)} leaves nothing to recall; use at least 1")
        if self.num_pairs > self.num_keys:
            raise SettingError(f"{self.num_pairs} pairs need as many keys; num_keys is {self.num_keys}: raise it")
        if self.num_queries > self.num_pairs:
            raise SettingError(f"{self.num_queries} questions are more than the {self.num_pairs} pairs; ask for fewer")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Keys, values, fillers, the separator, the start token and the end token."""
        named = (("k", self.num_keys), ("v", self.num_values), ("f", self.num_fillers))
        return (*(f"{kind}{number}" for kind, count in named for number in range(count)), "=", ">", "end")

    @property
    def separators(self) -> tuple[str, ...]:
        """Two: the text, the questions, the answers."""
        return ("=", ">")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw places, keys, values, fillers and questions, all uniformly."""
        check_sizes(self.name, length, size)
        pairs = min(self.num_pairs, length)
        items = np.sort(distinct(pairs, length, size, rng), axis=1)
        # Every pair before it moves an item by one token.
        first = items + np.arange(pairs)
        text = self.num_keys + self.num_values + rng.integers(0, self.num_fillers, size=(size, length + pairs))
        np.put_along_axis(text, first, distinct(pairs, self.num_keys, size, rng), axis=1)
        values = self.num_keys + rng.integers(0, self.num_values, size=(size, pairs))
        np.put_along_axis(text, first + 1, values, axis=1)
        asked = distinct(min(self.num_queries, pairs), pairs, size, rng)
        return self._lay_out(text, np.take_along_axis(first, asked, axis=1))

    def from_prompt(self, prompt: str) -> Examples:
        """Read a text and questions such as ``f0 k3 v1 f2 = k3``."""
        form = "a text and its questions such as 'f0 k3 v1 f2 = k3'"
        parts = [part.split() for part in prompt.removesuffix(">").split("=")]
        if len(parts) != 2:
            raise PromptError(f"'{prompt}' has no question, or no text; write {form}")
        text = numbers_of(parts[0], self.vocabulary[:-3], self.name, form)
        questions = numbers_of(parts[1], self.vocabulary[: self.num_keys], self.name, form)
        is_key, is_value = text < self.num_keys, (text >= self.num_keys) & (text < self.num_keys + self.num_values)
        if is_key[-1] or not np.array_equal(np.append(False, is_key[:-1]), is_value):
            raise PromptError(f"'{prompt}' has a key without a value, or a value without a key; write {form}")
        places = [np.flatnonzero(text == question) for question in questions]
        for question, found in zip(parts[1], places, strict=True):
            if len(found) != 1:
                raise PromptError(f"'{question}' is asked for and is there {len(found)} times; it must be there once")
        return self._lay_out(text[None], np.array(places).T)

    def variants(self) -> Mapping[str, Task]:
        """One distribution only."""
        return {}

    def _lay_out(self, text: Int[np.ndarray, "batch text"], key: Int[np.ndarray, "batch asked"]) -> Examples:
        """``key`` is where the keys stand that are asked for."""
        (size, length), asked = text.shape, key.shape[1]
        equals = np.full((size, 1), len(self.vocabulary) - 3)
        questions, answers = np.take_along_axis(text, key, axis=1), np.take_along_axis(text, key + 1, axis=1)
        tokens = np.concatenate([text, equals, questions, equals + 1, answers, equals + 2], axis=1)
        prompt_length = length + asked + 2
        question = length + 1 + np.arange(asked)
        # A group starts with everything but a value.
        is_value = (text >= self.num_keys) & (text < self.num_keys + self.num_values)
        groups = np.cumsum(~is_value, axis=1)
        after = groups[:, -1:] + 1 + np.concatenate([[0], *[1 + np.arange(asked)] * 2, [0, asked + 1]])
        support = np.full((*tokens.shape, 3), -1)
        support[:, prompt_length:-1, 0] = question
        support[:, prompt_length:-1, 1] = key
        support[:, prompt_length:-1, 2] = key + 1
        # The end token follows because all questions have been answered: the separator before them has been reached.
        support[:, -1, 0] = length
        return Examples(
            tokens=tokens,
            prompt_length=np.full(size, prompt_length),
            is_answer=np.broadcast_to(np.arange(tokens.shape[1]) >= prompt_length, tokens.shape),
            coupling=np.concatenate([groups, after], axis=1)[None],
            support=support,
        )
