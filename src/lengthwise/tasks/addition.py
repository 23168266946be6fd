"""Addition of two numbers: plain, with written carries, or with a trace of each digit that is read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import DIGITS, SCRATCHPAD, Task, add_carries, check_length_and_size, parse_summands

ORDERS = ("least", "most", "reversed_sum")
SCRATCHPADS = ("none", "carry", "trace")
PLUS_TOKEN, EQUALS_TOKEN, END_TOKEN, FIRST_DIGIT_WITH_CARRY, FIRST_READ_TOKEN = 10, 11, 12, 13, 23


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition(Task):
    """Layout ``a + b = s end``; ``length`` is the number of digits of the longer operand.

    ``order="least"`` writes all numbers with the least significant digit first. ``"most"`` writes them with the most
    significant digit first. ``"reversed_sum"`` reverses only the sum: its least significant digit comes first.
    ``zero_padding`` writes all three numbers with ``length + 1`` digits, so that every carry has a place.
    ``scratchpad="carry"`` writes each digit and its carry as one symbol, such as ``3c``. Each answer then depends on
    k = 3 tokens, or on k = 5 without a scratchpad. For ``order="most"``, the support is unbounded.
    ``scratchpad="trace"`` also writes, before each digit, the previous carry plus the digit of ``a``, such as ``r9``.
    Each answer then depends on the token before it and on one digit: k = 2.
    ``long_carry_share`` is the share of examples with a carry chain of random length. ``long_carry_from`` is the
    minimum length of the chain as a share of the digits. ``unequal=True`` samples the number of digits of ``b``.

    Coupling (after Cho et al. 2024): the ID of a digit is its significance. A token of the sum has the ID of the digits
    that the next token depends on. The last digit of the sum has the ID of the ``+``. A token such as ``r9`` has the ID
    of the digit of ``b`` that is added to it.
    """

    order: str = "least"
    zero_padding: bool = True
    scratchpad: str = "none"
    long_carry_share: float = 1 / 3
    long_carry_from: float = 0.0
    unequal: bool = False

    name: ClassVar[str] = "addition"
    summary: ClassVar[str] = "sum of two numbers, plain or with written carries"
    paper: ClassVar[str] = "Cho et al. 2024 (arXiv 2405.20671)"
    separators: ClassVar[tuple[str, ...]] = ("+", "=")

    def __post_init__(self) -> None:
        check_types(self)
        for setting, choice, choices in (("order", self.order, ORDERS), ("scratchpad", self.scratchpad, SCRATCHPADS)):
            if choice not in choices:
                raise SettingError(f"unknown {setting} '{choice}' of addition; use one of {', '.join(choices)}")
        for setting, share in (("long_carry_share", self.long_carry_share), ("long_carry_from", self.long_carry_from)):
            if not 0 <= share <= 1:
                raise SettingError(f"invalid {setting} {share}; use a number from 0 to 1")
        if self.scratchpad != "none" and self.order == "most":
            raise SettingError(
                f"scratchpad '{self.scratchpad}' does not support order 'most'; use order 'least' or 'reversed_sum'"
            )

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Digits, signs, the end token, digits with a carry if there is a scratchpad, and the tokens of a trace."""
        digits_with_carry = tuple(f"{digit}c" for digit in DIGITS) if self.scratchpad != "none" else ()
        reads = tuple(f"r{number}" for number in range(11)) if self.scratchpad == "trace" else ()
        return (*DIGITS, "+", "=", "end", *digits_with_carry, *reads)

    @property
    def given(self) -> tuple[str, ...]:
        """Kind ``"scratchpad"`` if the response contains carries; otherwise an empty tuple."""
        return (SCRATCHPAD,) if self.scratchpad != "none" else ()

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample digits uniformly; the share ``long_carry_share`` of the examples has a carry chain."""
        check_length_and_size(self.name, length, size)
        digits = rng.integers(0, 10, size=(2, size, length))
        b_lengths = rng.integers(1, length + 1, size=size) if self.unequal else np.full(size, length)
        for operand, num_digits in zip(digits, (np.full(size, length), b_lengths), strict=True):
            operand[np.arange(size), num_digits - 1] = rng.integers(1 if length > 1 else 0, 10, size=size)
            operand[np.arange(length) >= num_digits[:, None]] = 0
        self._plant_carries(digits, rng)
        return self._lay_out(digits)

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse a sum such as ``57+68``, most significant digit first."""
        digits = parse_summands(prompt, self.name, "57+68")
        if len(digits) != 2:
            raise PromptError(f"invalid sum '{prompt}' of {len(digits)} numbers; write two numbers such as 57+68")
        return self._lay_out(digits[:, None])

    def variants(self) -> Mapping[str, Task]:
        """Return variants: uniform digits, carry chains over at least half of the digits, and unequal operands."""
        return {
            "uniform": replace(self, long_carry_share=0.0, unequal=False),
            "carry": replace(self, long_carry_share=1.0, long_carry_from=0.5, unequal=False),
            "unequal": replace(self, long_carry_share=0.0, unequal=True),
        }

    def _plant_carries(self, digits: Int[np.ndarray, "2 batch length"], rng: np.random.Generator) -> None:
        """Rewrite the operands so that a carry starts at a random digit and runs through digit pairs with sum nine."""
        _, batch_size, length = digits.shape
        has_chain = rng.random((batch_size, 1)) < self.long_carry_share
        min_chain_length = max(1, int(np.ceil(self.long_carry_from * length)))
        chain_length = rng.integers(min_chain_length, length + 1, size=(batch_size, 1))
        chain_start = (rng.random((batch_size, 1)) * (length - chain_length + 1)).astype(np.int64)
        significance = np.arange(length)
        is_start = has_chain & (significance == chain_start)
        has_sum_nine = has_chain & (significance > chain_start) & (significance < chain_start + chain_length)
        a, b = digits
        a[is_start] = np.maximum(a[is_start], 1)
        b[is_start] = 10 - a[is_start] + (rng.random(int(is_start.sum())) * a[is_start]).astype(np.int64)
        b[has_sum_nine] = 9 - a[has_sum_nine]

    def _lay_out(self, digits: Int[np.ndarray, "2 batch length"]) -> Examples:
        length = digits.shape[2]
        operands = np.pad(digits, ((0, 0), (0, 0), (0, 1)))
        totals = add_carries(operands.sum(axis=0))
        numbers, carries = np.stack([*operands, totals % 10]), totals // 10
        layout = _Layout(self, numbers, length)
        symbols = numbers.copy()
        if self.scratchpad != "none":
            symbols[2] += FIRST_DIGIT_WITH_CARRY * carries
        reads = FIRST_READ_TOKEN + numbers[0] + np.pad(carries, ((0, 0), (1, 0)))[:, :-1]
        significances, masks = (*layout.significance, layout.significance[2]), (*layout.is_digit, layout.is_read)
        tokens = np.full(masks[0].shape, END_TOKEN)
        for number_symbols, significance, mask in zip((*symbols, reads), significances, masks, strict=True):
            number_tokens = np.take_along_axis(number_symbols, (significance - 1).clip(0, length), axis=1)
            tokens = np.where(mask, number_tokens, tokens)
        tokens = np.where(layout.index == layout.plus_index, PLUS_TOKEN, tokens)
        tokens = np.where(layout.index == layout.equals_index, EQUALS_TOKEN, tokens)
        prompt_length = layout.equals_index + 1
        return Examples(
            tokens=tokens,
            prompt_length=prompt_length[:, 0],
            is_answer=(layout.index >= prompt_length) & (layout.index <= layout.end_index),
            coupling=layout.coupling()[None],
            step_index=np.where(layout.is_digit, layout.place + 1, 0).sum(axis=0),
            depends_on=layout.depends_on(),
        )


