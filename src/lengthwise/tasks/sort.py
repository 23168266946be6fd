"""Sort: write the items of a list in ascending order."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, check_length_and_size, parse_symbols


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Task):
    """Layout ``x_1 .. x_n = > y_1 .. y_n end`` over ``num_values`` values; the prompt ends with the ``=``.

    ``repeats`` allows equal items. Position heads that read only tokens cannot determine which of the equal items is
    next. Without repeats, a list has at most ``num_values`` items. ``narrow_share`` is the share of lists whose items
    come from a random window of values, which is at most twice as wide as the list is long. So values that are next to
    each other in a long sorted list also meet in short ones.

    The ID of an item is its place in the list. ``>`` and each item of the response have the ID of the item that follows
    in the response; equal items keep the order of the list. The last item has the ID of ``=``. The response IDs contain
    the sorted order, so a decoder that receives them only has to copy items. The next item depends on all items, so the
    task declares no depends_on.
    """

    num_values: int = 64
    repeats: bool = False
    narrow_share: float = 0.0

    name: ClassVar[str] = "sort"
    summary: ClassVar[str] = "write the items of a list in ascending order"
    paper: ClassVar[str] = "Zhou et al. 2024 (arXiv 2310.16028); coupling by lengthwise"
    separators: ClassVar[tuple[str, ...]] = ("=",)

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_values")
        if not 0 <= self.narrow_share <= 1:
            raise SettingError(f"invalid narrow_share {self.narrow_share}; use a number from 0 to 1")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Values in ascending order, separator, start token and end token."""
        return (*(str(value) for value in range(self.num_values)), "=", ">", "end")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample values uniformly from all values or a window, without replacement unless ``repeats`` is set."""
        check_length_and_size(self.name, length, size)
        if self.repeats:
            items = rng.integers(0, self.num_values, size=(size, length))
            first, last = self._windows(length, size, rng)
            return self._lay_out(first + items % (last - first))
        if length > self.num_values:
            raise SettingError(
                f"length {length} exceeds the {self.num_values} different values of sort; "
                "use a shorter length, a larger num_values, or repeats=True"
            )
        order = rng.random((size, self.num_values))
        first, last = self._windows(length, size, rng)
        values = np.arange(self.num_values)
        return self._lay_out(np.where((values >= first) & (values < last), order, 1.0).argsort(axis=1)[:, :length])

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse values such as ``17 4 33``."""
        symbols = prompt.replace("=", " ").replace(">", " ").split()
        expected_format = f"values from 0 to {self.num_values - 1} such as 2 0 1"
        items = parse_symbols(symbols, self.vocabulary[:-3], self.name, expected_format)
        counts = np.bincount(items)
        if not self.repeats and counts.max() > 1:
            raise PromptError(
                f"item '{counts.argmax()}' occurs {counts.max()} times; write each item once, or set repeats=True"
            )
        return self._lay_out(items[None])

    def _windows(
        self, length: int, size: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "batch 1"], Int[np.ndarray, "batch 1"]]:
        """Return the first value of each list's window, and the value after its last one."""
        widths = np.full((size, 1), self.num_values)
        if not self.narrow_share:
            return np.zeros_like(widths), widths
        is_narrow = rng.random((size, 1)) < self.narrow_share
        narrow_widths = np.minimum(rng.integers(length, 2 * length + 1, size=(size, 1)), self.num_values)
        widths = np.where(is_narrow, narrow_widths, widths)
        first = rng.integers(0, self.num_values - widths + 1)
        return first, first + widths

    def _lay_out(self, items: Int[np.ndarray, "batch length"]) -> Examples:
        batch_size, length = items.shape
        separator_ids = np.full((batch_size, 1), self.num_values)
        # A stable sort keeps the order of equal items.
        item_order = items.argsort(axis=1, kind="stable")
        sorted_items = np.take_along_axis(items, item_order, axis=1)
        tokens = np.concatenate([items, separator_ids, separator_ids + 1, sorted_items, separator_ids + 2], axis=1)
        item_places = np.arange(1, length + 1)
        prompt_groups = np.broadcast_to(np.arange(1, length + 2), (batch_size, length + 1))
        last_groups = np.broadcast_to([length + 1, length + 2], (batch_size, 2))
        coupling = np.concatenate([prompt_groups, item_order + 1, last_groups], axis=1)[None]
        step_index = np.concatenate([item_places, [0, 0], item_places, [0]])[None]
        return Examples.with_prompt_length(tokens, length + 1, coupling=coupling, step_index=step_index)
