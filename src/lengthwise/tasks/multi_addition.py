"""Addition of several numbers through written partial sums: a task that couples on two levels."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes, summands

PLUS, EQUALS, NEXT, END, CARRYING, NO_CARRY, CARRY = 10, 11, 12, 13, 14, 24, 25
# Operand counts that evaluation names.
COUNTS = (2, 5, 10, 15, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiAddition:
    """Layout ``a_1 + .. + a_m = > row_2 > row_3 .. > row_m end``; ``length`` is the number of digits of an operand.

    Row r holds the sum of the first r operands, one step per digit: the digit with the carry it makes (``3`` or
    ``3c``), then that carry again (``.`` or ``c``). Numbers are written least significant digit first and padded to
    the width of the longest possible sum. The number of operands is drawn from ``operands``, one for all sequences of
    a batch.

    Coupling on two levels (after Cho et al. 2025): which digit, and which row. A digit has the IDs under which it will
    be read, a carry and ``>`` have those of the digits that are needed next; so both digits of a step are at ID
    distance 0 on both levels, whatever the gaps. Each answer depends on at most two tokens of these and the one before:
    k = 3.
    """

    operands: tuple[int, int] = (2, 5)

    name: ClassVar[str] = "multi_addition"
    summary: ClassVar[str] = "sum of several numbers through written partial sums; two coupling levels"
    paper: ClassVar[str] = "Cho et al. 2025 (arXiv 2410.15787)"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        fewest, most = self.operands
        if not 2 <= fewest <= most:
            raise SettingError(f"operands {fewest} to {most} is no range of sums; use two numbers from 2 on, rising")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Digits, signs, digits that carry, and the carry by itself."""
        digits = tuple(str(digit) for digit in range(10))
        return (*digits, "+", "=", ">", "end", *(f"{digit}c" for digit in digits), ".", "c")

    @property
    def separators(self) -> tuple[str, ...]:
        """One separator: what follows it is the response."""
        return ("=",)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw a number of operands and uniformly random digits."""
        check_sizes(self.name, length, size)
        count = int(rng.integers(self.operands[0], self.operands[1] + 1))
        digits = rng.integers(0, 10, size=(size, count, length))
        digits[:, :, -1] = rng.integers(1 if length > 1 else 0, 10, size=(size, count))
        return _lay_out(digits)

    def from_prompt(self, prompt: str) -> Examples:
        """Read a sum such as ``57+68+9``, written the usual way, most significant digit first."""
        parts = prompt.replace(" ", "").removesuffix("=").split("+")
        if len(parts) < 2:
            raise PromptError(f"'{prompt}' is no sum; write one such as 57+68+9")
        numbers = summands(prompt, parts, self.name, "57+68+9")
        digits = np.zeros((1, len(numbers), max(map(len, numbers))), dtype=np.int64)
        for place, number in enumerate(numbers):
            digits[0, place, : len(number)] = number
        return _lay_out(digits)

    def variants(self) -> Mapping[str, Task]:
        """One number of operands each."""
        return {f"{count} operands": replace(self, operands=(count, count)) for count in COUNTS}


def _lay_out(digits: Int[np.ndarray, "batch operand length"]) -> Examples:
    size, count, length = digits.shape
    width = length + len(str(count - 1))
    padded = np.zeros((size, count, width), dtype=np.int64)
    padded[:, :, :length] = digits
    signs = np.full((size, count, 1), PLUS)
    signs[:, -1] = EQUALS
    prompt = np.concatenate([padded, signs], axis=2).reshape(size, -1)
    ends = np.full((size, count - 1, 1), NEXT)
    ends[:, -1] = END
    response = np.concatenate([_steps(padded), ends], axis=2).reshape(size, -1)
    tokens = np.concatenate([prompt, np.full((size, 1), NEXT), response], axis=1)
    prompt_length = prompt.shape[1] + 1
    index = np.arange(tokens.shape[1])
    return Examples(
        tokens=tokens,
        prompt_length=np.full(size, prompt_length),
        is_answer=np.broadcast_to(index >= prompt_length, tokens.shape),
        coupling=np.broadcast_to(_groups(count, width)[:, None], (2, *tokens.shape)),
        places=np.broadcast_to(_places(count, width), tokens.shape),
        support=np.broadcast_to(_support(count, width), (*tokens.shape, 3)),
    )


def _steps(padded: Int[np.ndarray, "batch operand width"]) -> Int[np.ndarray, "batch row two_width"]:
    """Every partial sum as digits with their carry, each followed by the carry."""
    size, count, width = padded.shape
    steps = np.zeros((size, count - 1, width, 2), dtype=np.int64)
    total = padded[:, 0].copy()
    for row in range(count - 1):
        carry = np.zeros(size, dtype=np.int64)
        for place in range(width):
            step = total[:, place] + padded[:, row + 1, place] + carry
            carry = step // 10
            total[:, place] = step - 10 * carry
            steps[:, row, place, 0] = total[:, place] + np.where(carry > 0, CARRYING, 0)
            steps[:, row, place, 1] = NO_CARRY + carry
    return steps.reshape(size, count - 1, 2 * width)


def _groups(count: int, width: int) -> Int[np.ndarray, "2 seq"]:
    """Digit and row of every token, counted from 1; the first two operands are the first row's."""
    digit = range(1, width + 1)
    pairs = []
    for operand in range(count):
        own = max(operand, 1)
        # No row ends at the first operand's sign: it stands for the row of sums that nobody reads.
        pairs += [(place, own) for place in digit] + [(width + 1, own if operand > 0 else count)]
    pairs.append((1, 1))
    for own in range(1, count):
        for place in digit:
            pairs += [(place, own + 1), (place + 1, own)]
        pairs.append((1, own + 1))
    return np.array(pairs).T


def _places(count: int, width: int) -> Int[np.ndarray, " seq"]:
    """Each digit's place in its number."""
    digit = np.arange(1, width + 1)
    operands = [*digit, 0] * count
    steps = [*np.stack([digit, np.zeros_like(digit)], axis=1).flatten(), 0] * (count - 1)
    return np.array([*operands, 0, *steps])


def _support(count: int, width: int) -> Int[np.ndarray, "seq 3"]:
    """What each answer depends on, as token indexes; -1 fills."""
    first = count * (width + 1) + 1
    support = np.full((first + (count - 1) * (2 * width + 1), 3), -1)
    index = first
    for row in range(count - 1):
        for place in range(width):
            # The first row adds two operands, every other one an operand to the row before.
            summed = place if row == 0 else index - (2 * width + 1)
            support[index] = ((row + 1) * (width + 1) + place, summed, index - 1)
            support[index + 1, 0] = index
            index += 2
        support[index, 0] = (row + 1) * (width + 1) + width
        index += 1
    return support
