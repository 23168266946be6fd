"""Copy and reverse: repeat a string of symbols in the same order or in reverse order."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_length_and_size, parse_symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class _RepeatSymbolsTask(Task):
    """Base class of tasks that repeat the symbols of the prompt in the response.

    The ID of each response token is the ID of the next symbol. The last response token has the ID of ``=``. Each answer
    depends on one token: k = 1.
    """

    num_symbols: int = 10

    name: ClassVar[str]
    is_reversed: ClassVar[bool]
    separators: ClassVar[tuple[str, ...]] = (">",)
    paper: ClassVar[str] = "Zhou et al. 2024 (arXiv 2310.16028); coupling after Cho et al. 2024 (arXiv 2405.20671)"

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_symbols")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Symbols, separator, start token and end token."""
        return (*(str(symbol) for symbol in range(self.num_symbols)), "=", ">", "end")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample symbols uniformly and independently."""
        check_length_and_size(self.name, length, size)
        return self._lay_out(rng.integers(0, self.num_symbols, size=(size, length)))

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse symbols such as ``3 1 4``; spaces between one-digit symbols are optional."""
        text = prompt.replace("=", " ").replace(">", " ")
        symbols = text.split() if " " in text.strip() or self.num_symbols > 10 else list(text.strip())
        expected_format = f"symbols from 0 to {self.num_symbols - 1} such as 0 0 0"
        return self._lay_out(parse_symbols(symbols, self.vocabulary[:-3], self.name, expected_format)[None])

    def _lay_out(self, symbols: Int[np.ndarray, "batch length"]) -> Examples:
        length = symbols.shape[1]
        equals = np.full((len(symbols), 1), self.num_symbols)
        symbol_index = np.arange(length)
        response_order = symbol_index[::-1] if self.is_reversed else symbol_index
        # The = has the ID that follows the ID of the last symbol in reading order.
        prompt_parts = [equals, symbols] if self.is_reversed else [symbols, equals]
        first_symbol_index = 1 if self.is_reversed else 0
        tokens = np.concatenate([*prompt_parts, equals + 1, symbols[:, response_order], equals + 2], axis=1)
        source_indexes = np.append(response_order + first_symbol_index, 0 if self.is_reversed else length)
        coupling = np.concatenate([np.arange(length + 1), source_indexes, [length + 1]])[None, None] + 1
        string_places = symbol_index + 1
        prompt_places = [[0], string_places] if self.is_reversed else [string_places, [0]]
        step_index = np.concatenate([*prompt_places, [0], string_places, [0]])[None]
        depends_on = np.full((tokens.shape[1], 1), -1)
        depends_on[length + 2 :, 0] = source_indexes
        return Examples.with_prompt_length(
            tokens, length + 2, coupling=coupling, step_index=step_index, depends_on=depends_on[None]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy(_RepeatSymbolsTask):
    """Layout ``x_1 .. x_n = > x_1 .. x_n end`` over ``num_symbols`` symbols; the prompt ends with the ``>``."""

    name: ClassVar[str] = "copy"
    summary: ClassVar[str] = "repeat a string of symbols"
    is_reversed: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverse(_RepeatSymbolsTask):
    """Layout ``= x_1 .. x_n > x_n .. x_1 end`` over ``num_symbols`` symbols; the prompt ends with the ``>``."""

    name: ClassVar[str] = "reverse"
    summary: ClassVar[str] = "repeat a string of symbols in reverse order"
    is_reversed: ClassVar[bool] = True
