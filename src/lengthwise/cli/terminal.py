"""What the command line prints: tables for people, one JSON document for scripts.

Paths, tokens and texts are printed as they are: nothing in them is markup, and nothing in them reaches the terminal as
a control character.
"""

import json
import unicodedata
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

from lengthwise.core.json_parsing import non_finite_to_null

# Results go to standard output; progress, warnings and errors never do.
PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False, "emoji": False, "highlight": False}
out_console = Console(**PLAIN)
err_console = Console(stderr=True, **PLAIN)
WIDEST = 160
# Control characters, those that turn the direction of text, and halves of characters.
UNPRINTABLE = {"Cc", "Cf", "Cs"}


def printable(text: str) -> str:
    """Return the text with every control character but the end of a line written as an escape."""
    return "".join(
        character
        if character == "\n" or unicodedata.category(character) not in UNPRINTABLE
        else character.encode("unicode_escape").decode()
        for character in text
    )


def tell(line: str) -> None:
    """Print one line of results."""
    out_console.print(printable(line))


def say(line: str) -> None:
    """Print one line for people, beside the results."""
    err_console.print(printable(line))


def working(line: str) -> Status:
    """Show that work is going on, until it is left."""
    return err_console.status(Text(printable(line)))


def print_json(document: Any) -> None:
    """Print the one document of --json; what is no number is null."""
    print(json.dumps(non_finite_to_null(document), indent=2, allow_nan=False))


def print_table(title: str, header: list[str], body: list[list[str]], *, wrap: bool = False) -> None:
    """Print a table; with ``wrap``, folded to the width of the screen."""
    shown = Table(title=printable(title), title_justify="left")
    for column in header:
        shown.add_column(printable(column), no_wrap=not wrap)
    for row in body:
        shown.add_row(*map(printable, row))
    # Numbers are never folded: a table that is wider than the screen is still one to copy.
    width = None if wrap else max(out_console.width, WIDEST)
    Console(width=width, markup=False, emoji=False, highlight=False).print(shown)
