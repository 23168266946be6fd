"""Sequences and couplings of records: ``p_1 .. p_n <mark> <start> r_1 .. r_m end``."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_table import JSONLTable


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Indexes of a batch of records in their sequences."""

    table: JSONLTable
    records: Int[np.ndarray, " batch"]

    @property
    def record_start(self) -> Int[np.ndarray, "batch 1"]:
        """Index of the first token of each record in the table."""
        return self.table.starts[self.records, None]

    @property
    def mark_index(self) -> Int[np.ndarray, "batch 1"]:
        """Token index of ``<mark>``, which is the number of prompt tokens."""
        return self.table.prompt_lengths[self.records, None]

    @property
    def last_response_index(self) -> Int[np.ndarray, "batch 1"]:
        """Token index of the last response token."""
        return self.table.starts[self.records + 1, None] - self.record_start + 1

    @property
    def token_index(self) -> Int[np.ndarray, " seq"]:
        """Token indexes of the longest sequence."""
        return np.arange(int(self.last_response_index.max()) + 2)

    def examples(self, descending_levels: tuple[bool, ...]) -> Examples:
        """Return the examples; ``descending_levels`` are the levels on which ``<mark>`` has the smallest number."""
        table, token_index, mark_index = self.table, self.token_index, self.mark_index
        is_prompt = token_index < mark_index
        is_response = (token_index > mark_index + 1) & (token_index <= self.last_response_index)
        is_record_token = is_prompt | is_response
        table_index = self.record_start + np.where(is_prompt, token_index, token_index - 2)
        tokens = np.full(is_record_token.shape, len(table.symbols) + 2)
        tokens[is_record_token] = table.tokens[table_index[is_record_token]]
        tokens[token_index == mark_index] -= 2
        tokens[token_index == mark_index + 1] -= 1
        coupling = None
        if table.coupling is not None:
            levels = range(len(table.coupling))
            coupling = np.stack([self._coupling(level, descending_levels[level]) for level in levels])
        return Examples(
            tokens=tokens,
            prompt_length=mark_index[:, 0].astype(np.int64) + 2,
            is_answer=is_response | (token_index == self.last_response_index + 1),
            coupling=coupling,
        )

    def _coupling(self, level: int, is_descending: bool) -> Int[np.ndarray, "batch seq"]:
        """Return the coupling of a level; from the start token on, each token has the number of the next token."""
        assert self.table.coupling is not None
        token_index, mark_index, last_response_index = self.token_index, self.mark_index, self.last_response_index
        has_number = (token_index != mark_index) & (token_index < last_response_index)
        table_index = (self.record_start + np.where(token_index < mark_index, token_index, token_index - 1))[has_number]
        numbers = np.zeros(has_number.shape, dtype=np.int64)
        # Increase the numbers by one, so that the mark can have a smaller number.
        numbers[has_number] = self.table.coupling[level, table_index] + 1
        number_above = numbers.max(axis=1, keepdims=True) + 1
        if self.table.added_coupling is None:
            mark_number = number_above
            if is_descending:
                mark_number = _smallest(numbers, has_number) - 1
            end_number = mark_number
        else:
            mark_number, end_number = np.split(self.table.added_coupling[level, self.records] + 1, 2, axis=1)
            number_above = np.maximum(number_above - 1, np.maximum(mark_number, end_number))
        # The last response token has the number of the end token.
        added_numbers = np.where(token_index == last_response_index, end_number, mark_number)
        added_numbers = np.where(token_index > last_response_index, number_above + 1, added_numbers)
        return np.where(has_number, numbers, added_numbers)


def _smallest(
    numbers: Int[np.ndarray, "batch seq"], has_number: Bool[np.ndarray, "batch seq"]
) -> Int[np.ndarray, "batch 1"]:
    return numbers.min(axis=1, keepdims=True, where=has_number, initial=np.iinfo(np.int64).max)
