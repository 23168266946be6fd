"""Addition of two numbers, plain or with the carry written beside each digit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes, summands

ORDERS = ("least", "most", "reversed_sum")
SCRATCHPADS = ("none", "carry")
PLUS, EQUALS, END = 10, 11, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """Layout ``a + b = s end``; ``length`` is the number of digits of the longer operand.

    ``order``: ``"least"`` writes every number least significant digit first, ``"most"`` most significant first,
    ``"reversed_sum"`` the operands most significant first and the sum least significant first.
    ``zero_padding`` writes all three numbers with ``length + 1`` digits, so that every carry has a place.
    ``scratchpad="carry"`` writes each step as one symbol for (digit, carry), such as ``3c``: k = 3; the plain format
    needs the two digits before as well: k = 5 (most significant first, the support is not bounded).
    ``long_carry_share`` of the examples get a carry chain of random length; ``long_carry_from`` is the shortest one as
    a share of the digits. ``unequal`` draws the shorter operand's number of digits uniformly.

    Coupling (after Cho et al. 2024): a digit's ID is its significance; a token of the sum carries the ID of the digits
    that are needed next, the last one that of the ``+``.
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
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        for setting, value, allowed in (("order", self.order, ORDERS), ("scratchpad", self.scratchpad, SCRATCHPADS)):
            if value not in allowed:
                raise SettingError(f"{setting} '{value}' is unknown to addition; choose one of {', '.join(allowed)}")
        for setting, share in (("long_carry_share", self.long_carry_share), ("long_carry_from", self.long_carry_from)):
            if not 0 <= share <= 1:
                raise SettingError(f"{setting} {share} is no share; use a number from 0 to 1")
        if self.scratchpad == "carry" and self.order == "most":
            raise SettingError("order 'most' has no carry to write before the digit; use 'least' or 'reversed_sum'")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Digits, signs, end token and, with a scratchpad, the digits that carry."""
        digits = tuple(str(digit) for digit in range(10))
        carrying = tuple(f"{digit}c" for digit in digits) if self.scratchpad == "carry" else ()
        return (*digits, "+", "=", "end", *carrying)

    @property
    def separators(self) -> tuple[str, ...]:
        """Two separators: first operand, second operand, sum."""
        return ("+", "=")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw uniformly random digits, and long carry chains in a share of the examples."""
        check_sizes(self.name, length, size)
        digits = rng.integers(0, 10, size=(2, size, length))
        shorter = rng.integers(1, length + 1, size=size) if self.unequal else np.full(size, length)
        for operand, count in enumerate((np.full(size, length), shorter)):
            digits[operand, np.arange(size), count - 1] = rng.integers(1 if length > 1 else 0, 10, size=size)
            digits[operand][np.arange(length) >= count[:, None]] = 0
        chosen = rng.random(size) < self.long_carry_share
        self._plant_carries(digits, chosen, rng)
        return self._lay_out(digits)

    def from_prompt(self, prompt: str) -> Examples:
        """Read a sum such as ``57+68``, written the usual way, most significant digit first."""
        parts = prompt.replace(" ", "").removesuffix("=").split("+")
        if len(parts) != 2:
            raise PromptError(f"'{prompt}' is no sum of two numbers; write one such as 57+68")
        numbers = summands(prompt, parts, self.name, "57+68")
        digits = np.zeros((2, 1, max(map(len, numbers))), dtype=np.int64)
        for operand, number in enumerate(numbers):
            digits[operand, 0, : len(number)] = number
        return self._lay_out(digits)

    def variants(self) -> Mapping[str, Task]:
        """Uniform digits, carry chains of at least half the number, and operands of unequal length."""
        return {
            "uniform": replace(self, long_carry_share=0.0, unequal=False),
            "carry": replace(self, long_carry_share=1.0, long_carry_from=0.5, unequal=False),
            "unequal": replace(self, long_carry_share=0.0, unequal=True),
        }

    def _plant_carries(
        self, digits: Int[np.ndarray, "2 batch length"], chosen: Bool[np.ndarray, " batch"], rng: np.random.Generator
    ) -> None:
        """Rewrite the second operand so that a carry starts at a random digit and runs through a chain of nines."""
        _, size, length = digits.shape
        shortest = max(1, int(np.ceil(self.long_carry_from * length)))
        chain = rng.integers(shortest, length + 1, size=size)
        first = (rng.random(size) * (length - chain + 1)).astype(np.int64)
        significance = np.arange(length)
        starts = chosen[:, None] & (significance == first[:, None])
        runs = chosen[:, None] & (significance > first[:, None]) & (significance < (first + chain)[:, None])
        a, b = digits
        a[starts] = np.maximum(a[starts], 1)
        b[starts] = 10 - a[starts] + (rng.random(int(starts.sum())) * a[starts]).astype(np.int64)
        b[runs] = 9 - a[runs]

    def _lay_out(self, digits: Int[np.ndarray, "2 batch length"]) -> Examples:
        length = digits.shape[2]
        numbers, carries = _add(digits)
        places = _Places(self, numbers, length)
        tokens = np.full(places.grid, END)
        written = numbers.copy()
        if self.scratchpad == "carry":
            written[2] += np.where(carries, END + 1, 0)
        for number, symbols in enumerate(written):
            significance, inside = places.significance(number)
            tokens = np.where(inside, np.take_along_axis(symbols, (significance - 1).clip(0, length), axis=1), tokens)
        tokens = np.where(places.index == places.plus, PLUS, tokens)
        tokens = np.where(places.index == places.equals, EQUALS, tokens)
        prompt_length = places.equals + 1
        return Examples(
            tokens=tokens,
            prompt_length=prompt_length[:, 0],
            is_answer=(places.index >= prompt_length) & (places.index <= places.end),
            coupling=places.groups()[None],
            places=places.written(),
            support=places.support(),
        )


