"""Addition of several numbers through written partial sums, with a coupling on two levels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import DIGITS, SCRATCHPAD, Task, add_carries, check_length_and_size, parse_summands

PLUS_TOKEN, EQUALS_TOKEN, ROW_TOKEN, END_TOKEN, FIRST_DIGIT_WITH_CARRY, NO_CARRY_TOKEN = 10, 11, 12, 13, 14, 24
OPERAND_COUNTS = (2, 5, 10, 15, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiAddition(Task):
    """Layout ``a_1 + .. + a_m = > row_2 > row_3 .. > row_m end``; ``length`` is the number of digits of an operand.

    Row r is the sum of the first r operands. Each step has two symbols: a digit with its carry (``3`` or ``3c``), then
    the carry again (``.`` or ``c``). Numbers have the least significant digit first and the width of the longest
    possible sum. The number of operands is sampled from the range ``operands``, once per batch.

    The two coupling levels (after Cho et al. 2025) are the place of a digit and the row. A digit has the IDs of the
    step that adds it. A carry and a ``>`` have the IDs of the digits that the next step adds. These two digits are at
    ID distance 0 on both levels, for all gaps. An answer depends on at most two digits and the preceding token: k = 3.
    """

    operands: tuple[int, int] = (2, 5)

    name: ClassVar[str] = "multi_addition"
    summary: ClassVar[str] = "sum of several numbers through written partial sums; two coupling levels"
    paper: ClassVar[str] = "Cho et al. 2025 (arXiv 2410.15787)"
    given: ClassVar[tuple[str, ...]] = (SCRATCHPAD,)
    separators: ClassVar[tuple[str, ...]] = ("=",)

    def __post_init__(self) -> None:
        check_types(self)
        min_operands, max_operands = self.operands
        if not 2 <= min_operands <= max_operands:
            raise SettingError(
                f"invalid range of operands ({min_operands}, {max_operands}); "
                "use a minimum of at least 2 and a maximum not below it"
            )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Digits, signs, digits with a carry, and the symbols ``.`` (no carry) and ``c`` (carry)."""
        return (*DIGITS, "+", "=", ">", "end", *(f"{digit}c" for digit in DIGITS), ".", "c")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample the number of operands, then the digits uniformly."""
        check_length_and_size(self.name, length, size)
        num_operands = int(rng.integers(self.operands[0], self.operands[1] + 1))
        digits = rng.integers(0, 10, size=(size, num_operands, length))
        digits[:, :, -1] = rng.integers(1 if length > 1 else 0, 10, size=(size, num_operands))
        return _lay_out(digits)

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse a sum such as ``57+68+9``, most significant digit first."""
        return _lay_out(parse_summands(prompt, self.name, "57+68+9")[None])

    def variants(self) -> Mapping[str, Task]:
        """Return one variant per number of operands."""
        return {f"{count} operands": replace(self, operands=(count, count)) for count in OPERAND_COUNTS}


def _lay_out(digits: Int[np.ndarray, "batch operand length"]) -> Examples:
    batch_size, num_operands, length = digits.shape
    sum_width = length + len(str(num_operands - 1))
    padded_operands = np.zeros((batch_size, num_operands, sum_width), dtype=np.int64)
    padded_operands[:, :, :length] = digits
    sign_tokens = np.full((batch_size, num_operands, 1), PLUS_TOKEN)
    sign_tokens[:, -1] = EQUALS_TOKEN
    prompt = np.concatenate([padded_operands, sign_tokens], axis=2).reshape(batch_size, -1)
    end_tokens = np.full((batch_size, num_operands - 1, 1), ROW_TOKEN)
    end_tokens[:, -1] = END_TOKEN
    response = np.concatenate([_steps(padded_operands), end_tokens], axis=2).reshape(batch_size, -1)
    tokens = np.concatenate([prompt, np.full((batch_size, 1), ROW_TOKEN), response], axis=1)
    coupling, step_index, depends_on = (rule(num_operands, sum_width) for rule in (_coupling, _step_index, _depends_on))
    return Examples.with_prompt_length(
        tokens,
        prompt.shape[1] + 1,
        coupling=coupling[:, None],
        step_index=step_index[None],
        depends_on=depends_on[None],
    )


def _steps(padded_operands: Int[np.ndarray, "batch operand width"]) -> Int[np.ndarray, "batch row two_width"]:
    """Return the partial sums as pairs of tokens: a digit with its carry, then the carry."""
    batch_size, num_operands, sum_width = padded_operands.shape
    steps = np.zeros((batch_size, num_operands - 1, sum_width, 2), dtype=np.int64)
    partial_sum = padded_operands[:, 0]
    for row in range(num_operands - 1):
        totals = add_carries(partial_sum + padded_operands[:, row + 1])
        partial_sum, carries = totals % 10, totals // 10
        steps[:, row, :, 0] = partial_sum + FIRST_DIGIT_WITH_CARRY * carries
        steps[:, row, :, 1] = NO_CARRY_TOKEN + carries
    return steps.reshape(batch_size, num_operands - 1, 2 * sum_width)


def _coupling(num_operands: int, sum_width: int) -> Int[np.ndarray, "2 seq"]:
    """Return the place and the row of each token, both from 1; the first two operands belong to row 1."""
    digit_places = range(1, sum_width + 1)
    places_and_rows = []
    for operand in range(num_operands):
        row = max(operand, 1)
        # The first sign does not end a row. It has the number of the last row, which no step uses.
        places_and_rows += [(place, row) for place in digit_places]
        places_and_rows.append((sum_width + 1, row if operand > 0 else num_operands))
    places_and_rows.append((1, 1))
    for row in range(1, num_operands):
        for place in digit_places:
            places_and_rows += [(place, row + 1), (place + 1, row)]
        places_and_rows.append((1, row + 1))
    return np.array(places_and_rows).T


def _step_index(num_operands: int, sum_width: int) -> Int[np.ndarray, " seq"]:
    digit_places = np.arange(1, sum_width + 1)
    operand_places = [*digit_places, 0] * num_operands
    step_places = [*np.stack([digit_places, np.zeros_like(digit_places)], axis=1).flatten(), 0] * (num_operands - 1)
    return np.array([*operand_places, 0, *step_places])


def _depends_on(num_operands: int, sum_width: int) -> Int[np.ndarray, "seq 3"]:
    response_start = num_operands * (sum_width + 1) + 1
    depends_on = np.full((response_start + (num_operands - 1) * (2 * sum_width + 1), 3), -1)
    answer_index = response_start
    for row in range(num_operands - 1):
        for place in range(sum_width):
            # The first row is the sum of two operands. Every other row adds an operand to the previous row.
            previous_index = place if row == 0 else answer_index - (2 * sum_width + 1)
            depends_on[answer_index] = ((row + 1) * (sum_width + 1) + place, previous_index, answer_index - 1)
            depends_on[answer_index + 1, 0] = answer_index
            answer_index += 2
        depends_on[answer_index, 0] = (row + 1) * (sum_width + 1) + sum_width
        answer_index += 1
    return depends_on
