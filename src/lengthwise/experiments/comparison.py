"""Comparison of experiments: training and evaluation with several seeds, in parallel processes."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lengthwise.core.errors import DivergedError, SettingError, WorkerError, unknown_name
from lengthwise.core.files import StrPath
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.type_checks import check_arguments
from lengthwise.evaluation.evaluator import HELD_OUT_ADVICE, overlapping_lengths, select_evaluator
from lengthwise.evaluation.exact_match import depends_on_id_distances
from lengthwise.evaluation.result_rows import is_skipped, label_of
from lengthwise.experiments.executors import Executor, select_executor
from lengthwise.experiments.experiment import Experiment, build_decoder, to_dict
from lengthwise.experiments.folder_names import run_folder, to_folder_name
from lengthwise.experiments.jobs import Job, JobResult, run_job, saved_result
from lengthwise.experiments.progress_reports import AUTO, line_report
from lengthwise.experiments.recipes.fitted_encodings import describe_settings
from lengthwise.experiments.run_folder import COMPARISON_FOLDER, RESULTS, claim_folder, write_rows
from lengthwise.experiments.trackers import check_trackers
from lengthwise.experiments.validation import check_evaluation, prepare_training
from lengthwise.experiments.worker_pool import reject_import_in_worker
from lengthwise.training.launch import reject_several_processes


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


@check_arguments
def compare(
    experiments: Mapping[str, Experiment],
    out: StrPath,
    *,
    num_seeds: int = 1,
    jobs: int | None = None,
    device: str = "auto",
    only: Collection[str] | None = None,
    executor: str = "local",
    address: str | None = None,
    report: Callable[[str], None] | str | None = AUTO,
    trackers: Sequence[str] = (),
) -> Comparison:
    """Train and evaluate every experiment with ``num_seeds`` seeds, starting at the seed of the experiment.

    Repeat the call to continue after an interruption; complete runs are not repeated. ``jobs`` is the number of
    parallel processes (default: one per core); a single job uses this process. ``only`` contains the labels to train
    (default: all); results of other labels come from earlier calls. ``executor`` is ``local``, or ``ray`` for the
    cluster at ``address`` (see ``sweep``). ``report`` receives a line per finished run, and first a line per baseline
    about its settings; by default, the lines are
    visible in terminals and notebooks. ``trackers`` receive the metrics of each run (``train``).

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
    all_jobs = [
        Job(label=label, experiment=each, folder=run_folder(out, label, each.seed), device=device, threads=0)
        for label, experiment in experiments.items()
        for each in (replace(experiment, seed=experiment.seed + seed) for seed in range(num_seeds))
    ]
    pending_jobs = [job for job in all_jobs if job.label in labels]
    pool = select_executor(
        executor, address=address, workers=jobs, num_jobs=len(pending_jobs), device=device, folder=out
    )
    pending_jobs = [replace(job, threads=pool.threads, trackers=tuple(trackers)) for job in pending_jobs]
    results: dict[Path, JobResult] = {}

    def record_result(job: Job, result: JobResult | WorkerError) -> None:
        if isinstance(result, WorkerError):
            raise result
        results[job.folder] = result
        if report_line is not None:
            report_line(f"[{len(results)}/{len(pending_jobs)}] {job}: {result}")

    with exclusive_lock(out):
        settings = {label: to_dict(experiment) for label, experiment in experiments.items()}
        claim_folder(out, COMPARISON_FOLDER, {"experiments": settings, "num_seeds": num_seeds}, resume=True)
        _report_settings({label: experiments[label] for label in labels}, report_line)
        is_complete = pool.run(run_job, starting_order(pending_jobs, pool), record_result)
        results |= {
            job.folder: result
            for job in all_jobs
            if job.folder not in results and (result := saved_result(job)) is not None
        }
        comparison = summarize(out, all_jobs, results, is_complete=is_complete)
        if is_complete and not comparison.rows:
            raise DivergedError(f"all runs diverged, for example {comparison.warnings[0]}")
        write_rows(out / RESULTS, comparison.rows)
        return comparison


