"""Receivers of the rows of ``metrics.jsonl``: progress for people, and trackers, whose libraries are optional.

By default, progress is visible in terminals and notebooks, and nowhere else. The trackers TensorBoard, trackio and
Weights & Biases never stop a training: their first error becomes a warning, and training continues without them.
"""

import json
import sys
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError, SettingError, TrackerWarning, shorten_name, unknown_name_error
from lengthwise.core.files import read_file, write_atomically
from lengthwise.core.json_parsing import parse_json
from lengthwise.experiments.experiment import Experiment, describe_fit_lengths, to_dict
from lengthwise.training.trainer import METRICS

AUTO = "auto"
# Has the ID of the tracked run and the names of its trackers, so that a resumed run continues there.
TRACKED_RUN = "trackers.json"
PROJECT = "lengthwise"
# Weights & Biases waits this long for the network at the end of a run; `wandb sync` sends the rest.
FINISH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReporter:
    """Receivers of the rows of ``metrics.jsonl``: a function (or ``"auto"`` or None) and trackers, by name.

    ``"auto"`` shows a progress bar in a terminal, and lines in a notebook. Raises ``SettingError`` for another string
    or a tracker whose library is missing, and ``UnknownNameError`` for an unknown tracker.
    """

    report: Callable[[dict[str, Any]], None] | str | None
    trackers: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_report_option(self.report)
        check_trackers(self.trackers)

    @contextmanager
    def open(self, folder: Path, experiment: Experiment, first_step: int) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Yield a function that passes a row to all receivers; ``first_step`` is the first step after the checkpoint.

        Call this function before the training deletes the rows after the checkpoint. Raises ``RunFolderError`` if the
        file ``trackers.json`` is damaged.
        """
        runs = _tracked_runs(self.trackers, folder, to_dict(experiment), first_step)
        with self._open_progress(experiment) as show_row:
            trackers = [_GuardedTracker(name, run) for name, run in runs.items()]

            def report_row(row: dict[str, Any]) -> None:
                metrics = {name: value for name, value in row.items() if name != "step" and value is not None}
                # The report can stop the training, so the trackers receive the row first.
                for tracker in trackers:
                    tracker.call("log", metrics, row["step"])
                if show_row is not None:
                    show_row(row)

            try:
                yield report_row
            finally:
                for tracker in trackers:
                    tracker.call("close")

    @contextmanager
    def _open_progress(self, experiment: Experiment) -> Iterator[Callable[[dict[str, Any]], None] | None]:
        if self.report != AUTO:
            yield self.report  # type: ignore[misc]  # not a string: see check_report_option
        elif not is_interactive():
            yield None
        else:
            from lengthwise.core.progress_line import ProgressLine, err_console  # noqa: PLC0415  (a slow import)

            lengths = describe_fit_lengths(experiment)
            with ProgressLine(err_console, experiment.training.steps, fit_lengths=lengths) as progress:
                yield progress.show_training


def check_report_option(report: Callable[..., None] | str | None) -> None:
    """Raise ``SettingError`` for a report that is a string other than ``"auto"``."""
    if isinstance(report, str) and report != AUTO:
        raise SettingError(f"invalid report '{report}'; use a function, 'auto' for progress in terminals, or None")


def make_line_reporter(report: Callable[[str], None] | str | None) -> Callable[[str], None] | None:
    """Return the function that receives lines of progress; ``"auto"`` prints them in terminals and notebooks."""
    check_report_option(report)
    if not isinstance(report, str):
        return report
    if not is_interactive():
        return None
    from lengthwise.core.progress_line import err_console, escape_control_characters  # noqa: PLC0415  (a slow import)

    return lambda line: err_console.print(escape_control_characters(line))


def is_interactive() -> bool:
    """Return True if standard error is a terminal, or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Run as trackers see it, with a name for people, a unique ID, and the settings of its experiment.

    ``first_step`` is the first step of this training. ``tracked_step`` is the last step in the tracker, which is larger
    if a process was killed after its newest checkpoint; 0 for a new tracker.
    """

    folder: Path
    name: str
    id: str
    settings: Mapping[str, Any]
    first_step: int
    tracked_step: int


class TensorBoardTracker:
    """TensorBoard files in the folder ``tensorboard`` of the run."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  (an optional dependency)

        # Steps after the checkpoint replace those of a killed process.
        self.writer: Any = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.first_step)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write the metrics of a step to the disk."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        # A killed process would lose the rows before its checkpoint.
        self.writer.flush()

    def close(self) -> None:
        """Close the file of this training."""
        self.writer.close()


