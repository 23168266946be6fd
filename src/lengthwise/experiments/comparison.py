"""Comparison of experiments: training and evaluation with several seeds, in parallel processes."""

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lengthwise.core.devices import pick_device
from lengthwise.core.errors import (
    DivergedError,
    RunFolderError,
    SettingError,
    TrainingOverlapWarning,
    UntrainedDistanceWarning,
    unknown_name,
)
from lengthwise.core.files import StrPath
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.interruption import catch_interrupts
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.evaluator import HELD_OUT_ADVICE, check_row, overlapping_lengths, select_evaluator
from lengthwise.evaluation.exact_match import depends_on_id_distances
from lengthwise.evaluation.result_rows import label_of
from lengthwise.evaluation.tables_and_figures import describe_result
from lengthwise.experiments.experiment import Experiment, build_decoder, to_dict
from lengthwise.experiments.progress_reports import AUTO, line_report
from lengthwise.experiments.run import train
from lengthwise.experiments.run_evaluation import iter_result_rows
from lengthwise.experiments.run_extension import check_run_folder
from lengthwise.experiments.run_folder import (
    COMPARISON_FOLDER,
    COMPARISON_ROWS,
    RESULTS,
    append_rows,
    claim_folder,
    read_rows_with_digest,
    run_folder,
    to_folder_name,
    write_rows,
    write_rows_with_digest,
)
from lengthwise.experiments.trackers import check_trackers
from lengthwise.experiments.validation import check_evaluation, prepare_training
from lengthwise.experiments.worker_pool import reject_import_in_worker, run_in_processes
from lengthwise.tasks import task_fields
from lengthwise.training.process_group import reject_several_processes


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result rows of all runs, with warnings (diverged runs, untrained ID distances, test records seen in training).

    ``diverged`` has the ``row`` (label), ``task``, ``seed`` and ``reason`` of each diverged run, which has no results.
    ``is_complete`` is False after an interruption.
    """

    folder: Path
    rows: list[dict[str, Any]]
    diverged: list[dict[str, Any]]
    warnings: list[str]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
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
        return self.label if variant is None else f"{self.label}, {variant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Result of a job: its result rows, or the reason why its training or evaluation diverged."""

    rows: list[dict[str, Any]]
    diverged: str | None = None


