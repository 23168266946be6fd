"""Multiplication of two numbers through written products and running sums: a task that couples on two levels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes, numbers_of

TIMES, EQUALS, NEXT, END, PRODUCT = 10, 11, 12, 13, 14
# A product is at most 9 * 9 with a carry of 9, a sum that and a digit of the row before.
LARGEST_PRODUCT, LARGEST_SUM = 90, 99
SUM = PRODUCT + LARGEST_PRODUCT + 1
# Numbers of digits of the second factor that evaluation names.
COUNTS = (1, 2, 3, 5, 10)
FORM = "a product such as 57x68"
DIGITS = tuple(str(digit) for digit in range(10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplication:
    """Layout ``a x b = > row_1 > row_2 > .. row_m > end``; ``length`` is the number of digits of ``a``.

    ``digits`` is the number of digits of ``b``, None for as many as ``a`` has. ``b`` is written most significant digit
    first, which is the order of the rows, ``a`` least significant digit first. Row r holds ten times the row before
    plus ``a`` times the r-th digit of ``b`` (Horner's rule), least significant digit first, so the last row is the
    product. All rows and ``a`` are padded to the width of the longest possible product.

    A step of a row is two symbols. The first (``56``) is a digit of ``a`` times that of ``b`` plus the carry of the
    step before; the second (``6c5``: digit 6, carry 5) adds the digit that the row before has one place below. A step
    depends on at most three tokens, then on two: k = 3, whatever the lengths.

    Coupling on two levels: which place, and which row. A sum has the place of the digit of ``a`` and the row of the
    digit of ``b`` that are multiplied next; these are also the IDs under which the next row reads it, and a product has
    those of the sum that it is added to. A ``>`` has the IDs of the first place and of its row.
    """

    digits: int | None = 2

    name: ClassVar[str] = "multiplication"
    summary: ClassVar[str] = "product of two numbers through written products and sums; two coupling levels"
    paper: ClassVar[str] = "Cho et al. 2025 (arXiv 2410.15787), the coupling of several levels; the layout is ours"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if self.digits is not None and self.digits < 1:
            raise SettingError(
                f"digits {self.digits} leaves no second factor; use at least 1, or None for as many as the first has"
            )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Digits, signs, products with a carry added, and sums as digit and carry."""
        products = (f"{product:02}" for product in range(LARGEST_PRODUCT + 1))
        sums = (f"{total % 10}c{total // 10}" for total in range(LARGEST_SUM + 1))
        return (*DIGITS, "x", "=", ">", "end", *products, *sums)

    @property
    def separators(self) -> tuple[str, ...]:
        """Two separators: first factor, second factor, rows."""
        return ("x", "=")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw uniformly random digits, the most significant ones not zero where there are several."""
        check_sizes(self.name, length, size)
        counts = (length, length if self.digits is None else self.digits)
        factors = [rng.integers(0, 10, size=(size, count)) for count in counts]
        for factor, count in zip(factors, counts, strict=True):
            factor[:, -1] = rng.integers(1 if count > 1 else 0, 10, size=size)
        return _lay_out(*factors)

    def from_prompt(self, prompt: str) -> Examples:
        """Read a product such as ``57x68`` or ``57*68``, written the usual way, most significant digit first."""
        parts = prompt.replace(" ", "").removesuffix("=").replace("*", "x").split("x")
        if len(parts) != 2 or "" in parts:
            raise PromptError(f"'{prompt}' is no product of two numbers; write one such as 57x68")
        return _lay_out(*(numbers_of(list(part), DIGITS, self.name, FORM)[None, ::-1] for part in parts))

    def variants(self) -> Mapping[str, Task]:
        """One number of digits of the second factor each."""
        return {f"{count} digits": replace(self, digits=count) for count in COUNTS}


def _lay_out(a: Int[np.ndarray, "batch length"], b: Int[np.ndarray, "batch digits"]) -> Examples:
    """Both factors come least significant digit first."""
    (size, length), count = a.shape, b.shape[1]
    width = length + count
    padded = np.pad(a, ((0, 0), (0, count)))
    falling = b[:, ::-1]
    signs = [np.full((size, 1), sign) for sign in (TIMES, EQUALS, NEXT, END)]
    times, equals, start, end = signs
    ends = np.full((size, count, 1), NEXT)
    rows = np.concatenate([_steps(padded, falling), ends], axis=2).reshape(size, -1)
    tokens = np.concatenate([padded, times, falling, equals, start, rows, end], axis=1)
    prompt_length = width + count + 3
    index = np.arange(tokens.shape[1])
    return Examples(
        tokens=tokens,
        prompt_length=np.full(size, prompt_length),
        is_answer=np.broadcast_to(index >= prompt_length, tokens.shape),
        coupling=np.broadcast_to(_groups(count, width)[:, None], (2, *tokens.shape)),
        places=np.broadcast_to(_places(count, width), tokens.shape),
        support=np.broadcast_to(_support(count, width), (*tokens.shape, 3)),
    )


def _steps(a: Int[np.ndarray, "batch width"], b: Int[np.ndarray, "batch digits"]) -> Int[np.ndarray, "batch row steps"]:
    """Every row as products and sums in turn; the digits of ``b`` come in the order of the rows."""
    size, width = a.shape
    steps = np.zeros((size, b.shape[1], width, 2), dtype=np.int64)
    # Ten times a row is the row one place up.
    shifted = np.zeros((size, width + 1), dtype=np.int64)
    for row in range(b.shape[1]):
        before, carry = shifted.copy(), np.zeros(size, dtype=np.int64)
        for place in range(width):
            product = a[:, place] * b[:, row] + carry
            total = product + before[:, place]
            carry = total // 10
            shifted[:, place + 1] = total - 10 * carry
            steps[:, row, place] = np.stack([PRODUCT + product, SUM + total], axis=1)
    return steps.reshape(size, b.shape[1], 2 * width)


def _groups(count: int, width: int) -> Int[np.ndarray, "2 seq"]:
    """Place and row of every token, counted from 1; 0 is no place or no row."""
    place, row = np.arange(1, width + 1), np.arange(1, count + 1)
    prompt = np.concatenate(
        [
            # Behind the last place stands the sign that ends a row, behind the last row the one that ends all.
            np.stack([np.append(place, width + 1), np.zeros(width + 1, dtype=np.int64)]),
            np.stack([np.append(np.zeros(count, dtype=np.int64), 1), np.append(row, count + 1)]),
            np.ones((2, 1), dtype=np.int64),
        ],
        axis=1,
    )
    rows = np.ones((2, count, 2 * width + 1), dtype=np.int64)
    rows[0, :, :-1:2], rows[1, :, :-1:2] = place, row[:, None] - 1
    rows[0, :, 1::2], rows[1, :, 1::2] = place + 1, row[:, None]
    rows[1, :, -1] = row + 1
    return np.concatenate([prompt, rows.reshape(2, -1), [[1], [count + 1]]], axis=1)


def _places(count: int, width: int) -> Int[np.ndarray, " seq"]:
    """Each digit's place in its number as written; of a step, the sum has the digit."""
    place = np.arange(1, width + 1)
    row = np.append(np.stack([np.zeros_like(place), place], axis=1).flatten(), 0)
    return np.concatenate([place, [0], place[:count], [0, 0], np.tile(row, count), [0]])


def _support(count: int, width: int) -> Int[np.ndarray, "seq 3"]:
    """What each answer depends on, as token indexes; -1 fills."""
    first, per_row = width + count + 3, 2 * width + 1
    support = np.full((first + count * per_row + 1, 3), -1)
    rows = support[first:-1].reshape(count, per_row, 3)
    # A row of the table per row of the sum, a column per place.
    row, place = np.arange(count)[:, None], np.arange(width)
    product = first + row * per_row + 2 * place
    rows[:, :-1:2, 0] = place
    rows[:, :-1:2, 1] = width + 1 + row
    rows[:, :-1:2, 2] = np.where(place > 0, product - 1, -1)
    rows[:, 1::2, 0] = product
    rows[:, 1::2, 1] = np.where((row > 0) & (place > 0), product - per_row - 1, -1)
    rows[:, -1, 0] = width
    support[-1, 0] = width + 1 + count
    return support
