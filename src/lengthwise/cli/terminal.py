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

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from lengthwise.cli.table_layout import group_columns
from lengthwise.core.json_parsing import non_finite_to_null
from lengthwise.core.progress_line import LITERAL_OUTPUT, SECONDS_PER_LINE, err_console, escape

out_console = Console(soft_wrap=True, **LITERAL_OUTPUT)
# Width of tables that are not in a terminal, in characters; wider than any table.
UNLIMITED_WIDTH = 10_000


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
    out_console.print(escape(line))


def print_message(line: str) -> None:
    """Print a message to standard error."""
    err_console.print(escape(line))


def show_status(line: str) -> Status:
    """Return a context manager that shows a status line on standard error."""
    return err_console.status(Text(escape(line)))


@contextmanager
def show_stages(line: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the stage of a computation after ``line`` on standard error.

    Without a terminal, ``line`` and a stage every ``SECONDS_PER_LINE`` are plain lines.
    """
    if err_console.is_terminal:
        with show_status(line) as status:
            yield lambda stage: status.update(Text(escape(f"{line}: {stage}")))
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
    """Yield tables that are at most ``width`` characters wide and together have all columns."""
    header, body = [escape(column) for column in header], [[escape(cell) for cell in cells] for cells in body]
    for group in group_columns(header, body, width):
        table = Table()
        for index, column_width in zip(group.indices, group.widths, strict=True):
            table.add_column(header[index], width=column_width, overflow="fold")
        for cells in body:
            table.add_row(*(cells[index] for index in group.indices))
        yield table


def print_text(line: Text) -> None:
    """Print a line with styles to standard output; its text must have no control characters."""
    out_console.print(line)
