"""Recall with several queries over pairs of several tokens, whose number grows with the length (MQMTAR)."""

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_length_and_size, parse_symbols, sample_integers


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiQueryRecall(Task):
    """Layout ``text ? key .. ? key > ? value .. ? value end``: the text has pairs ``key : value _`` and blanks ``_``.

    This is multi-query multi-token associative recall. ``length`` is the number of tokens of the text, which has at
    least one pair. Pairs fill up to the share ``density`` of the text, so their number grows with its length; blanks
    fill the rest. All keys of a text are different. A key consists of ``key_length`` and a value of ``value_length`` of
    ``num_symbols`` symbols. Each of the ``num_queries`` queries is one of the keys, and may occur twice. With
    ``numbered``, the marks before queries and values are ``?1``, ``?2``, ..., so that no model has to count them.

    A token of an answer depends on the query, the key in the text and the same token of its value.
    """

    num_queries: int = 4
    key_length: int = 2
    value_length: int = 2
    num_symbols: int = 64
    density: float = 0.8
    numbered: bool = False

    name: ClassVar[str] = "multi_query_recall"
    summary: ClassVar[str] = "find the values of several keys of several tokens; longer texts have more pairs"
    paper: ClassVar[str] = "Vasylenko et al. 2025 (arXiv 2506.16640)"
    separators: ClassVar[tuple[str, ...]] = (">",)

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_queries", "key_length", "value_length", "num_symbols")
        if not 0 < self.density <= 1:
            raise SettingError(f"density {self.density} is out of range; use more than 0 and at most 1")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Symbols of keys and values, blank, colon, query marks, start token and end token."""
        marks = tuple(f"?{number + 1}" for number in range(self.num_queries)) if self.numbered else ("?",)
        return (*(f"s{number}" for number in range(self.num_symbols)), "_", ":", *marks, ">", "end")

    @property
    def pair_width(self) -> int:
        """Number of tokens of a pair, including the colon and the blank after the value."""
        return self.key_length + self.value_length + 2

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample places and keys of the pairs without replacement, and values and queries uniformly."""
        check_length_and_size(self.name, length, size)
        num_keys, width = self.num_symbols**self.key_length, self.pair_width
        num_pairs = min(max(1, int(self.density * length) // width), num_keys)
        num_slots = max(length, width) - num_pairs * (width - 1)
        # Each preceding pair shifts a slot by the other tokens of the pair.
        starts = np.sort(sample_integers(num_pairs, num_slots, size, rng), axis=1) + np.arange(num_pairs) * (width - 1)
        numbers = sample_integers(num_pairs, num_keys, size, rng)[:, :, None]
        keys = numbers // self.num_symbols ** np.arange(self.key_length) % self.num_symbols
        values = rng.integers(0, self.num_symbols, size=(size, num_pairs, self.value_length))
        text = np.full((size, num_slots + num_pairs * (width - 1)), self.num_symbols)
        colons = np.full((size, num_pairs, 1), self.num_symbols + 1)
        places = starts[:, :, None] + np.arange(width - 1)
        text[np.arange(size)[:, None, None], places] = np.concatenate([keys, colons, values], axis=2)
        queries = rng.integers(0, num_pairs, size=(size, self.num_queries))
        return self._lay_out(text, np.take_along_axis(starts, queries, axis=1))

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse a prompt such as ``_ s1 s2 : s3 s4 _ ? s1 s2``: a text, and a mark before each query."""
        numbers = [f"s{number % self.num_symbols}" for number in range(self.key_length + self.value_length)]
        query = " ".join(numbers[: self.key_length])
        expected_format = f"'{query} : {' '.join(numbers[self.key_length :])} _ ? {query}'"
        text_part, *query_parts = re.split(r"\?\d*", prompt.removesuffix(">"))
        text = parse_symbols(text_part.split(), self.vocabulary[: self.num_symbols + 2], self.name, expected_format)
        starts = np.flatnonzero(text == self.num_symbols + 1) - self.key_length
        pair = rf"(s\d+ ){{{self.key_length}}}: (s\d+ ){{{self.value_length}}}"
        has_pairs = re.fullmatch(rf"(_ |{pair})*", " ".join([*text_part.split(), ""]))
        if not 1 <= len(query_parts) <= self.num_queries or not has_pairs:
            advice = f"1 to {self.num_queries} queries; write {expected_format}"
            raise PromptError(f"'{prompt}' is not a text of pairs and blanks with {advice}")
        keys = text[starts[:, None] + np.arange(self.key_length)]
        query_starts = []
        for part in query_parts:
            key = parse_symbols(part.split(), self.vocabulary[: self.num_symbols], self.name, expected_format)
            places = [start for start, stored in zip(starts, keys, strict=True) if np.array_equal(stored, key)]
            if len(places) != 1:
                raise PromptError(f"query '{part.strip()}' occurs {len(places)} times as a key; write it exactly once")
            query_starts += places
        return self._lay_out(text[None], np.array([query_starts]))

    def _lay_out(self, text: Int[np.ndarray, "batch text"], starts: Int[np.ndarray, "batch query"]) -> Examples:
        """Build examples; ``starts`` contains the token index of the first symbol of each queried key."""
        (size, length), num_queries = text.shape, starts.shape[1]
        mark_numbers = np.arange(num_queries) if self.numbered else np.zeros(num_queries, dtype=int)
        marks = np.broadcast_to(self.num_symbols + 2 + mark_numbers[:, None], (size, num_queries, 1))
        key_places = starts[:, :, None] + np.arange(self.key_length)
        value_places = starts[:, :, None] + self.key_length + 1 + np.arange(self.value_length)
        queries, answers = (
            np.concatenate([marks, text[np.arange(size)[:, None, None], places]], axis=2).reshape(size, -1)
            for places in (key_places, value_places)
        )
        signs = np.broadcast_to(len(self.vocabulary) + np.array([-2, -1]), (size, 2))
        tokens = np.concatenate([text, queries, signs[:, :1], answers, signs[:, 1:]], axis=1)
        prompt_length, query_width = length + queries.shape[1] + 1, self.key_length + 1
        mark_places = length + query_width * np.arange(num_queries)[:, None]
        query_places = np.broadcast_to(mark_places + 1 + np.arange(self.key_length), key_places.shape)
        depends_on = np.full((size, tokens.shape[1], 2 * self.key_length + 1), -1)
        needs = depends_on[:, prompt_length:-1].reshape(size, num_queries, self.value_length + 1, -1)
        needs[:, :, 1:, :-1] = np.concatenate([query_places, key_places], axis=2)[:, :, None]
        needs[:, :, 1:, -1] = value_places
        # A mark before a value copies the mark of its query, and the end token follows once the queries end.
        needs[:, :, 0, 0] = mark_places[:, 0]
        depends_on[:, prompt_length:-1] = needs.reshape(size, answers.shape[1], -1)
        depends_on[:, -1, 0] = prompt_length - 1
        return Examples.with_prompt_length(tokens, prompt_length, depends_on=depends_on)