@check_arguments
def compare(  # noqa: PLR0913  (each argument is a setting of the call)
    experiments: Mapping[str, Experiment],
    out: StrPath,
    *,
    num_seeds: int = 1,
    jobs: int | None = None,
    device: str = "auto",
    only: Collection[str] | None = None,
    report: Callable[[str], None] | str | None = AUTO,
    trackers: Sequence[str] = (),
) -> Comparison:
    """Train and evaluate every experiment with ``num_seeds`` seeds, starting at the seed of the experiment.

    Repeat the call to continue after an interruption; complete runs are not repeated. ``jobs`` is the number of
    parallel processes (default: one per core); a single job uses this process. ``only`` contains the labels to train
    (default: all); results of other labels come from earlier calls. ``report`` receives a line per finished run; by
    default, the lines are visible in terminals and notebooks. ``trackers`` receive the metrics of each run (``train``).

    Raises ``RunFolderError`` if ``out`` contains a run or another comparison, or if another process uses it.
    """
    reject_import_in_worker()
    reject_several_processes("compare")
    for name, count in (("num_seeds", num_seeds), ("jobs", jobs)):
        if count is not None and count < 1:
            raise SettingError(f"invalid {name} {count}; use at least 1")
    out, report_line = Path(out), line_report(report)
    check_trackers(trackers)
    labels = experiments if only is None else only
    check_experiments(experiments, labels)
    num_cores = 1 if pick_device(device).type == "cuda" else os.cpu_count() or 1
    all_jobs = [
        _Job(label=label, experiment=each, folder=run_folder(out, label, each.seed), device=device, threads=0)
        for label, experiment in experiments.items()
        for each in (replace(experiment, seed=experiment.seed + seed) for seed in range(num_seeds))
    ]
    pending_jobs = [job for job in all_jobs if job.label in labels]
    num_workers = min(jobs if jobs is not None else num_cores, len(pending_jobs))
    # OMP_NUM_THREADS can set a smaller number of threads.
    num_threads = max(1, min(num_cores // num_workers, torch.get_num_threads()))
    pending_jobs = [replace(job, threads=num_threads, trackers=tuple(trackers)) for job in pending_jobs]
    results: dict[Path, _Result] = {}

    def record_result(job: _Job, result: _Result) -> None:
        results[job.folder] = result
        if report_line is not None:
            report_line(f"[{len(results)}/{len(pending_jobs)}] {job}: {_describe_job_result(result)}")

    with exclusive_lock(out):
        settings = {label: to_dict(experiment) for label, experiment in experiments.items()}
        claim_folder(out, COMPARISON_FOLDER, {"experiments": settings, "num_seeds": num_seeds}, resume=True)
        if num_workers == 1:
            _run_serially(pending_jobs, record_result)
        else:
            # Start the longest jobs first, so that no core is idle at the end.
            pending_jobs.sort(key=lambda job: -job.experiment.training.steps * job.experiment.decoder.num_layers)
            run_in_processes(_run_in_worker, pending_jobs, num_workers, record_result)
        return _summarize(out, experiments, all_jobs, results, len(results) == len(pending_jobs))


def _summarize(
    out: Path, experiments: Mapping[str, Experiment], jobs: list[_Job], results: dict[Path, _Result], is_complete: bool
) -> Comparison:
    """Add the results of earlier calls, save all rows in ``results.jsonl``, and return the comparison."""
    for job in jobs:
        if job.folder not in results and (saved_result := _saved_result(job)) is not None:
            results[job.folder] = saved_result
    job_results = [(job, results[job.folder]) for job in jobs if job.folder in results]
    rows = [row for _, result in job_results for row in result.rows]
    diverged = [(job, result.diverged) for job, result in job_results if result.diverged is not None]
    messages = [f"{job}: {reason}" for job, reason in diverged]
    if is_complete and not rows:
        raise DivergedError(f"all runs diverged, for example {messages[0]}")
    labels = {name for name, each in experiments.items() if depends_on_id_distances(build_decoder(each), each.scheme)}
    distance_rows = [row for row in rows if label_of(row) in labels]
    messages += _overlap_warnings(rows) + _distance_warnings(distance_rows)
    diverged_rows = [
        {"row": job.row_label(variant), **task_fields(each.task), "seed": each.seed, "reason": reason}
        for job, reason in diverged
        for each in [job.experiment]
        for variant in each.evaluation.variants or (None,)
    ]
    write_rows(out / RESULTS, rows)
    return Comparison(folder=out, rows=rows, diverged=diverged_rows, warnings=messages, is_complete=is_complete)


def check_experiments(experiments: Mapping[str, Experiment], labels: Iterable[str] = ()) -> None:
    """Raise an error for experiments that cannot be trained, evaluated or compared, and for unknown labels."""
    for label in labels:
        if label not in experiments:
            raise unknown_name("row", label, experiments)
    folders: dict[str, str] = {}
    for label in experiments:
        first_label = folders.setdefault(to_folder_name(label), label)
        if not to_folder_name(label) or first_label != label:
            reason = f"equals the folder name of {first_label!r}" if to_folder_name(label) else "is empty"
            advice = "use labels that differ in letters or digits"
            raise SettingError(f"invalid label {label!r}: its folder name {reason}; {advice}")
    for experiment in experiments.values():
        prepare_training(experiment)
        check_evaluation(experiment, experiment.evaluation)
    if len({select_evaluator(experiment.task).uses_loss for experiment in experiments.values()}) > 1:
        raise SettingError(
            "tasks graded by loss cannot be compared with tasks graded by exact match; make two separate comparisons"
        )


def _run_serially(pending_jobs: list[_Job], record_result: Callable[[_Job, _Result], None]) -> None:
    num_threads = torch.get_num_threads()
    try:
        with catch_interrupts() as should_stop:
            for job in pending_jobs:
                result = None if should_stop() else _run_job(job, should_stop)
                if result is None:
                    break
                record_result(job, result)
    finally:
        torch.set_num_threads(num_threads)


class _EvaluationStopped(Exception):  # noqa: N818  (no error)
    """Exception that stops an evaluation after a signal."""


def _describe_job_result(result: _Result) -> str:
    if result.diverged is not None:
        return result.diverged
    last_row = result.rows[-1]
    return f"{last_row['steps']} steps in {last_row['train_s']:.0f} s, {describe_result(result.rows)}"


def _run_in_worker(job: _Job) -> _Result | None:
    with catch_interrupts() as should_stop:
        return _run_job(job, should_stop)


def _run_job(job: _Job, should_stop: Callable[[], bool]) -> _Result | None:
    """Train or resume a run, evaluate it, and return its rows; return None after an interruption."""

    def check_stop(*progress: int) -> None:
        if should_stop():
            raise _EvaluationStopped

    torch.set_num_threads(job.threads)
    # A run of fewer steps would be extended, but all runs of a comparison have one schedule.
    check_run_folder(job.folder, job.experiment)
    try:
        run = train(
            job.experiment,
            job.folder,
            resume=True,
            device=job.device,
            report=None,
            trackers=job.trackers,
            stop=should_stop,
        )
    except DivergedError as error:
        return _Result(rows=[], diverged=str(error))
    if run is None or should_stop():
        return None
    if (saved_result := _saved_result(job)) is None:
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
                return _Result(rows=[], diverged=str(error))
        write_rows_with_digest(job.folder / COMPARISON_ROWS, rows)
        saved_result = _saved_result(job)
    append_rows(job.folder / RESULTS, read_rows_with_digest(job.folder / COMPARISON_ROWS), skip_existing=True)
    return saved_result


def _saved_result(job: _Job) -> _Result | None:
    """Return the result that an earlier call saved in the file ``COMPARISON_ROWS`` of the run; None if missing."""
    rows = read_rows_with_digest(job.folder / COMPARISON_ROWS)
    try:
        for row in rows:
            check_row(row, select_evaluator(job.experiment.task))
    except SettingError as error:
        raise RunFolderError(
            f"{job.folder / COMPARISON_ROWS} has invalid rows ({error}); delete this file to evaluate the run again"
        ) from None
    return _Result(rows=[{"row": job.row_label(row["variant"]), **row} for row in rows]) if rows else None


def _overlap_warnings(rows: list[dict[str, Any]]) -> list[str]:
    lengths, advice = overlapping_lengths(rows), f"{HELD_OUT_ADVICE} and evaluate each run"
    warning = f"some or all records of length {lengths} were in the training data; {advice}"
    return [warning] if lengths else []


def _distance_warnings(rows: list[dict[str, Any]]) -> list[str]:
    """Return a warning for each label with a test ID distance beyond the training maximum of its run."""
    rows_beyond_trained_distance = [row for row in rows if row["largest_distance"] > row["trained_distance"]]
    messages = []
    for label in dict.fromkeys(map(label_of, rows_beyond_trained_distance)):
        label_rows = [row for row in rows_beyond_trained_distance if label_of(row) == label]
        lengths = ", ".join(f"{length:,}" for length in sorted({row["length"] for row in label_rows}))
        max_distance = max(row["largest_distance"] for row in label_rows)
        messages.append(
            f"{label}: length {lengths} used ID distances up to {max_distance:,}, "
            f"but training only up to {label_rows[0]['trained_distance']:,}"
        )
    return messages
