"""Recall: find the values of some keys in a text of fillers and key-value pairs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_length_and_size, parse_symbols, sample_integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Task):
    """Layout ``i_1 .. i_length = q_1 .. q_m > v_1 .. v_m end``: each item i is a filler or a key with its value.

    Up to ``num_pairs`` items are a key followed by its value, at uniform places and with different keys. Up to
    ``num_queries`` keys are queried; ``v_i`` is the value of ``q_i``. With one pair, the task is to find a needle in a
    haystack. An answer depends on three tokens (k = 3): its query, and the key and the value in the text.

    A key and its value share an ID. The token before an answer has the ID of the query for this answer. The last answer
    has the ID of ``=``. The IDs do not reveal where the value is in the text.
    """

    num_pairs: int = 4
    num_queries: int = 1
    num_keys: int = 16
    num_values: int = 16
    num_fillers: int = 8

    name: ClassVar[str] = "recall"
    summary: ClassVar[str] = "find the values of queried keys in a text"
    paper: ClassVar[str] = "Arora et al. 2024 (arXiv 2312.04927)"
    separators: ClassVar[tuple[str, ...]] = ("=", ">")

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_pairs", "num_queries", "num_keys", "num_values", "num_fillers")
        pairs = self.num_pairs
        if pairs > self.num_keys:
            raise SettingError(f"num_keys {self.num_keys} is too small for {pairs} pairs; use at least {pairs} keys")
        if self.num_queries > pairs:
            raise SettingError(f"num_queries {self.num_queries} exceeds the {pairs} pairs; use at most {pairs}")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Keys, values, fillers, separator, start token and end token."""
        symbol_counts = (("k", self.num_keys), ("v", self.num_values), ("f", self.num_fillers))
        return (*(f"{letter}{number}" for letter, count in symbol_counts for number in range(count)), "=", ">", "end")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample places and keys of the pairs, their values, the fillers and the queries uniformly."""
        check_length_and_size(self.name, length, size)
        num_pairs = min(self.num_pairs, length)
        pair_items = np.sort(sample_integers(num_pairs, length, size, rng), axis=1)
        # Each preceding pair shifts an item by one token.
        key_indexes = pair_items + np.arange(num_pairs)
        text = self.num_keys + self.num_values + rng.integers(0, self.num_fillers, size=(size, length + num_pairs))
        np.put_along_axis(text, key_indexes, sample_integers(num_pairs, self.num_keys, size, rng), axis=1)
        value_ids = self.num_keys + rng.integers(0, self.num_values, size=(size, num_pairs))
        np.put_along_axis(text, key_indexes + 1, value_ids, axis=1)
        queries = sample_integers(min(self.num_queries, num_pairs), num_pairs, size, rng)
        return self._lay_out(text, np.take_along_axis(key_indexes, queries, axis=1))

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse a prompt such as ``f0 k3 v1 f2 = k3``: a text, ``=``, and the queried keys."""
        expected_format = "a text and its queries such as 'f0 k3 v1 f2 = k3'"
        symbol_lists = [segment.split() for segment in prompt.removesuffix(">").split("=")]
        if len(symbol_lists) != 2:
            raise PromptError(f"prompt '{prompt}' does not contain exactly one '='; write {expected_format}")
        text = parse_symbols(symbol_lists[0], self.vocabulary[:-3], self.name, expected_format)
        queries = parse_symbols(symbol_lists[1], self.vocabulary[: self.num_keys], self.name, expected_format)
        is_key, is_value = text < self.num_keys, (text >= self.num_keys) & (text < self.num_keys + self.num_values)
        if is_key[-1] or not np.array_equal(np.append(False, is_key[:-1]), is_value):
            raise PromptError(f"'{prompt}' has a key without a value or a value without a key; write {expected_format}")
        key_indexes = [np.flatnonzero(text == query) for query in queries]
        for query, count in zip(symbol_lists[1], map(len, key_indexes), strict=True):
            if count != 1:
                raise PromptError(f"queried key '{query}' occurs {count} times in the text; write it exactly once")
        return self._lay_out(text[None], np.array(key_indexes).T)

    def variants(self) -> Mapping[str, Task]:
        """Return ``needle``: a text with a single pair."""
        return {"needle": replace(self, num_pairs=1, num_queries=1)}

    def _lay_out(self, text: Int[np.ndarray, "batch text"], key_indexes: Int[np.ndarray, "batch queries"]) -> Examples:
        """Build examples; ``key_indexes`` contains the token indexes of the queried keys."""
        (batch_size, length), num_queries = text.shape, key_indexes.shape[1]
        separator = np.full((batch_size, 1), len(self.vocabulary) - 3)
        queries, answers = (np.take_along_axis(text, key_indexes + offset, axis=1) for offset in (0, 1))
        tokens = np.concatenate([text, separator, queries, separator + 1, answers, separator + 2], axis=1)
        prompt_length, query_indexes = length + num_queries + 2, np.arange(num_queries)
        # Every token except a value starts a group.
        is_value = (text >= self.num_keys) & (text < self.num_keys + self.num_values)
        text_groups = np.cumsum(~is_value, axis=1)
        other_groups = text_groups[:, -1:] + 1 + np.concatenate([[0], *[1 + query_indexes] * 2, [0, num_queries + 1]])
        depends_on = np.full((*tokens.shape, 3), -1)
        for column, sources in enumerate((length + 1 + query_indexes, key_indexes, key_indexes + 1)):
            depends_on[:, prompt_length:-1, column] = sources
        # The end token depends on the separator, which shares its ID with the last answer.
        depends_on[:, -1, 0] = length
        coupling = np.concatenate([text_groups, other_groups], axis=1)[None]
        return Examples.with_prompt_length(tokens, prompt_length, coupling=coupling, depends_on=depends_on)
