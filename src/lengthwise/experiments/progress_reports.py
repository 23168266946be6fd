"""Reports of progress: by default, progress is visible in terminals and notebooks, and nowhere else."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthwise.core.errors import SettingError
from lengthwise.experiments.experiment import Experiment, to_dict
from lengthwise.experiments.trackers import check_trackers, open_trackers

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReports:
    """Receivers of the rows of ``metrics.jsonl``: a function (or ``"auto"`` or None) and trackers, by name.

    ``"auto"`` shows a progress bar in a terminal, and lines in a notebook. Raises ``SettingError`` for another string
    or a tracker whose library is missing, and ``UnknownNameError`` for an unknown tracker.
    """

    report: Callable[[dict[str, Any]], None] | str | None
    trackers: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_report(self.report)
        check_trackers(self.trackers)

    @contextmanager
    def open(self, folder: Path, experiment: Experiment, first_step: int) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Yield a function that passes a row to all receivers; see ``open_trackers``."""
        with (
            self._open_progress(experiment) as show_row,
            open_trackers(self.trackers, folder, to_dict(experiment), first_step) as track_row,
        ):

            def report_row(row: dict[str, Any]) -> None:
                # The report can stop the training, so the trackers receive the row first.
                track_row(row)
                if show_row is not None:
                    show_row(row)

            yield report_row

    @contextmanager
    def _open_progress(self, experiment: Experiment) -> Iterator[Callable[[dict[str, Any]], None] | None]:
        if self.report != AUTO:
            yield self.report  # type: ignore[misc]  # not a string: see check_report
        elif not has_viewer():
            yield None
        else:
            from lengthwise.core.progress_line import ProgressLine, err_console  # noqa: PLC0415  (a slow import)

            max_length = experiment.train_lengths[1]
            with ProgressLine(err_console, experiment.training.steps, max_train_length=max_length) as progress:
                yield progress.show_training


def check_report(report: Callable[..., None] | str | None) -> None:
    """Raise ``SettingError`` for a report that is a string other than ``"auto"``."""
    if isinstance(report, str) and report != AUTO:
        raise SettingError(f"invalid report '{report}'; use a function, 'auto' for progress in terminals, or None")


def line_report(report: Callable[[str], None] | str | None) -> Callable[[str], None] | None:
    """Return the function that receives lines of progress; ``"auto"`` prints them in terminals and notebooks."""
    check_report(report)
    if isinstance(report, str):
        return _print_line if has_viewer() else None
    return report


def has_viewer() -> bool:
    """Return True if standard error is a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _print_line(line: str) -> None:
    from lengthwise.core.progress_line import err_console, escape  # noqa: PLC0415  (a slow import)

    err_console.print(escape(line))
