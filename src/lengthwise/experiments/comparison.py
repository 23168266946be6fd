"""Comparison of experiments: training and evaluation with several seeds, in parallel on the cores."""

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
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
from lengthwise.evaluation.tables_and_figures import label_of, outcome
from lengthwise.experiments.experiment import Experiment, build_decoder, to_dict
from lengthwise.experiments.run import iter_result_rows, train
from lengthwise.experiments.run_folder import (
    COMPARISON_FOLDER,
    RESULTS,
    append_rows,
    claim_folder,
    read_rows_with_digest,
    run_folder,
    slug,
    write_rows,
    write_rows_with_digest,
)
from lengthwise.experiments.validation import check_evaluation, prepare_training
from lengthwise.experiments.worker_pool import reject_import_in_worker, run_in_processes
from lengthwise.tasks import task_facts

COMPARISON_ROWS = "compared.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result rows of all runs, with warnings about diverged runs, untrained ID distances and leaked test records.

    ``diverged`` has the ``row`` (label), ``task``, ``seed`` and ``reason`` of each diverged run, which has no results.
    ``finished`` is False after an interruption.
    """

    folder: Path
    rows: list[dict[str, Any]]
    diverged: list[dict[str, Any]]
    warnings: list[str]
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Experiment with one seed, and the device and number of threads for it."""

    label: str
    experiment: Experiment
    folder: Path
    device: str
    threads: int

    def __str__(self) -> str:
        return f"{self.label}, seed {self.experiment.seed}"

    def row_label(self, variant: str | None) -> str:
        """Return the label of the rows of one variant."""
        return self.label if variant is None else f"{self.label}, {variant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """Result of a job: rows, or the reason for divergence."""

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
    report: Callable[[str], None] | None = None,
) -> Comparison:
    """Train and evaluate every experiment with ``num_seeds`` seeds, starting at its own seed.

    Finished runs are not repeated: after an interruption, repeat the call to continue. ``jobs`` processes share the
    cores (default: one per core; with one job, runs use this process). ``only`` restricts training to some labels;
    results of other labels come from earlier calls. Raises ``RunFolderError`` if the folder contains anything else, or
    if another process uses it.
    """
    reject_import_in_worker()
    if num_seeds < 1:
        raise SettingError(f"invalid num_seeds {num_seeds}; use at least 1")
    if jobs is not None and jobs < 1:
        raise SettingError(f"invalid jobs {jobs}; use at least 1")
    out = Path(out)
    labels = experiments if only is None else only
    check_experiments(experiments, labels)
    cores = 1 if pick_device(device).type == "cuda" else os.cpu_count() or 1
    all_jobs = [
        _Job(
            label=label,
            experiment=replace(experiment, seed=experiment.seed + seed),
            folder=run_folder(out, label, experiment.seed + seed),
            device=device,
            threads=0,
        )
        for label, experiment in experiments.items()
        for seed in range(num_seeds)
    ]
    todo = [job for job in all_jobs if job.label in labels]
    workers = min(jobs if jobs is not None else cores, len(todo))
    todo = [replace(job, threads=max(1, cores // workers)) for job in todo]
    done: dict[Path, _Result] = {}

    def finish(job: _Job, result: _Result) -> None:
        done[job.folder] = result
        if report is not None:
            report(f"[{len(done)}/{len(todo)}] {job}: {_describe(result)}")

    with exclusive_lock(out):
        settings = {label: to_dict(experiment) for label, experiment in experiments.items()}
        claim_folder(out, COMPARISON_FOLDER, {"experiments": settings, "num_seeds": num_seeds}, resume=True)
        if workers == 1:
            _run_serially(todo, finish)
        else:
            # Longest jobs first, so that no core is idle at the end.
            todo.sort(key=lambda job: -job.experiment.training.steps * job.experiment.decoder.num_layers)
            run_in_processes(_run_in_worker, todo, workers, finish)
        return _summarize(out, experiments, all_jobs, done, len(done) == len(todo))


def _summarize(
    out: Path, experiments: Mapping[str, Experiment], jobs: list[_Job], done: dict[Path, _Result], finished: bool
) -> Comparison:
    """Combine the results of this call and of earlier calls, and save the rows in ``results.jsonl``."""
    done |= {job.folder: old for job in jobs if job.folder not in done and (old := _saved_result(job)) is not None}
    rows = [row for job in jobs if job.folder in done for row in done[job.folder].rows]
    failed = [(job, why) for job in jobs if job.folder in done and (why := done[job.folder].diverged) is not None]
    reasons = [f"{job}: {why}" for job, why in failed]
    if finished and not rows:
        raise DivergedError(f"all runs diverged, for example {reasons[0]}")
    with_distances = {
        name for name, each in experiments.items() if depends_on_id_distances(build_decoder(each), each.scheme)
    }
    write_rows(out / RESULTS, rows)
    return Comparison(
        folder=out,
        rows=rows,
        diverged=[
            {
                "row": job.row_label(variant),
                **task_facts(job.experiment.task),
                "seed": job.experiment.seed,
                "reason": why,
            }
            for job, why in failed
            for variant in job.experiment.evaluation.variants or (None,)
        ],
        warnings=reasons + _overlap(rows) + _untrained([row for row in rows if label_of(row) in with_distances]),
        finished=finished,
    )


def check_experiments(experiments: Mapping[str, Experiment], labels: Iterable[str] = ()) -> None:
    """Raise an error for experiments that cannot be trained, evaluated or compared, and for unknown labels."""
    for label in labels:
        if label not in experiments:
            raise unknown_name("row", label, experiments)
    folders: dict[str, str] = {}
    for label in experiments:
        other = folders.setdefault(slug(label), label)
        if not slug(label) or other != label:
            raise SettingError(
                f"label {label!r} gives no unique folder name ({f'like {other!r}' if slug(label) else 'no letters'}); "
                "use labels that differ in letters or digits"
            )
    for experiment in experiments.values():
        prepare_training(experiment)
        check_evaluation(experiment, experiment.evaluation)
    if len({select_evaluator(experiment.task).uses_loss for experiment in experiments.values()}) > 1:
        raise SettingError(
            "tasks graded by loss and tasks graded by exact match have no common scale; compare them separately"
        )


def _run_serially(todo: list[_Job], finish: Callable[[_Job, _Result], None]) -> None:
    threads = torch.get_num_threads()
    try:
        with catch_interrupts() as stop:
            for job in todo:
                result = None if stop() else _run(job, stop)
                if result is None:
                    break
                finish(job, result)
    finally:
        torch.set_num_threads(threads)


class _Stopped(Exception):  # noqa: N818  (no error)
    """Exception that stops an evaluation after a signal."""


def _describe(result: _Result) -> str:
    if result.diverged is not None:
        return result.diverged
    last = result.rows[-1]
    return f"{last['steps']} steps in {last['train_s']:.0f} s, {outcome(result.rows)}"


def _run_in_worker(job: _Job) -> _Result | None:
    with catch_interrupts() as stop:
        return _run(job, stop)


def _run(job: _Job, stop: Callable[[], bool]) -> _Result | None:
    """Train or resume, evaluate, and return the rows; None after an interruption."""

    def check_stop(*progress: int) -> None:
        if stop():
            raise _Stopped

    torch.set_num_threads(job.threads)
    try:
        run = train(job.experiment, job.folder, resume=True, device=job.device, stop=stop)
    except DivergedError as error:
        return _Result(rows=[], diverged=str(error))
    if run is None or stop():
        return None
    if (saved := _saved_result(job)) is None:
        with warnings.catch_warnings():
            # The comparison warns once for all of its rows.
            warnings.simplefilter("ignore", UntrainedDistanceWarning)
            warnings.simplefilter("ignore", TrainingOverlapWarning)
            try:
                # All rows or none: an interrupted evaluation starts again.
                rows = list(iter_result_rows(run, job.experiment.evaluation, report=check_stop))
            except _Stopped:
                return None
            except DivergedError as error:
                return _Result(rows=[], diverged=str(error))
        write_rows_with_digest(job.folder / COMPARISON_ROWS, rows)
        saved = _saved_result(job)
    append_rows(job.folder / RESULTS, read_rows_with_digest(job.folder / COMPARISON_ROWS), skip_existing=True)
    return saved


def _saved_result(job: _Job) -> _Result | None:
    """Return the rows of an earlier call; the run's ``results.jsonl`` may also have rows of other evaluations."""
    rows = read_rows_with_digest(job.folder / COMPARISON_ROWS)
    try:
        for row in rows:
            check_row(row, select_evaluator(job.experiment.task))
    except SettingError as error:
        raise RunFolderError(
            f"{job.folder / COMPARISON_ROWS} has invalid rows ({error}); delete it to measure again"
        ) from None
    return _Result(rows=[{"row": job.row_label(row["variant"]), **row} for row in rows]) if rows else None


def _overlap(rows: list[dict[str, Any]]) -> list[str]:
    lengths = overlapping_lengths(rows)
    text = f"some or all records of length {lengths} were in the training data; {HELD_OUT_ADVICE} and evaluate each run"
    return [text] if lengths else []


def _untrained(rows: list[dict[str, Any]]) -> list[str]:
    """Return one line for each experiment evaluated at larger ID distances than in training with any seed."""
    notes = []
    for label in dict.fromkeys(map(label_of, rows)):
        beyond = [row for row in rows if label_of(row) == label and row["largest_distance"] > row["trained_distance"]]
        if beyond:
            lengths = ", ".join(f"{length:,}" for length in sorted({row["length"] for row in beyond}))
            largest = max(row["largest_distance"] for row in beyond)
            notes.append(
                f"{label}: length {lengths} used ID distances up to {largest:,}, "
                f"but training only up to {beyond[0]['trained_distance']:,}"
            )
    return notes
