"""Reverse: write a string of symbols backwards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes
from lengthwise.tasks.transcript import lay_out, read_symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverse:
    """Layout ``= x_1 .. x_n > x_n .. x_1 end`` over ``num_symbols`` symbols; the prompt ends with the ``>``.

    A response token has the ID of the symbol that is written next, the last one that of the ``=``. Each answer depends
    on one token: k = 1.
    """

    num_symbols: int = 10

    name: ClassVar[str] = "reverse"
    summary: ClassVar[str] = "a string of symbols, written backwards"
    paper: ClassVar[str] = "Zhou et al. 2024 (arXiv 2310.16028); coupling after Cho et al. 2024 (arXiv 2405.20671)"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_symbols < 1:
            raise SettingError(f"num_symbols {self.num_symbols} leaves nothing to reverse; use at least 1")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The symbols, then the separator, the start token and the end token."""
        return (*(str(symbol) for symbol in range(self.num_symbols)), "=", ">", "end")

    @property
    def separators(self) -> tuple[str, ...]:
        """One separator: what follows it is the response."""
        return (">",)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw uniformly random symbols."""
        check_sizes(self.name, length, size)
        return lay_out(rng.integers(0, self.num_symbols, size=(size, length)), self.num_symbols, backwards=True)

    def from_prompt(self, prompt: str) -> Examples:
        """Read symbols such as ``3 1 4``; single digits need no spaces."""
        return lay_out(read_symbols(prompt, self.num_symbols, self.name), self.num_symbols, backwards=True)

    def variants(self) -> Mapping[str, Task]:
        """One distribution only."""
        return {}
