"""Runner of comparisons and sweeps: training and evaluation of experiments with several seeds, in parallel.

A comparison names the folder of a run by its label and seed, and ends with the first error. A sweep names it by the
content of its settings, and a run that fails stops no other run.
"""

import json
import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.errors import (
    DivergedError,
    FolderInUseError,
    LengthwiseError,
    RunFolderError,
    SettingError,
    TrainingOverlapWarning,
    UntrainedDistanceWarning,
    WorkerError,
    unknown_name_error,
)
from lengthwise.core.files import StrPath, write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.interruption import StoppedError
from lengthwise.core.type_checks import check_arguments, check_field_values
from lengthwise.evaluation.exact_match import depends_on_id_distances
from lengthwise.evaluation.grading import LengthResult
from lengthwise.evaluation.loss_by_context import ContextLoss
from lengthwise.evaluation.result_rows import (
    HELD_OUT_ADVICE,
    is_skipped,
    label_with_variant,
    label_without_variant,
    lengths_seen_in_training,
)
from lengthwise.evaluation.tables_and_figures import describe_result
from lengthwise.experiments.executors import Executor, reject_import_in_worker, select_executor
from lengthwise.experiments.experiment import Experiment, build_decoder, to_dict
from lengthwise.experiments.progress_reports import AUTO, check_trackers, make_line_reporter
from lengthwise.experiments.recipes.tuned_encodings import describe_settings
from lengthwise.experiments.run import train
from lengthwise.experiments.run_evaluation import iter_result_rows
from lengthwise.experiments.run_folder import (
    COMPARISON_FOLDER,
    COMPARISON_ROWS,
    EXPERIMENT,
    PLANNED_RUNS,
    RESULTS,
    SWEEP_FOLDER,
    acquire_folder,
    acquire_run_folder,
    append_rows,
    experiment_folder_name,
    read_rows_with_digest,
    run_folder,
    to_folder_name,
    write_rows,
    write_rows_with_digest,
)
from lengthwise.experiments.setting_checks import check_evaluation, prepare_training
from lengthwise.experiments.sweep_file import SweepFile, check_seeds, read_sweep_file
from lengthwise.tasks import GradedByLoss, task_result_fields
from lengthwise.training.launch import reject_several_processes

