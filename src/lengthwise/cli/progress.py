"""Progress lines on standard error: how far, how good, how long still."""

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressLine:
    """One line that is redrawn; entered and left with the work it tells about."""

    def __init__(self, console: Console, total: int | None = None, *, longest: int | None = None) -> None:
        self.longest = longest
        self.matched = ""
        self.line = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.work = self.line.add_task("starting", total=total)

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An error stands alone, without the bar and without the blank line that Progress.stop prints.
        self.line.live.transient = error is not None
        shown = self.line.live.is_started and error is None
        self.line.live.stop()
        if shown and not self.line.console.is_interactive:
            # In a file the last state of the bar ends no line by itself.
            self.line.console.print()

    def trained(self, row: dict[str, Any]) -> None:
        """Show a row of ``metrics.jsonl``: means since the row before, and the newest exact match with its length."""
        self.line.start()
        if "exact_match" in row:
            self.matched = f"  exact match {row['exact_match']:.3f} at length {self.longest}"
        accuracies = f"tokens {row['mean_token_accuracy']:.3f}  IDs {row['mean_id_accuracy']:.3f}"
        text = f"mean loss {row['mean_loss']:.4f}  {accuracies}{self.matched}"
        self.line.update(self.work, completed=row["step"], description=text)

    def prepared(self, stage: str, done: int, total: int | None) -> None:
        """Documents of a corpus dealt with."""
        self.line.start()
        self.line.update(self.work, completed=done, total=total, description=stage)

    def measured(self, done: int, total: int) -> None:
        """Targets measured."""
        self.line.start()
        self.line.update(self.work, completed=done, total=total, description="targets")

    def evaluated(self, length: int, done: int, total: int) -> None:
        """Examples graded at a length."""
        self.line.start()
        self.line.update(self.work, completed=done, total=total, description=f"length {length:,}")