def _report_settings(experiments: Mapping[str, Experiment], report_line: Callable[[str], None] | None) -> None:
    """Report where the settings of each baseline come from."""
    for label, experiment in experiments.items():
        if report_line is not None and (text := describe_settings(experiment)) is not None:
            report_line(f"{label}: {text}")


def summarize(out: Path, jobs: Sequence[Job], results: Mapping[Path, JobResult], *, is_complete: bool) -> Comparison:
    """Return the comparison of the jobs that have results, by the folder of their run."""
    job_results = [(job, results[job.folder]) for job in jobs if job.folder in results]
    rows = [row for _, result in job_results for row in result.rows]
    diverged = [(job, result.diverged) for job, result in job_results if result.diverged is not None]
    failed = [(job, result.failed) for job, result in job_results if result.failed is not None]
    experiments = {job.label: job.experiment for job in jobs}
    labels = {name for name, each in experiments.items() if depends_on_id_distances(build_decoder(each), each.scheme)}
    distance_rows = [row for row in rows if label_of(row) in labels]
    messages = [f"{job}: {reason}" for job, reason in (*diverged, *failed)]
    return Comparison(
        folder=out,
        rows=rows,
        diverged=[row for job, reason in diverged for row in job.rows_without_results(reason)],
        failed=[row for job, reason in failed for row in job.rows_without_results(reason)],
        warnings=messages + _overlap_warnings(rows) + _distance_warnings(distance_rows),
        is_complete=is_complete,
    )


def starting_order(jobs: Sequence[Job], pool: Executor) -> list[Job]:
    """Return the jobs with the longest first if several run at the same time, so that no worker is idle at the end."""

    def num_operations(job: Job) -> int:
        """Return the number of operations of the training, up to a constant factor."""
        experiment = job.experiment
        training, decoder = experiment.training, experiment.decoder
        num_symbols = training.steps * training.batch_size * experiment.train_lengths[1]
        return num_symbols * decoder.num_passes * decoder.d_model**2

    return list(jobs) if pool.workers == 1 else sorted(jobs, key=num_operations, reverse=True)


def check_experiments(experiments: Mapping[str, Experiment], labels: Collection[str]) -> None:
    """Raise an error for experiments that cannot be trained, evaluated or compared, and for unknown labels."""
    if not labels:
        raise SettingError("the dict experiments or the list only is empty; pass at least one experiment")
    for label in labels:
        if label not in experiments:
            raise unknown_name("row", label, experiments)
    _check_folder_names(experiments)
    check_settings_of_all(experiments)


def _check_folder_names(labels: Iterable[str]) -> None:
    folders: dict[str, str] = {}
    for label in labels:
        first_label = folders.setdefault(to_folder_name(label), label)
        if not to_folder_name(label) or first_label != label:
            reason = f"equals the folder name of {first_label!r}" if to_folder_name(label) else "is empty"
            advice = "use labels that differ in letters or digits"
            raise SettingError(f"invalid label {label!r}: its folder name {reason}; {advice}")


def check_settings_of_all(experiments: Mapping[str, Experiment]) -> None:
    """Raise an error for experiments that cannot be trained or evaluated, or whose results cannot be in one table."""
    for experiment in experiments.values():
        prepare_training(experiment)
        check_evaluation(experiment, experiment.evaluation)
    if len({select_evaluator(experiment.task).uses_loss for experiment in experiments.values()}) > 1:
        raise SettingError(
            "tasks graded by loss cannot be compared with tasks graded by exact match; make two separate comparisons"
        )


def _overlap_warnings(rows: list[dict[str, Any]]) -> list[str]:
    lengths, advice = overlapping_lengths(rows), f"{HELD_OUT_ADVICE} and evaluate each run"
    warning = f"some or all records of length {lengths} were in the training data; {advice}"
    return [warning] if lengths else []


def _distance_warnings(rows: list[dict[str, Any]]) -> list[str]:
    """Return a warning for each label with a test ID distance beyond the training maximum of its run."""
    measured_rows = [row for row in rows if not is_skipped(row)]
    rows_beyond_trained_distance = [row for row in measured_rows if row["largest_distance"] > row["trained_distance"]]
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
