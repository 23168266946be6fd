"""Output functions of the command line, for tables, progress bars and JSON documents.

The functions print paths, tokens and texts literally, without markup, and escape control characters.
"""

import json
import time
import unicodedata
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table
from rich.text import Text

from lengthwise.core.json_parsing import non_finite_to_null

# Results go to standard output; progress, warnings and errors go to standard error.
LITERAL_OUTPUT: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
out_console = Console(soft_wrap=True, **LITERAL_OUTPUT)
err_console = Console(stderr=True, soft_wrap=True, **LITERAL_OUTPUT)
# Measures the width of tables; wider than any of them.
WIDE_CONSOLE = Console(width=10_000, **LITERAL_OUTPUT)
# Control characters, direction marks and surrogates.
ESCAPED_CATEGORIES = {"Cc", "Cf", "Cs"}
# Period of the steps that the estimate of the time left uses, in seconds.
SHORT_PERIOD_S, WHOLE_PERIOD_S = 30.0, 1e9
# Training steps per line of progress of a search.
STEPS_PER_LINE = 100


def escape(text: str) -> str:
    """Replace all control characters except line breaks by escape sequences."""
    return "".join(
        character
        if character == "\n" or unicodedata.category(character) not in ESCAPED_CATEGORIES
        else character.encode("unicode_escape").decode()
        for character in text
    )


def print_line(line: str) -> None:
    """Print a line of results to standard output."""
    out_console.print(escape(line))


def print_message(line: str) -> None:
    """Print a message to standard error."""
    err_console.print(escape(line))


def print_search_progress(row: dict[str, Any]) -> None:
    """Print some of the metrics of the model that the search for a coupling trains."""
    if row["step"] % STEPS_PER_LINE == 0:
        print_message(f"training a model on the shortest examples: step {row['step']:,}, loss {row['loss']:.3f}")


def show_status(line: str) -> Status:
    """Return a context manager that shows a status line on standard error."""
    return err_console.status(Text(escape(line)))


def print_json(document: Any) -> None:
    """Print a JSON document to standard output; NaN and infinity become null."""
    print(json.dumps(non_finite_to_null(document), indent=2, allow_nan=False))


def print_table(title: str, header: list[str], body: list[list[str]], *, wrap: bool = False) -> None:
    """Print a table; with ``wrap=True``, long cells wrap at the width of the terminal."""
    table = Table(title=escape(title), title_justify="left")
    for column in header:
        table.add_column(escape(column), no_wrap=not wrap)
    for cells in body:
        table.add_row(*map(escape, cells))
    # Tables of numbers never wrap and no cell is cut, so that users can copy a table that is wider than the terminal.
    width = None if wrap else max(out_console.width, Measurement.get(WIDE_CONSOLE, WIDE_CONSOLE.options, table).maximum)
    Console(width=width, **LITERAL_OUTPUT).print(table)


class ProgressLine:
    """Context manager that shows a progress bar with a description and the remaining time."""

    def __init__(
        self,
        console: Console,
        num_total: int | None = None,
        *,
        max_train_length: int | None = None,
        whole_average: bool = False,
    ) -> None:
        """Initialize the bar; ``whole_average`` estimates the time left from all steps, and not only the last ones."""
        self.max_train_length = max_train_length
        self.exact_match = ""
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("time left"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=WHOLE_PERIOD_S if whole_average else SHORT_PERIOD_S,
        )
        # Time and number of finished runs of the first call of show_runs.
        self.first_runs: tuple[float, int] | None = None
        self.task_id = self.progress.add_task("starting", total=num_total)

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An error removes the bar, and Progress.stop would print a blank line.
        self.progress.live.transient = error is not None
        was_visible = self.progress.live.is_started and error is None
        self.progress.live.stop()
        if was_visible and not self.progress.console.is_interactive:
            # In a file, the last state of the bar has no line break.
            self.progress.console.print()

    def show_training(self, row: dict[str, Any]) -> None:
        """Show a row of ``metrics.jsonl``: mean loss and accuracies since the last row, and the latest exact match."""
        if "exact_match" in row:
            self.exact_match = f"  exact match {row['exact_match']:.3f} at length {self.max_train_length}"
        accuracies = f"tokens {row['mean_token_accuracy']:.3f}  IDs {row['mean_id_accuracy']:.3f}"
        self._update(f"mean loss {row['mean_loss']:.4f}  {accuracies}{self.exact_match}", row["step"])

    def show_preparation(self, stage: str, num_done: int, num_total: int | None) -> None:
        """Show the number of documents that one stage of corpus preparation has processed."""
        self._update(stage, num_done, num_total)

    def show_targets(self, num_done: int, num_total: int) -> None:
        """Show the number of completed targets of an influence study."""
        self._update("targets", num_done, num_total)

    def show_runs(self, num_done: int, num_total: int, line: str) -> None:
        """Show the number of finished runs; without a terminal, print a line for each run, with the time left."""
        if self.progress.console.is_interactive:
            self._update("runs", num_done, num_total)
            return
        self.first_runs = (time.monotonic(), num_done) if self.first_runs is None else self.first_runs
        first_time, num_first = self.first_runs
        time_left = ""
        if num_first < num_done < num_total:
            seconds_per_run = (time.monotonic() - first_time) / (num_done - num_first)
            time_left = f"; about {(num_total - num_done) * seconds_per_run / 60:,.0f} min left"
        print_message(f"[{num_done}/{num_total}] {line}{time_left}")

    def show_examples(self, length: int, num_done: int, num_total: int) -> None:
        """Show the number of completed examples at a length."""
        self._update(f"length {length:,}", num_done, num_total)

    def _update(self, description: str, num_done: int, num_total: int | None = None) -> None:
        self.progress.start()
        # A total of None does not change the current total.
        self.progress.update(self.task_id, completed=num_done, total=num_total, description=description)