# Version of the layout of a sweep folder.
LAYOUT = {"layout": 1}
# Seconds between two attempts to lock the folder of a run.
LOCK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result rows of all runs, with warnings (diverged runs, untrained ID distances, test records seen in training).

    ``diverged`` has the ``row`` (label), ``task``, ``seed`` and ``reason`` of each diverged run, which has no results.
    ``failed`` has the same entries of each run of a sweep that ended with an error. ``is_complete`` is False after an
    interruption.
    """

    folder: Path
    rows: list[dict[str, Any]]
    diverged: list[dict[str, Any]]
    failed: list[dict[str, Any]]
    warnings: list[str]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentJob:
    """One experiment with one seed, to be trained in ``folder`` on a device with a number of CPU threads."""

    label: str
    experiment: Experiment
    folder: Path
    device: str
    threads: int
    trackers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.label}, seed {self.experiment.seed}"

    def rows_without_results(self, reason: str) -> list[dict[str, Any]]:
        """Return one row for each task variant, with the reason why the run has no results."""
        task, variants = self.experiment.task, self.experiment.evaluation.variants or (None,)
        facts = {**task_result_fields(task), "seed": self.experiment.seed, "reason": reason}
        return [{"row": label_with_variant(self.label, variant), **facts} for variant in variants]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMetadata:
    """Keys that describe the run in a result row, with the types of their values."""

    variant: str | None
    seed: int
    steps: int
    trained_distance: float
    train_s: float


@check_arguments
def compare(
    experiments: Mapping[str, Experiment],
    out: StrPath,
    *,
    seeds: int = 1,
    workers: int | None = None,
    device: str = "auto",
    only: Collection[str] | None = None,
    executor: str = "local",
    address: str | None = None,
    report: Callable[[str], None] | str | None = AUTO,
    trackers: Sequence[str] = (),
) -> Comparison:
    """Train and evaluate every experiment with a number of ``seeds``, starting at the seed of the experiment.

    Repeat the call to continue after an interruption; complete runs are not repeated. ``workers`` is the number of
    parallel processes (default: one per core); a single worker uses this process. ``only`` contains the labels to train
    (default: all); results of other labels come from earlier calls. ``executor`` is ``local``, or ``ray`` for the
    cluster at ``address`` (see ``sweep``). ``report`` receives a line per finished run, and first a line per baseline
    about its settings; by default, the lines are visible in terminals and notebooks. ``trackers`` receive the metrics
    of each run (``train``).

    Raises ``RunFolderError`` if ``out`` contains a run or another comparison, or if another process uses it.
    """
    reject_import_in_worker()
    reject_several_processes("compare")
    if seeds < 1:
        raise SettingError(f"invalid number of seeds {seeds}; use at least 1")
    out, report_line = Path(out), make_line_reporter(report)
    check_trackers(trackers)
    labels = experiments if only is None else only
    check_experiments(experiments, labels)
    jobs = [
        ExperimentJob(
            label=label, experiment=seeded, folder=run_folder(out, label, seeded.seed), device=device, threads=0
        )
        for label, experiment in experiments.items()
        for seeded in (replace(experiment, seed=experiment.seed + seed) for seed in range(seeds))
    ]
    pending = [job for job in jobs if job.label in labels]
    pool = select_executor(executor, address=address, workers=workers, num_jobs=len(pending), device=device, folder=out)
    pending = [replace(job, threads=pool.threads, trackers=tuple(trackers)) for job in pending]

    def report_result(num_finished: int, line: str) -> None:
        if report_line is not None:
            report_line(f"[{num_finished}/{len(pending)}] {line}")

    with exclusive_lock(out):
        settings = {label: to_dict(experiment) for label, experiment in experiments.items()}
        acquire_folder(out, COMPARISON_FOLDER, {"experiments": settings, "num_seeds": seeds}, resume=True)
        for label in labels:
            if report_line is not None and (text := describe_settings(experiments[label])) is not None:
                report_line(f"{label}: {text}")
        results, is_complete = _run_jobs(pending, pool, report_result, keep_going=False)
        for job in jobs:
            if job.folder not in results and (saved := read_saved_result(job)) is not None:
                results[job.folder] = saved
        comparison = _summarize(out, jobs, results, is_complete=is_complete)
        if is_complete and not comparison.rows:
            raise DivergedError(f"all runs diverged, for example {comparison.warnings[0]}")
        write_rows(out / RESULTS, comparison.rows)
        return comparison


@check_arguments
def sweep(
    experiments: Mapping[str, Experiment] | StrPath,
    out: StrPath,
    *,
    seeds: int | Sequence[int] | None = None,
    workers: int | None = None,
    device: str = "auto",
    executor: str = "local",
    address: str | None = None,
    report: Callable[[int, int, str], None] | None = None,
    trackers: Sequence[str] = (),
) -> Comparison:
    """Train and evaluate every experiment with every seed; ``experiments`` is a dict by label, or a sweep file.

    ``seeds`` is a list of seeds or their number (default: the seeds of the file, or of each experiment). Each run is in
    a folder of ``out`` that is named by its settings. So the same run in two sweeps is trained only once, and a sweep
    with other settings changes no finished run. Repeat the call to continue after an interruption.

    ``executor`` is ``local`` for ``workers`` processes on this machine (default: one per core), or ``ray`` for the
    cluster at ``address`` (default: a new cluster on this machine), whose nodes must all see ``out``. Each run uses one
    CPU thread, so both executors give the same rows. ``report`` receives the number of finished runs, the number of
    all runs and a line of text. ``trackers`` receive the metrics of each run (``train``).

    A run that fails stops no other run; ``failed`` and ``diverged`` of the result contain the reasons. Raises
    ``SettingError`` for invalid settings before any file is written, ``WorkerError`` if the workers cannot start, and
    ``RunFolderError`` if ``out`` contains a run, comparison or study, or if another process uses it.
    """
    reject_import_in_worker()
    reject_several_processes("sweep")
    source = (
        SweepFile(experiments=experiments) if isinstance(experiments, Mapping) else read_sweep_file(Path(experiments))
    )
    if not source.experiments:
        raise SettingError("the sweep has no experiments; pass a dict with at least one experiment")
    _check_settings(source.experiments)
    check_trackers(trackers)
    out = Path(out)
    jobs = _sweep_jobs(source, source.seeds if seeds is None else check_seeds(seeds, "the sweep"), out, device)
    pool = select_executor(executor, address=address, workers=workers, num_jobs=len(jobs), device=device, folder=out)
    with exclusive_lock(out):
        acquire_folder(out, SWEEP_FOLDER, LAYOUT, resume=True)
        planned_runs = {job.folder.name: to_dict(job.experiment) for job in jobs}
        write_atomically(out / PLANNED_RUNS, json.dumps(planned_runs).encode() + b"\n")
        saved_results: dict[Path, JobResult] = {}
        for job in jobs:
            # The job itself reports the error of a damaged file.
            with suppress(RunFolderError):
                if (saved := read_saved_result(job)) is not None:
                    saved_results[job.folder] = saved

        def report_result(num_finished: int, line: str) -> None:
            if report is not None:
                report(len(saved_results) + num_finished, len(jobs), line)

        report_result(0, "runs are finished")
        pending = [replace(job, trackers=tuple(trackers)) for job in jobs if job.folder not in saved_results]
        results, is_complete = _run_jobs(pending, pool, report_result, keep_going=True)
        comparison = _summarize(out, jobs, saved_results | results, is_complete=is_complete)
        write_rows(out / RESULTS, comparison.rows)
        return comparison


def _sweep_jobs(source: SweepFile, seeds: Sequence[int] | None, out: Path, device: str) -> list[ExperimentJob]:
    jobs: dict[str, ExperimentJob] = {}
    for label, experiment in source.experiments.items():
        for seed in (experiment.seed,) if seeds is None else seeds:
            seeded = replace(experiment, seed=seed)
            name = experiment_folder_name(seeded)
            if name in jobs:
                raise SettingError(f"experiments '{jobs[name].label}' and '{label}' are equal; remove one of them")
            # Worker processes may have another working folder.
            folder = out.absolute() / name
            jobs[name] = ExperimentJob(label=label, experiment=seeded, folder=folder, device=device, threads=1)
    return list(jobs.values())


def _run_jobs(
    jobs: Sequence[ExperimentJob], pool: Executor, report: Callable[[int, str], None], *, keep_going: bool
) -> tuple[dict[Path, JobResult], bool]:
    """Run jobs, and return the results by folder, and False if a signal stopped them.

    ``report`` receives the number of finished jobs and a line about the last one. With ``keep_going``, an error is the
    result of its job; otherwise, it is raised.
    """
    results: dict[Path, JobResult] = {}

    def record_result(job: ExperimentJob, result: JobResult | WorkerError) -> None:
        if isinstance(result, WorkerError):
            if not keep_going:
                raise result
            result = JobResult(rows=[], failed=str(result))
        results[job.folder] = result
        report(len(results), f"{job}: {result}")

    if not jobs:
        return results, True
    is_complete = pool.run(partial(run_job, keep_going=keep_going), longest_jobs_first(jobs, pool), record_result)
    return results, is_complete


def run_job(job: ExperimentJob, should_stop: Callable[[], bool], *, keep_going: bool = False) -> JobResult | None:
    """Train or resume a run, evaluate it, and return its rows; return None after an interruption.

    With ``keep_going``, an error becomes the result, so that it stops no other job.
    """
    try:
        return _train_and_evaluate(job, should_stop)
    except DivergedError as error:
        return JobResult(rows=[], diverged=str(error))
    except Exception as error:
        if not keep_going:
            raise
        kind = "" if isinstance(error, LengthwiseError) else f"{type(error).__name__}: "
        message = str(error) if isinstance(error, LengthwiseError) else " ".join(str(error).split())
        return JobResult(rows=[], failed=kind + message)


def _train_and_evaluate(job: ExperimentJob, should_stop: Callable[[], bool]) -> JobResult | None:
    def check_stop(*progress: int) -> None:
        if should_stop():
            raise StoppedError

    torch.set_num_threads(job.threads)
    if (job.folder / EXPERIMENT).exists():
        # Training would extend a run of fewer steps, but all runs of a comparison have one schedule.
        acquire_run_folder(job.folder, job.experiment, resume=True)
    run = None
    settings: dict[str, Any] = {"device": job.device, "trackers": job.trackers, "stop": should_stop}
    while run is None:
        if should_stop():
            return None
        try:
            run = train(job.experiment, job.folder, resume=True, report=None, **settings)
        except FolderInUseError:
            # Another process trains in the folder, for example a worker that has lost its cluster.
            time.sleep(LOCK_INTERVAL_S)
    if should_stop():
        return None
    if (result := read_saved_result(job)) is None:
        with warnings.catch_warnings():
            # The comparison emits one warning for all rows.
            warnings.simplefilter("ignore", UntrainedDistanceWarning)
            warnings.simplefilter("ignore", TrainingOverlapWarning)
            try:
                # An interrupted evaluation saves no rows and starts again.
                rows = list(iter_result_rows(run, job.experiment.evaluation, report=check_stop))
            except StoppedError:
                return None
        write_rows_with_digest(job.folder / COMPARISON_ROWS, rows)
        result = read_saved_result(job)
    append_rows(job.folder / RESULTS, read_rows_with_digest(job.folder / COMPARISON_ROWS), skip_existing=True)
    return result


def check_result_row(row: Mapping[str, Any]) -> None:
    """Raise ``SettingError`` for a result row with missing keys or values of the wrong type."""
    check_field_values(ContextLoss if "loss" in row else LengthResult, row)
    check_field_values(RunMetadata, row)


def read_saved_result(job: ExperimentJob) -> JobResult | None:
    """Return the result that an earlier call saved in the file ``COMPARISON_ROWS`` of the run; None if missing."""
    rows = read_rows_with_digest(job.folder / COMPARISON_ROWS)
    try:
        for row in rows:
            check_result_row(row)
    except SettingError as error:
        raise RunFolderError(
            f"{job.folder / COMPARISON_ROWS} has invalid rows ({error}); delete this file to evaluate the run again"
        ) from None
    labelled_rows = [{"row": label_with_variant(job.label, row["variant"]), **row} for row in rows]
    return JobResult(rows=labelled_rows) if rows else None


def longest_jobs_first(jobs: Sequence[ExperimentJob], pool: Executor) -> list[ExperimentJob]:
    """Return the jobs with the longest first if several run at the same time, so that no worker is idle at the end."""

    def num_operations(job: ExperimentJob) -> int:
        """Return the number of operations of the training, up to a constant factor."""
        experiment = job.experiment
        training, decoder = experiment.training, experiment.decoder
        num_symbols = training.steps * training.batch_size * experiment.train_lengths[1]
        return num_symbols * decoder.num_unrolled_blocks * decoder.d_model**2

    return list(jobs) if pool.workers == 1 else sorted(jobs, key=num_operations, reverse=True)


def check_experiments(experiments: Mapping[str, Experiment], labels: Collection[str]) -> None:
    """Raise an error for experiments that cannot be trained, evaluated or compared, and for unknown labels."""
    if not labels:
        raise SettingError("the dict experiments or the list only is empty; pass at least one experiment")
    for label in labels:
        if label not in experiments:
            raise unknown_name_error("row", label, experiments)
    folders: dict[str, str] = {}
    for label in experiments:
        first_label = folders.setdefault(to_folder_name(label), label)
        if not to_folder_name(label) or first_label != label:
            reason = f"equals the folder name of {first_label!r}" if to_folder_name(label) else "is empty"
            advice = "use labels that differ in letters or digits"
            raise SettingError(f"invalid label {label!r}: its folder name {reason}; {advice}")
    _check_settings(experiments)


def _check_settings(experiments: Mapping[str, Experiment]) -> None:
    """Raise an error for experiments that cannot be trained or evaluated, or whose results cannot be in one table."""
    for experiment in experiments.values():
        prepare_training(experiment)
        check_evaluation(experiment, experiment.evaluation)
    if len({isinstance(experiment.task, GradedByLoss) for experiment in experiments.values()}) > 1:
        raise SettingError(
            "tasks graded by loss cannot be compared with tasks graded by exact match; make two separate comparisons"
        )


def _summarize(
    out: Path, jobs: Sequence[ExperimentJob], results: Mapping[Path, JobResult], *, is_complete: bool
) -> Comparison:
    """Return the comparison of the jobs that have results, by the folder of their run."""
    job_results = [(job, results[job.folder]) for job in jobs if job.folder in results]
    rows = [row for _, result in job_results for row in result.rows]
    diverged = [(job, result.diverged) for job, result in job_results if result.diverged is not None]
    failed = [(job, result.failed) for job, result in job_results if result.failed is not None]
    messages = [f"{job}: {reason}" for job, reason in (*diverged, *failed)]
    if lengths := lengths_seen_in_training(rows):
        advice = f"{HELD_OUT_ADVICE} and evaluate each run"
        messages.append(f"some or all records of length {lengths} were in the training data; {advice}")
    experiments = {job.label: job.experiment for job in jobs}
    labels = {
        label
        for label, experiment in experiments.items()
        if depends_on_id_distances(build_decoder(experiment), experiment.scheme)
    }
    return Comparison(
        folder=out,
        rows=rows,
        diverged=[row for job, reason in diverged for row in job.rows_without_results(reason)],
        failed=[row for job, reason in failed for row in job.rows_without_results(reason)],
        warnings=messages + _distance_warnings([row for row in rows if label_without_variant(row) in labels]),
        is_complete=is_complete,
    )


def _distance_warnings(rows: list[dict[str, Any]]) -> list[str]:
    """Return a warning for each label with a test ID distance beyond the training maximum of its run."""
    rows_by_label: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if not is_skipped(row) and row["largest_distance"] > row["trained_distance"]:
            rows_by_label.setdefault(label_without_variant(row), []).append(row)
    messages = []
    for label, label_rows in rows_by_label.items():
        lengths = ", ".join(f"{length:,}" for length in sorted({row["length"] for row in label_rows}))
        max_distance = max(row["largest_distance"] for row in label_rows)
        messages.append(
            f"{label}: length {lengths} used ID distances up to {max_distance:,}, "
            f"but training only up to {label_rows[0]['trained_distance']:,}"
        )
    return messages
