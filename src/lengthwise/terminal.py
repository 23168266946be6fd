"""What the command line prints: tables for people, one JSON document for scripts."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

# Results go to standard output; progress, warnings and errors never do.
out_console = Console(soft_wrap=True)
err_console = Console(stderr=True, soft_wrap=True)
WIDEST = 160


def say(line: str) -> None:
    """One line for people, beside the results."""
    err_console.print(line, markup=False, highlight=False)


def print_json(document: Any) -> None:
    """The one document of --json."""
    print(json.dumps(document, indent=2))


def print_table(title: str, header: list[str], body: list[list[str]], *, wrap: bool = False) -> None:
    """A table; with ``wrap``, folded to the width of the screen."""
    shown = Table(title=title, title_justify="left")
    for column in header:
        shown.add_column(column, no_wrap=not wrap)
    for row in body:
        shown.add_row(*row)
    # Numbers are never folded: a table that is wider than the screen is still one to copy.
    width = None if wrap else max(out_console.width, WIDEST)
    Console(width=width, highlight=False, markup=False).print(shown)
