"""Output functions of the command line, for tables, progress bars and JSON documents.

The functions print paths, tokens and texts literally, without markup, and escape control characters.
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from lengthwise.core.interruption import StoppedError
from lengthwise.core.json_parsing import non_finite_to_null
from lengthwise.core.progress_line import LITERAL_OUTPUT, SECONDS_PER_LINE, err_console, escape_control_characters

out_console = Console(soft_wrap=True, **LITERAL_OUTPUT)
# Width of tables that are not in a terminal, in characters; wider than any table.
UNLIMITED_WIDTH = 10_000
# Widths of the border of a table, and of the border and padding of a column.
TABLE_BORDER, COLUMN_BORDER = 1, 3


class _OptionalOutput(io.FileIO):
    """Standard error of a command: a full disk or a closed pipe loses messages, but never ends a computation."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            super().write(data)
        return memoryview(data).nbytes


def open_standard_streams() -> None:
    """Make both standard streams writable: closed streams discard their text, and other letters are escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Python has no stream for a closed descriptor, and the next file that is opened would get its number.
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        output = _OptionalOutput(sys.stderr.fileno(), "w", closefd=False)
        options = {"encoding": sys.stderr.encoding, "errors": "backslashreplace"}
        sys.stderr = io.TextIOWrapper(output, line_buffering=True, write_through=True, **options)


@contextmanager
def discard_output() -> Iterator[None]:
    """Discard the standard output and the standard error of this process."""
    with Path(os.devnull).open("w", encoding="utf-8") as null, redirect_stdout(null), redirect_stderr(null):
        yield


def print_line(line: str) -> None:
    """Print a line of results to standard output."""
    out_console.print(escape_control_characters(line))


def print_message(line: str) -> None:
    """Print a message to standard error."""
    err_console.print(escape_control_characters(line))


def print_warnings(messages: Sequence[str], *, is_complete: bool) -> None:
    """Print the warnings of several runs; raise ``StoppedError`` if some of the runs are not complete."""
    for message in messages:
        print_message(f"warning: {message}")
    if not is_complete:
        raise StoppedError("stopped, and all progress is saved; repeat the command to continue")


def show_status(line: str) -> Status:
    """Return a context manager that shows a status line on standard error."""
    return err_console.status(Text(escape_control_characters(line)))


@contextmanager
def show_stages(line: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the stage of a computation after ``line`` on standard error.

    Without a terminal, ``line`` and a stage every ``SECONDS_PER_LINE`` are plain lines.
    """
    if err_console.is_terminal:
        with show_status(line) as status:
            yield lambda stage: status.update(Text(escape_control_characters(f"{line}: {stage}")))
        return
    print_message(line)
    last_print_time = time.monotonic()

    def print_stage(stage: str) -> None:
        nonlocal last_print_time
        if time.monotonic() - last_print_time >= SECONDS_PER_LINE:
            last_print_time = time.monotonic()
            print_message(stage)

    yield print_stage


def print_json(document: Any) -> None:
    """Print a JSON document to standard output; NaN and infinity become null."""
    print(json.dumps(non_finite_to_null(document), indent=2, allow_nan=False))


def print_table(title: str, header: list[str], body: list[list[str]], *, wrap: bool = False) -> None:
    """Print a table that fits the terminal: cells wrap between words, and columns that do not fit form a second table.

    Without a terminal and the variable ``COLUMNS``, only tables with ``wrap=True`` wrap.
    """
    has_width = out_console.is_terminal or "COLUMNS" in os.environ
    width = out_console.width if wrap or has_width else UNLIMITED_WIDTH
    # The title may be longer than a narrow table.
    print_line(title)
    for table in make_tables(header, body, width):
        Console(width=width, **LITERAL_OUTPUT).print(table)


def make_tables(header: Sequence[str], body: Sequence[Sequence[str]], width: int) -> Iterator[Table]:
    """Yield tables that are at most ``width`` characters wide and together have all columns.

    Every table starts with the first column. A column is at least as wide as its longest word, so only a word that is
    wider than the whole table is broken.
    """
    columns = [[escape_control_characters(cell) for cell in column] for column in zip(header, *body, strict=True)]
    smallest = [max((cell_len(word) for cell in column for word in cell.split()), default=1) for column in columns]
    largest = [max((cell_len(line) for cell in column for line in cell.splitlines()), default=1) for column in columns]
    groups = [[0]]
    for index in range(1, len(columns)):
        if _table_width([smallest[other] for other in (*groups[-1], index)]) > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(index)
    for group in groups:
        widths = _share_width([smallest[index] for index in group], [largest[index] for index in group], width)
        table = Table()
        for index, column_width in zip(group, widths, strict=True):
            table.add_column(columns[index][0], width=column_width, overflow="fold")
        for cells in zip(*(columns[index][1:] for index in group), strict=True):
            table.add_row(*cells)
        yield table


def _table_width(column_widths: Sequence[int]) -> int:
    return TABLE_BORDER + sum(width + COLUMN_BORDER for width in column_widths)


def _share_width(smallest: Sequence[int], largest: Sequence[int], max_width: int) -> list[int]:
    """Return column widths between the smallest and largest; columns that need little more width get it first."""
    # Rich would also shrink columns below their longest word, and the table would become too wide.
    widths, free = list(smallest), max_width - _table_width(smallest)
    order = sorted(range(len(widths)), key=lambda index: largest[index] - smallest[index])
    for rank, index in enumerate(order):
        extra = min(largest[index] - smallest[index], max(0, free) // (len(order) - rank))
        widths[index] += extra
        free -= extra
    if free < 0:
        # A word wider than the table is broken.
        widest = max(range(len(widths)), key=widths.__getitem__)
        widths[widest] = max(1, widths[widest] + free)
    return widths