class TrackioTracker:
    """Run in the local trackio project ``lengthwise``, or in the Space that ``TRACKIO_SPACE_ID`` names."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio  # noqa: PLC0415  (an optional dependency)
        from trackio.sqlite_storage import SQLiteStorage  # noqa: PLC0415

        self.tracked_step = run.tracked_step
        self.library: Any = trackio
        self.storage = SQLiteStorage
        # Trackio identifies runs by name.
        name = f"{run.name} {run.id}"
        self.run = trackio.init(project=PROJECT, name=name, config=dict(run.settings), resume="allow", embed=False)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Add the metrics of a step to a queue, which a thread of trackio saves."""
        if step > self.tracked_step:
            self.run.log(dict(metrics), step=step)
            self.tracked_step = step

    def close(self) -> None:
        """Wait until all steps are saved; raise ``OSError`` if local steps are missing, because trackio does not."""
        self.library.finish()
        saved_step = self.storage.get_max_step_for_run(PROJECT, self.run.name, run_id=self.run.id)
        # A run in a Space has a URL and no local steps.
        if self.run.url is None and saved_step != self.tracked_step:
            raise OSError(f"trackio saved steps up to {saved_step}, not {self.tracked_step}")


class WandbTracker:
    """Run of Weights & Biases, in the project ``lengthwise``; ``WANDB_MODE=offline`` needs no account."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb  # noqa: PLC0415  (an optional dependency)

        self.tracked_step = run.tracked_step
        self.run = wandb.init(
            project=PROJECT,
            id=run.id,
            name=run.name,
            dir=str(run.folder),
            config=dict(run.settings),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", finish_timeout=FINISH_TIMEOUT_S),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Pass the metrics of a step to the process of wandb."""
        if step > self.tracked_step:
            self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Wait until all steps are saved and, if there is a network, sent."""
        self.run.finish()


# A tracker is built from a run. ``log`` adds the metrics of a step, and ``close`` sends everything.
TRACKERS: dict[str, Callable[[TrackedRun], Any]] = {
    "tensorboard": TensorBoardTracker,
    "trackio": TrackioTracker,
    "wandb": WandbTracker,
}


def check_trackers(names: Iterable[str]) -> None:
    """Raise ``UnknownNameError`` for an unknown tracker, and ``SettingError`` if its library is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise unknown_name_error("tracker", name, TRACKERS)
        if find_spec(name) is None:
            raise SettingError(f"tracker '{name}' needs the {name} library; run pip install 'lengthwise[{name}]'")


class _GuardedTracker:
    """Tracker whose first error becomes a warning and ends its use; its output goes to standard error."""

    def __init__(self, name: str, run: TrackedRun) -> None:
        self.name = name
        self.tracker: Any = None
        with self._guard():
            self.tracker = TRACKERS[name](run)

    def call(self, method: str, *arguments: Any) -> None:
        if self.tracker is not None:
            with self._guard():
                getattr(self.tracker, method)(*arguments)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            # Standard output is for results.
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            self.tracker = None
            reason = shorten_name(" ".join(f"{type(error).__name__}: {error}".split()))
            message = f"tracker {self.name} failed ({reason}); training continues without it"
            warnings.warn(message, TrackerWarning, stacklevel=2)


def _tracked_runs(
    names: Sequence[str], folder: Path, settings: Mapping[str, Any], first_step: int
) -> dict[str, TrackedRun]:
    """Return the run for each tracker, with the ID in the file ``TRACKED_RUN``; create or complete this file."""
    run_id, known_names = _read_tracked_run(folder / TRACKED_RUN)
    all_names = list(dict.fromkeys([*known_names, *names]))
    if all_names != known_names:
        write_atomically(folder / TRACKED_RUN, json.dumps({"id": run_id, "trackers": all_names}).encode() + b"\n")
    last_step = _last_logged_step(folder / METRICS)
    return {
        name: TrackedRun(
            folder=folder,
            name="/".join(folder.absolute().parts[-2:]),
            id=run_id,
            settings=settings,
            first_step=first_step,
            tracked_step=last_step if name in known_names else 0,
        )
        for name in names
    }


def _read_tracked_run(path: Path) -> tuple[str, list[str]]:
    """Return the ID and the trackers of a run; a new ID if the run has no trackers yet."""
    if not path.exists():
        # Not the digest of the experiment: the same experiment can be trained again in another folder.
        return uuid.uuid4().hex[:12], []
    try:
        tree = parse_json(read_file(path))
        run_id, names = tree.get("id"), tree.get("trackers")
        if not isinstance(run_id, str) or not isinstance(names, list):
            raise ValueError("it has no string id or no list trackers")
        return run_id, names
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); delete it to start a new tracked run") from None


def _last_logged_step(path: Path) -> int:
    """Return the step of the last complete row of ``metrics.jsonl``, or 0."""
    lines = read_file(path).splitlines() if path.exists() else []
    for line in reversed(lines):
        with suppress(ValueError, KeyError):
            return int(parse_json(line)["step"])
    return 0
