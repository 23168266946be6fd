"""Multiplication of two numbers through written products and running sums, with a coupling on two levels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import DIGITS, SCRATCHPAD, Task, add_carries, check_length_and_size, parse_symbols

TIMES_TOKEN, EQUALS_TOKEN, ROW_TOKEN, END_TOKEN, FIRST_PRODUCT_TOKEN = 10, 11, 12, 13, 14
# The largest product is 9 * 9 plus a carry of 9. The largest sum has an additional digit of 9.
MAX_PRODUCT, MAX_SUM = 90, 99
FIRST_SUM_TOKEN = FIRST_PRODUCT_TOKEN + MAX_PRODUCT + 1
FIRST_PARTIAL_TOKEN = FIRST_SUM_TOKEN + MAX_SUM + 1
DIGIT_COUNTS = (1, 2, 3, 5, 10)
EXPECTED_FORMAT = "a product such as 57x68"


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication(Task):
    """Layout ``a x b = > row_1 > row_2 > .. row_m > end``; ``length`` is the number of digits of ``a``.

    ``digits`` is the number of digits of ``b``; None means the same number as ``a``. ``b`` has the most significant
    digit first, in the order of the rows. ``a`` and the rows have the least significant digit first. Row r is ten
    times the previous row plus ``a`` times the r-th digit of ``b`` (Horner's rule), so the last row is the product. All
    rows and ``a`` are padded to the width of the longest possible product.

    Each step of a row has two symbols. The first symbol (``56``) is a digit of ``a`` times a digit of ``b`` plus the
    carry of the previous step. The second symbol (``6c5``: digit 6, carry 5) adds the digit one place lower in the
    previous row. The first depends on up to three tokens and the second on two tokens: k = 3 for all lengths.

    The coupling levels are place and row. A sum has the place of the digit of ``a`` and the row of the digit of ``b``
    in the next multiplication. A product has the IDs of the sum in the previous row to which it is added. A ``>`` has
    the IDs of the first place and of its row.

    With ``trace=True``, a step has three symbols, and each depends on two tokens: a digit of ``a`` times a digit of
    ``b``, then plus the digit of the previous row (``+63``), then plus the carry of the previous step. The second
    symbol has the IDs of the sum with this carry. ``nines_share`` is the share of examples in which half of the digits,
    on average, are 9, so that rare large carries occur in training.
    """

    digits: int | None = 2
    trace: bool = False
    nines_share: float = 0.0

    name: ClassVar[str] = "multiplication"
    summary: ClassVar[str] = "product of two numbers through written products and sums; two coupling levels"
    paper: ClassVar[str] = "Cho et al. 2025 (arXiv 2410.15787), the coupling of several levels; layout by lengthwise"
    given: ClassVar[tuple[str, ...]] = (SCRATCHPAD,)
    separators: ClassVar[tuple[str, ...]] = ("x", "=")

    def __post_init__(self) -> None:
        check_types(self)
        if self.digits is not None and self.digits < 1:
            raise SettingError(
                f"digits {self.digits} is too small; use at least 1, or None for the length of the first factor"
            )
        if not 0 <= self.nines_share <= 1:
            raise SettingError(f"invalid nines_share {self.nines_share}; use a number from 0 to 1")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Digits, signs, products, sums as a digit and a carry, and sums without carry if there is a trace."""
        products = (f"{product:02}" for product in range(MAX_PRODUCT + 1))
        sums = (f"{total % 10}c{total // 10}" for total in range(MAX_SUM + 1))
        partial_sums = (f"+{partial:02}" for partial in range(MAX_PRODUCT + 1)) if self.trace else ()
        return (*DIGITS, "x", "=", ">", "end", *products, *sums, *partial_sums)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample digits, without leading zeros in numbers with several digits; a share of examples has many 9s."""
        check_length_and_size(self.name, length, size)
        digit_counts = (length, length if self.digits is None else self.digits)
        factors = [rng.integers(0, 10, size=(size, num_digits)) for num_digits in digit_counts]
        for factor, num_digits in zip(factors, digit_counts, strict=True):
            factor[:, -1] = rng.integers(1 if num_digits > 1 else 0, 10, size=size)
        if self.nines_share:
            has_nines = rng.random((size, 1)) < self.nines_share
            factors = [np.where(has_nines & (rng.random(factor.shape) < 0.5), 9, factor) for factor in factors]
        return _lay_out(*factors, trace=self.trace)

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse a product such as ``57x68`` or ``57*68``, most significant digit first."""
        factors = prompt.replace(" ", "").removesuffix("=").replace("*", "x").split("x")
        if len(factors) != 2 or "" in factors:
            raise PromptError(f"invalid product '{prompt}' of two numbers; write {EXPECTED_FORMAT}")
        a, b = (parse_symbols(list(factor), DIGITS, self.name, EXPECTED_FORMAT)[None, ::-1] for factor in factors)
        return _lay_out(a, b, trace=self.trace)

    def variants(self) -> Mapping[str, Task]:
        """Return one variant per number of digits of the second factor."""
        return {f"{num_digits} digits": replace(self, digits=num_digits) for num_digits in DIGIT_COUNTS}


def _lay_out(a: Int[np.ndarray, "batch length"], b: Int[np.ndarray, "batch digits"], *, trace: bool) -> Examples:
    """Build examples from factors with the least significant digit first."""
    (batch_size, length), num_rows = a.shape, b.shape[1]
    product_width = length + num_rows
    padded_a = np.pad(a, ((0, 0), (0, num_rows)))
    reversed_b = b[:, ::-1]
    times, equals, start, end = np.full((batch_size, 4), (TIMES_TOKEN, EQUALS_TOKEN, ROW_TOKEN, END_TOKEN)).T[..., None]
    row_end_tokens = np.full((batch_size, num_rows, 1), ROW_TOKEN)
    steps = _steps(padded_a, reversed_b, trace=trace).reshape(batch_size, num_rows, -1)
    rows = np.concatenate([steps, row_end_tokens], axis=2).reshape(batch_size, -1)
    tokens = np.concatenate([padded_a, times, reversed_b, equals, start, rows, end], axis=1)
    coupling, step_index, depends_on = (
        rule(num_rows, product_width, trace) for rule in (_coupling, _step_index, _depends_on)
    )
    return Examples.with_prompt_length(
        tokens,
        product_width + num_rows + 3,
        coupling=coupling[:, None],
        step_index=step_index[None],
        depends_on=depends_on[None],
    )


def _steps(
    a: Int[np.ndarray, "batch width"], b: Int[np.ndarray, "batch digits"], *, trace: bool
) -> Int[np.ndarray, "batch row width symbol"]:
    """Return the symbols of all steps by row and place; the digits of ``b`` are in the order of the rows."""
    batch_size, product_width = a.shape
    steps = np.zeros((batch_size, b.shape[1], product_width, 3 if trace else 2), dtype=np.int64)
    # Multiplication by ten moves the digits of a row by one place.
    shifted_row = np.zeros_like(a)
    for row in range(b.shape[1]):
        products = a * b[:, [row]]
        partials = products + shifted_row
        totals = add_carries(partials)
        if trace:
            symbols = [FIRST_PRODUCT_TOKEN + products, FIRST_PARTIAL_TOKEN + partials, FIRST_SUM_TOKEN + totals]
        else:
            # The first symbol adds the carry of the previous step.
            symbols = [FIRST_PRODUCT_TOKEN + products + totals - partials, FIRST_SUM_TOKEN + totals]
        steps[:, row] = np.stack(symbols, axis=2)
        shifted_row[:, 1:] = totals[:, :-1] % 10
    return steps


def _coupling(num_rows: int, product_width: int, trace: bool) -> Int[np.ndarray, "2 seq"]:
    """Return the place and the row of each token, from 1; tokens without a place or a row have 0."""
    places, row_numbers = np.arange(1, product_width + 1), np.arange(1, num_rows + 1)
    # The sign after the last place ends the row. The sign after the last row ends the sequence.
    a = np.stack([np.append(places, product_width + 1), np.zeros(product_width + 1, dtype=np.int64)])
    b = np.stack([np.append(np.zeros(num_rows, dtype=np.int64), 1), np.append(row_numbers, num_rows + 1)])
    steps = np.empty((2, num_rows, product_width, 3 if trace else 2), dtype=np.int64)
    steps[0], steps[1] = places[:, None], row_numbers[:, None, None]
    steps[1, ..., 0] -= 1
    steps[0, ..., -1] += 1
    row_ends = np.stack([np.ones_like(row_numbers), row_numbers + 1])[..., None]
    rows = np.concatenate([steps.reshape(2, num_rows, -1), row_ends], axis=2)
    return np.concatenate([a, b, [[1], [1]], rows.reshape(2, -1), [[1], [num_rows + 1]]], axis=1)


def _step_index(num_rows: int, product_width: int, trace: bool) -> Int[np.ndarray, " seq"]:
    """Return the place of each digit in its number; in a step, only the sum has a place."""
    places = np.arange(1, product_width + 1)
    step_places = np.zeros((product_width, 3 if trace else 2), dtype=np.int64)
    step_places[:, -1] = places
    row_places = np.append(step_places.flatten(), 0)
    return np.concatenate([places, [0], places[:num_rows], [0, 0], np.tile(row_places, num_rows), [0]])


def _depends_on(num_rows: int, product_width: int, trace: bool) -> Int[np.ndarray, "seq 3"]:
    symbols_per_step = 3 if trace else 2
    response_start, row_width = product_width + num_rows + 3, symbols_per_step * product_width + 1
    depends_on = np.full((response_start + num_rows * row_width + 1, 3), -1)
    rows = depends_on[response_start:-1].reshape(num_rows, row_width, 3)
    # Shape: row, place, symbol, source.
    steps = rows[:, :-1].reshape(num_rows, product_width, symbols_per_step, 3)
    row, place = np.arange(num_rows)[:, None], np.arange(product_width)
    product_index = response_start + row * row_width + symbols_per_step * place
    steps[..., 0, 0] = place
    steps[..., 0, 1] = product_width + 1 + row
    # The second symbol adds the previous row. The carry is part of the product, or of the third symbol.
    steps[..., 1, 0] = product_index
    steps[..., 1, 1] = np.where((row > 0) & (place > 0), product_index - row_width - 1, -1)
    steps[..., 2 if trace else 0, 2] = np.where(place > 0, product_index - 1, -1)
    if trace:
        steps[..., 2, 0] = product_index + 1
    rows[:, -1, 0] = product_width
    depends_on[-1, 0] = product_width + 1 + num_rows
    return depends_on
