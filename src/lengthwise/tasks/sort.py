"""Sort: write the items of a list in ascending order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_sizes, numbers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """Layout ``x_1 .. x_n = > y_1 .. y_n end`` over ``num_values`` values; the prompt ends with the ``=``.

    ``repeats`` lets a value come several times, and then no head that looks at tokens alone can say which of them is
    next; without, a list has at most ``num_values`` items.

    An item's ID is its place in the list. A response token, the ``>`` included, has the ID of the item that is written
    next (of equal ones, the first in the list comes first), the last one that of the ``=``. The IDs of the prompt say
    nothing about the order; those of the response do, and a decoder that has them copies. Which item is next depends on
    all of them, so there is no bounded support and none is declared.
    """

    num_values: int = 64
    repeats: bool = False

    name: ClassVar[str] = "sort"
    summary: ClassVar[str] = "the items of a list in ascending order"
    paper: ClassVar[str] = "Zhou et al. 2024 (arXiv 2310.16028); the coupling is ours"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_values < 1:
            raise SettingError(f"num_values {self.num_values} leaves nothing to sort; use at least 1")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The values in ascending order, then the separator, the start token and the end token."""
        return (*(str(value) for value in range(self.num_values)), "=", ">", "end")

    @property
    def separators(self) -> tuple[str, ...]:
        """One separator: what follows it is the response."""
        return ("=",)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw uniformly random values, without repeats all different."""
        check_sizes(self.name, length, size)
        if self.repeats:
            return self._lay_out(rng.integers(0, self.num_values, size=(size, length)))
        if length > self.num_values:
            raise SettingError(
                f"length {length} is more than the {self.num_values} different values of sort; "
                "use shorter lists, raise num_values or allow repeats"
            )
        return self._lay_out(rng.random((size, self.num_values)).argsort(axis=1)[:, :length])

    def from_prompt(self, prompt: str) -> Examples:
        """Read values such as ``17 4 33``."""
        symbols = prompt.replace("=", " ").replace(">", " ").split()
        form = f"values from 0 to {self.num_values - 1} such as 2 0 1"
        items = numbers_of(symbols, self.vocabulary[:-3], self.name, form)
        counts = np.bincount(items)
        if not self.repeats and counts.max() > 1:
            raise PromptError(
                f"'{counts.argmax()}' is there {counts.max()} times and repeats are off; write each value once"
            )
        return self._lay_out(items[None])

    def variants(self) -> Mapping[str, Task]:
        """One distribution only."""
        return {}

    def _lay_out(self, items: Int[np.ndarray, "batch length"]) -> Examples:
        size, length = items.shape
        equals = np.full((size, 1), self.num_values)
        # A stable sort: equal items keep their order.
        order = items.argsort(axis=1, kind="stable")
        ordered = np.take_along_axis(items, order, axis=1)
        tokens = np.concatenate([items, equals, equals + 1, ordered, equals + 2], axis=1)
        place = np.arange(1, length + 1)
        given = np.broadcast_to(np.arange(1, length + 2), (size, length + 1))
        after = np.broadcast_to([length + 1, length + 2], (size, 2))
        return Examples(
            tokens=tokens,
            prompt_length=np.full(size, length + 1),
            is_answer=np.broadcast_to(np.arange(tokens.shape[1]) > length, tokens.shape),
            coupling=np.concatenate([given, order + 1, after], axis=1)[None],
            places=np.broadcast_to(np.concatenate([place, [0, 0], place, [0]]), tokens.shape),
        )
