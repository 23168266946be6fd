"""Layout of tables in a limited width: lines break only between words, and columns that do not fit form a new table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

# Widths of the border of a table, and of the border and padding of a column.
TABLE_BORDER, COLUMN_BORDER = 1, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnGroup:
    """Columns of one table: their indices in the whole table, and the width of each in characters."""

    indices: list[int]
    widths: list[int]


def group_columns(header: Sequence[str], body: Sequence[Sequence[str]], max_width: int) -> list[ColumnGroup]:
    """Return groups of columns that fit ``max_width`` characters each; every group starts with the first column.

    A column is at least as wide as its longest word, so only a word that is wider than the whole table is broken.
    """
    columns = list(zip(header, *body, strict=True))
    smallest = [_longest(cell.split() for cell in column) for column in columns]
    largest = [_longest(cell.splitlines() for cell in column) for column in columns]
    groups = [[0]]
    for index in range(1, len(columns)):
        if _width([smallest[each] for each in (*groups[-1], index)]) > max_width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(index)
    return [
        ColumnGroup(
            indices=group,
            widths=_share_width([smallest[each] for each in group], [largest[each] for each in group], max_width),
        )
        for group in groups
    ]


def _longest(parts_of_cells: Iterable[Sequence[str]]) -> int:
    return max((cell_len(part) for parts in parts_of_cells for part in parts), default=1)


def _width(column_widths: Sequence[int]) -> int:
    return TABLE_BORDER + sum(width + COLUMN_BORDER for width in column_widths)


def _share_width(smallest: Sequence[int], largest: Sequence[int], max_width: int) -> list[int]:
    """Return column widths between the smallest and largest; columns that need little more width get it first."""
    widths, free = list(smallest), max_width - _width(smallest)
    order = sorted(range(len(widths)), key=lambda index: largest[index] - smallest[index])
    for place, index in enumerate(order):
        extra = min(largest[index] - smallest[index], max(0, free) // (len(order) - place))
        widths[index] += extra
        free -= extra
    if free < 0:
        # A word wider than the table is broken.
        widest = max(range(len(widths)), key=widths.__getitem__)
        widths[widest] = max(1, widths[widest] + free)
    return widths
