"""Progress of long computations: a bar in a terminal, and plain lines elsewhere."""

import time
import unicodedata
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Texts of users are printed literally, without markup.
LITERAL_OUTPUT: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
# Progress, warnings and errors go to standard error; results go to standard output.
err_console = Console(stderr=True, soft_wrap=True, **LITERAL_OUTPUT)
# Control characters, direction marks and surrogates.
ESCAPED_CATEGORIES = {"Cc", "Cf", "Cs"}
# Smallest time between two plain lines of progress, in seconds.
SECONDS_PER_LINE = 10.0
# Period of the steps that the estimate of the time left uses, in seconds.
SHORT_PERIOD_S, WHOLE_PERIOD_S = 30.0, 1e9


def escape_control_characters(text: str) -> str:
    """Replace all control characters except line breaks by escape sequences."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character == "\n" or unicodedata.category(character) not in ESCAPED_CATEGORIES
        else character.encode("unicode_escape").decode()
        for character in text
    )


class ProgressLine:
    """Context manager that shows a progress bar with a description and the remaining time.

    A file, a pipe or a notebook cannot show a bar that changes. There, the first and the last state and a state every
    ``SECONDS_PER_LINE`` are plain lines.
    """

    def __init__(
        self,
        console: Console,
        num_total: int | None = None,
        *,
        fit_lengths: str = "",
        whole_average: bool = False,
    ) -> None:
        """Initialize the bar.

        ``fit_lengths`` has the lengths of exact match in words, such as "length 20". ``whole_average`` estimates the
        time left from all steps, and not only the last ones.
        """
        self.console = console
        self.has_bar = console.is_terminal and not console.is_jupyter
        self.num_total = num_total
        self.fit_lengths = fit_lengths
        self.exact_match = ""
        self.unprinted_line = ""
        self.last_print_time = -SECONDS_PER_LINE
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("time left"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=WHOLE_PERIOD_S if whole_average else SHORT_PERIOD_S,
        )
        # Time and number of finished runs of the first call of show_run_count.
        self.first_runs: tuple[float, int] | None = None
        self.task_id = self.progress.add_task("starting", total=num_total)

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._print_line(self.unprinted_line)
        # An error removes the bar, and Progress.stop would print a blank line.
        self.progress.live.transient = error is not None
        self.progress.live.stop()

    def show_training(self, row: dict[str, Any]) -> None:
        """Show a row of ``metrics.jsonl``: mean loss and accuracies since the last row, and the latest exact match.

        Once the run fits, the number of steps is that at which training ends.
        """
        if "exact_match" in row:
            self.exact_match = f"  exact match {row['exact_match']:.3f} at {self.fit_lengths}"
        id_accuracy = row["mean_id_accuracy"]
        # Without a position head, no ID is predicted.
        ids_text = "-" if id_accuracy is None else f"{id_accuracy:.3f}"
        accuracies = f"tokens {row['mean_token_accuracy']:.3f}  IDs {ids_text}"
        # Longer lengths need the last steps, in which the learning rate falls, although the run already fits.
        cooldown = "  fits; the learning rate falls until the end" if "last_step" in row else ""
        text = f"mean loss {row['mean_loss']:.4f}  {accuracies}{self.exact_match}{cooldown}"
        self.show_count(text, row["step"], row.get("last_step"))

    def show_search(self, row: dict[str, Any]) -> None:
        """Show what the search for a coupling does, and how far it is."""
        self.show_count(row["stage"], row["done"], row["total"])

    def show_run_count(self, num_done: int, num_total: int, line: str) -> None:
        """Show the number of finished runs; without a bar, print a line for each run, with the time left."""
        if self.has_bar:
            self.show_count("runs", num_done, num_total)
            return
        self.first_runs = (time.monotonic(), num_done) if self.first_runs is None else self.first_runs
        first_time, num_first = self.first_runs
        time_left = ""
        if num_first < num_done < num_total:
            seconds_per_run = (time.monotonic() - first_time) / (num_done - num_first)
            time_left = f"; about {(num_total - num_done) * seconds_per_run / 60:,.0f} min left"
        self._print_line(f"[{num_done}/{num_total}] {line}{time_left}")

    def show_example_count(self, length: int, num_done: int, num_total: int) -> None:
        """Show the number of completed examples at a length."""
        self.show_count(f"length {length:,}", num_done, num_total)

    def show_result(self, row: dict[str, Any]) -> None:
        """Print the result of a length when it is measured, above the bar if there is one."""
        variant = "" if row["variant"] is None else f"  {row['variant']}"
        tokens = "" if row.get("text_tokens") is None else f"  text tokens {row['text_tokens']:,}"
        requested = "" if row.get("requested_tokens") is None else f" of {row['requested_tokens']:,} requested"
        measure, digits = ("loss", 4) if "loss" in row else ("exact match", 3)
        value = f"{measure} {row['loss' if 'loss' in row else 'exact_match']:.{digits}f}"
        interval = "" if row["low"] is None else f" [{row['low']:.{digits}f}, {row['high']:.{digits}f}]"
        self.unprinted_line = ""
        self._print_line(f"length {row['length']:,}{variant}{tokens}{requested}: {value}{interval}")

    def show_count(self, description: str, num_done: int, num_total: int | None = None) -> None:
        """Show the number of completed items of a stage; None keeps the total."""
        self.num_total = self.num_total if num_total is None else num_total
        if self.has_bar:
            self.progress.start()
            # A total of None does not change the current total.
            self.progress.update(self.task_id, completed=num_done, total=num_total, description=description)
            return
        line = f"{description}  {num_done:,}" + ("" if self.num_total is None else f"/{self.num_total:,}")
        is_due = time.monotonic() - self.last_print_time >= SECONDS_PER_LINE
        self.unprinted_line = "" if is_due else line
        self._print_line(line if is_due else "")

    def _print_line(self, line: str) -> None:
        if line:
            self.last_print_time = time.monotonic()
            self.console.print(escape_control_characters(line), soft_wrap=True, **LITERAL_OUTPUT)