class _Layout:
    """Place and significance of each token in the two operands and the sum, which are the numbers 0, 1 and 2.

    ``place`` counts the digits of a number from 0 in writing order; ``significance`` counts from 1. ``is_digit`` marks
    the digits of each number, and ``is_read`` the tokens of a trace before each digit of the sum.
    """

    def __init__(self, task: Addition, numbers: Int[np.ndarray, "3 batch width"], length: int) -> None:
        self.task = task
        self.num_digits = np.full((3, numbers.shape[1], 1), length + 1)
        if not task.zero_padding:
            # Count the digits without leading zeros, but keep a single zero.
            num_significant = length + 1 - (numbers[:, :, ::-1] != 0).argmax(axis=2)
            self.num_digits = np.where((numbers != 0).any(axis=2), num_significant, 1)[:, :, None]
        tokens_per_digit = np.array([1, 1, 2 if task.scratchpad == "trace" else 1])[:, None, None]
        self.plus_index = self.num_digits[0]
        self.equals_index = self.plus_index + 1 + self.num_digits[1]
        self.end_index = self.equals_index + 1 + tokens_per_digit[2] * self.num_digits[2]
        self.starts = np.stack([np.zeros_like(self.plus_index), self.plus_index + 1, self.equals_index + 1])
        self.max_digits = self.num_digits[:2].max(axis=0)
        self.index = np.arange(int(self.end_index.max()) + 1)[None]
        self.place, token = np.divmod(self.index - self.starts, tokens_per_digit)
        is_inside = (self.place >= 0) & (self.place < self.num_digits)
        self.is_last_token = token == tokens_per_digit - 1
        self.is_digit, self.is_read = is_inside & self.is_last_token, is_inside[2] & ~self.is_last_token[2]
        is_descending = np.array([task.order != "least", task.order != "least", task.order == "most"])[:, None, None]
        self.significance = np.where(is_descending, self.num_digits - self.place, self.place + 1)

    def coupling(self) -> Int[np.ndarray, "batch seq"]:
        """Return the significance of each operand digit and, for ``=`` and the sum, of the next digit of the sum."""
        is_descending = self.task.order == "most"
        plus_group = np.zeros_like(self.max_digits) if is_descending else self.max_digits + 1
        group_ids = np.where(self.index == self.plus_index, plus_group, self.max_digits + 2)
        group_ids = np.where(self.index == self.equals_index, self.max_digits if is_descending else 1, group_ids)
        first, second, total = self.significance
        next_digit = total - 1 if is_descending else np.minimum(total + 1, self.max_digits + 1)
        for digit_ids, is_digit in zip((first, second, next_digit), self.is_digit, strict=True):
            group_ids = np.where(is_digit, digit_ids, group_ids)
        return np.where(self.is_read, total, group_ids)

    def depends_on(self) -> Int[np.ndarray, "batch seq k"] | None:
        """Return the token indexes that each answer depends on: operand digits and the preceding symbol."""
        if self.task.order == "most":
            return None
        significance = self.significance[2]
        is_answer = (significance >= 1) & (self.index <= self.end_index)
        sources = [self._digit_index(number, significance) for number in range(2)]
        if self.task.scratchpad == "trace":
            # A token reads one digit: first that of ``a``, then that of ``b``.
            sources = [np.where(self.is_last_token[2], sources[1], sources[0])]
        # The end of the sum depends on the plus, which follows the last digit.
        sources[0] = np.where(significance > self.max_digits, self.plus_index, sources[0])
        if self.task.scratchpad == "none":
            sources += [self._digit_index(number, significance - 1) for number in range(2)]
        sources.append(np.where(self.index > self.equals_index + 1, self.index - 1, -1))
        return np.where(is_answer[..., None], np.stack(np.broadcast_arrays(*sources), axis=-1), -1)

    def _digit_index(self, number: int, significance: Int[np.ndarray, "batch seq"]) -> Int[np.ndarray, "batch seq"]:
        """Return the token index of the digit with this significance, or -1 if the number has no such digit."""
        num_digits = self.num_digits[number]
        place = significance - 1 if self.task.order == "least" else num_digits - significance
        is_digit = (significance >= 1) & (significance <= num_digits)
        return np.where(is_digit, self.starts[number] + place, -1)
