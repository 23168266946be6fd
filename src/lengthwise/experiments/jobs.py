"""Jobs of comparisons and sweeps: training and evaluation of one experiment with one seed, in one folder."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.errors import (
    DivergedError,
    FolderInUseError,
    RunFolderError,
    SettingError,
    TrainingOverlapWarning,
    UntrainedDistanceWarning,
)
from lengthwise.evaluation.evaluator import check_row, select_evaluator
from lengthwise.evaluation.tables_and_figures import describe_result
from lengthwise.experiments.experiment import Experiment
from lengthwise.experiments.run import Run, train
from lengthwise.experiments.run_evaluation import iter_result_rows
from lengthwise.experiments.run_extension import check_run_folder
from lengthwise.experiments.run_folder import (
    COMPARISON_ROWS,
    RESULTS,
    append_rows,
    read_rows_with_digest,
    write_rows_with_digest,
)
from lengthwise.tasks import task_fields

# Seconds between two attempts to lock the folder of a run.
LOCK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One experiment with one seed, to be trained in ``folder`` on a device with a number of CPU threads."""

    label: str
    experiment: Experiment
    folder: Path
    device: str
    threads: int
    trackers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.label}, seed {self.experiment.seed}"

    def row_label(self, variant: str | None) -> str:
        """Return the label of the rows of a task variant."""
        return self.label if variant is None else f"{self.label}, {variant}"

    def rows_without_results(self, reason: str) -> list[dict[str, Any]]:
        """Return one row for each task variant, with the reason why the run has no results."""
        task, variants = self.experiment.task, self.experiment.evaluation.variants or (None,)
        facts = {**task_fields(task), "seed": self.experiment.seed, "reason": reason}
        return [{"row": self.row_label(variant), **facts} for variant in variants]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a job: its result rows, or the reason why it diverged or failed."""

    rows: list[dict[str, Any]]
    diverged: str | None = None
    failed: str | None = None

    def __str__(self) -> str:
        reason = self.diverged or self.failed
        if reason is not None:
            return reason
        last_row = self.rows[-1]
        return f"{last_row['steps']} steps in {last_row['train_s']:.0f} s, {describe_result(self.rows)}"


class _EvaluationStopped(Exception):  # noqa: N818  (no error)
    """Exception that stops an evaluation after a signal."""


def run_job(job: Job, should_stop: Callable[[], bool]) -> JobResult | None:
    """Train or resume a run, evaluate it, and return its rows; return None after an interruption."""

    def check_stop(*progress: int) -> None:
        if should_stop():
            raise _EvaluationStopped

    torch.set_num_threads(job.threads)
    # A run of fewer steps would be extended, but all runs of a comparison have one schedule.
    check_run_folder(job.folder, job.experiment)
    try:
        run = _train_when_free(job, should_stop)
    except DivergedError as error:
        return JobResult(rows=[], diverged=str(error))
    if run is None or should_stop():
        return None
    if (result := saved_result(job)) is None:
        with warnings.catch_warnings():
            # The comparison emits one warning for all rows.
            warnings.simplefilter("ignore", UntrainedDistanceWarning)
            warnings.simplefilter("ignore", TrainingOverlapWarning)
            try:
                # An interrupted evaluation saves no rows and starts again.
                rows = list(iter_result_rows(run, job.experiment.evaluation, report=check_stop))
            except _EvaluationStopped:
                return None
            except DivergedError as error:
                return JobResult(rows=[], diverged=str(error))
        write_rows_with_digest(job.folder / COMPARISON_ROWS, rows)
        result = saved_result(job)
    append_rows(job.folder / RESULTS, read_rows_with_digest(job.folder / COMPARISON_ROWS), skip_existing=True)
    return result


def _train_when_free(job: Job, should_stop: Callable[[], bool]) -> Run | None:
    """Train once no other process trains in the folder, for example a worker that has lost its cluster."""
    while not should_stop():
        try:
            return train(
                job.experiment,
                job.folder,
                resume=True,
                device=job.device,
                report=None,
                trackers=job.trackers,
                stop=should_stop,
            )
        except FolderInUseError:
            time.sleep(LOCK_INTERVAL_S)
    return None


def saved_result(job: Job) -> JobResult | None:
    """Return the result that an earlier call saved in the file ``COMPARISON_ROWS`` of the run; None if missing."""
    rows = read_rows_with_digest(job.folder / COMPARISON_ROWS)
    try:
        for row in rows:
            check_row(row, select_evaluator(job.experiment.task))
    except SettingError as error:
        raise RunFolderError(
            f"{job.folder / COMPARISON_ROWS} has invalid rows ({error}); delete this file to evaluate the run again"
        ) from None
    return JobResult(rows=[{"row": job.row_label(row["variant"]), **row} for row in rows]) if rows else None
