"""Sparse parity: the parity of a few flagged bits among many others, asked for at the end."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes, numbers_of

CODINGS = ("flags", "letters")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseParity:
    """Layout ``x_1 .. x_length = y end``: some of the x are flagged bits, and y is their parity. No scratchpad.

    ``coding="flags"``: every x is a bit, ``0*`` and ``1*`` are the flagged ones. ``coding="letters"``: flagged bits are
    ``0`` and ``1``, the others one of ``num_letters`` letters. How many are flagged is uniform from ``fewest`` to
    ``most``, at most all; where they stand is uniform, with ``window`` among so many neighbours at a uniform place. The
    answer depends on all flagged bits: k is their number. ``tested`` are the numbers that ``variants`` fix.
    """

    fewest: int = 1
    most: int = 4
    coding: str = "flags"
    num_letters: int = 8
    window: int | None = None
    tested: tuple[int, ...] = (1, 4)

    name: ClassVar[str] = "sparse_parity"
    summary: ClassVar[str] = "parity of a few flagged bits among many, without scratchpad"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), section 5.1"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if self.coding not in CODINGS:
            raise SettingError(f"coding '{self.coding}' is unknown to {self.name}; choose one of {', '.join(CODINGS)}")
        if not 1 <= self.fewest <= self.most:
            raise SettingError(f"{self.fewest} to {self.most} flagged bits are no range; start at 1 or more, end later")
        if not 1 <= self.num_letters <= len(ascii_lowercase):
            raise SettingError(f"num_letters {self.num_letters} is out of range; use 1 to {len(ascii_lowercase)}")
        if self.window is not None and self.window < self.most:
            raise SettingError(f"a window of {self.window} has no room for {self.most} flagged bits; widen it")
        if min(self.tested, default=1) < 1:
            raise SettingError(f"{min(self.tested)} flagged bits have no parity; test 1 or more")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The two bits, which are also the answers, what else an x can be, the separator and the end token."""
        others = ("0*", "1*") if self.coding == "flags" else tuple(ascii_lowercase[: self.num_letters])
        return ("0", "1", *others, "=", "end")

    @property
    def separators(self) -> tuple[str, ...]:
        """One: what follows it is the parity."""
        return ("=",)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw which bits are flagged, then all bits and letters, uniformly."""
        check_sizes(self.name, length, size)
        flagged = self._flagged(length, size, rng)
        bits = rng.integers(0, 2, size=(size, length))
        if self.coding == "flags":
            return self._lay_out(bits + 2 * flagged)
        letters = rng.integers(0, self.num_letters, size=(size, length))
        return self._lay_out(np.where(flagged, bits, 2 + letters))

    def from_prompt(self, prompt: str) -> Examples:
        """Read the x, such as ``01*10*1`` or, with letters, ``ab1ca0``."""
        form = "bits such as 01*10*1" if self.coding == "flags" else "bits and letters such as ab1ba0"
        symbols = re.findall(r".\*?", prompt.replace(" ", "").removesuffix("="))
        tokens = numbers_of(symbols, self.vocabulary[:-2], self.name, form)[None]
        if not self._is_flagged(tokens).any():
            raise PromptError(f"'{prompt}' flags no bit; write {form}")
        return self._lay_out(tokens)

    def stages(self) -> Sequence[Task]:
        """At most as many flagged bits as the fewest, then one more in each."""
        return [replace(self, most=most) for most in range(self.fewest, self.most + 1)]

    def variants(self) -> Mapping[str, Task]:
        """One number of flagged bits each."""
        return {f"flagged-{number}": self._with(number) for number in self.tested}

    def _with(self, number: int) -> Task:
        window = None if self.window is None else max(self.window, number)
        return replace(self, fewest=number, most=number, window=window, tested=())

    def _flagged(self, length: int, size: int, rng: np.random.Generator) -> Bool[np.ndarray, "size length"]:
        width = length if self.window is None else min(self.window, length)
        number = rng.integers(min(self.fewest, length), min(self.most, length) + 1, size=size)
        start = rng.integers(0, length - width + 1, size=size)[:, None]
        index = np.arange(length)
        # Bits outside of the window come last.
        order = rng.random((size, length)) + ((index < start) | (index >= start + width))
        return order.argsort(axis=1).argsort(axis=1) < number[:, None]

    def _is_flagged(self, tokens: Int[np.ndarray, "batch length"]) -> Bool[np.ndarray, "batch length"]:
        return tokens >= 2 if self.coding == "flags" else tokens < 2

    def _lay_out(self, tokens: Int[np.ndarray, "batch length"]) -> Examples:
        size, length = tokens.shape
        flagged = self._is_flagged(tokens)
        parity = (flagged & (tokens % 2 == 1)).sum(axis=1, keepdims=True) % 2
        column = np.full((size, 1), len(self.vocabulary) - 2)
        whole = np.concatenate([tokens, column, parity, column + 1], axis=1)
        support = np.full((size, length + 3, max(self.most, int(flagged.sum(axis=1).max()))), -1)
        row, place = flagged.nonzero()
        support[row, length + 1, flagged.cumsum(axis=1)[row, place] - 1] = place
        # The end token follows because the parity has been written: the separator is two tokens before it.
        support[:, length + 2, 0] = length
        return Examples(
            tokens=whole,
            prompt_length=np.full(size, length + 1),
            is_answer=np.broadcast_to(np.arange(length + 3) > length, whole.shape),
            support=support,
        )