def _add(
    digits: Int[np.ndarray, "2 batch length"],
) -> tuple[Int[np.ndarray, "3 batch width"], Bool[np.ndarray, "batch width"]]:
    """Operands and sum with one digit more, and the carry out of each digit, least significant first."""
    _, size, length = digits.shape
    numbers = np.zeros((3, size, length + 1), dtype=np.int64)
    numbers[:2, :, :length] = digits
    carries = np.zeros((size, length + 1), dtype=np.bool_)
    carry = np.zeros(size, dtype=np.int64)
    for place in range(length + 1):
        step = numbers[0, :, place] + numbers[1, :, place] + carry
        carry = step // 10
        numbers[2, :, place] = step - 10 * carry
        carries[:, place] = carry
    return numbers, carries


class _Places:
    """Where each number stands in each row, and which significance a token index has."""

    def __init__(self, task: Addition, numbers: Int[np.ndarray, "3 batch width"], length: int) -> None:
        self.task = task
        if task.zero_padding:
            counts = np.full((3, numbers.shape[1], 1), length + 1)
        else:
            # The number of digits up to the most significant one that is not zero; a lone zero stays.
            last = length + 1 - (numbers[:, :, ::-1] != 0).argmax(axis=2)
            counts = np.where((numbers != 0).any(axis=2), last, 1)[:, :, None]
        self.counts = counts
        self.plus = counts[0]
        self.equals = self.plus + 1 + counts[1]
        self.end = self.equals + 1 + counts[2]
        self.starts = (np.zeros_like(self.plus), self.plus + 1, self.equals + 1)
        self.longest = np.maximum(counts[0], counts[1])
        self.index = np.arange(int(self.end.max()) + 1)[None]
        self.grid = (len(self.plus), self.index.shape[1])

    def significance(self, number: int) -> tuple[Int[np.ndarray, "batch seq"], Bool[np.ndarray, "batch seq"]]:
        """Counted from 1, and where the number stands at all."""
        place = self.index - self.starts[number]
        count = self.counts[number]
        most_first = self.task.order == "most" or (self.task.order == "reversed_sum" and number < 2)
        return (count - place if most_first else place + 1), (place >= 0) & (place < count)

    def written(self) -> Int[np.ndarray, "batch seq"]:
        """Each digit's place in its number, counted from the first digit written; 0 outside of numbers."""
        counted = np.zeros(self.grid, dtype=np.int64)
        for start, count in zip(self.starts, self.counts, strict=True):
            place = self.index - start + 1
            counted += np.where((place >= 1) & (place <= count), place, 0)
        return counted

    def groups(self) -> Int[np.ndarray, "batch seq"]:
        """A digit's significance; for the sum, the significance needed next, and the ``+`` after the last."""
        falling = self.task.order == "most"
        plus = np.zeros_like(self.longest) if falling else self.longest + 1
        groups = np.where(self.index == self.plus, plus, self.longest + 2)
        groups = np.where(self.index == self.equals, self.longest if falling else 1, groups)
        for number in range(3):
            group, inside = self.significance(number)
            if number == 2:
                group = group - 1 if falling else np.minimum(group + 1, self.longest + 1)
            groups = np.where(inside, group, groups)
        return groups

    def support(self) -> Int[np.ndarray, "batch seq k"] | None:
        """Token indexes of this step's digits, the symbol before and, in the plain format, the digits before."""
        if self.task.order == "most":
            return None
        significance = self.index - self.equals
        answered = (significance >= 1) & (self.index <= self.end)
        here = [self._digit(number, significance) for number in range(2)]
        # Past the last digit, reaching the plus is what says so.
        here[0] = np.where(significance > self.longest, self.plus, here[0])
        before = [self._digit(number, significance - 1) for number in range(2)]
        last = np.where(significance > 1, self.index - 1, -1)
        parts = [*here, last] if self.task.scratchpad == "carry" else [*here, *before, last]
        return np.where(answered[..., None], np.stack(np.broadcast_arrays(*parts), axis=-1), -1)

    def _digit(self, number: int, significance: Int[np.ndarray, "batch seq"]) -> Int[np.ndarray, "batch seq"]:
        """The token index of an operand's digit, -1 where it has none of that significance."""
        count = self.counts[number]
        place = significance - 1 if self.task.order == "least" else count - significance
        return np.where((significance >= 1) & (significance <= count), self.starts[number] + place, -1)
