"""Sweep over many experiments and seeds; the folder of each run is named by its content."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lengthwise.core.errors import LengthwiseError, RunFolderError, SettingError, WorkerError
from lengthwise.core.files import StrPath, write_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.core.type_checks import check_arguments
from lengthwise.experiments.comparison import Comparison, check_settings_of_all, starting_order, summarize
from lengthwise.experiments.executors import select_executor
from lengthwise.experiments.experiment import Experiment, to_dict
from lengthwise.experiments.folder_names import content_folder_name
from lengthwise.experiments.jobs import Job, JobResult, run_job, saved_result
from lengthwise.experiments.run_folder import PLANNED_RUNS, RESULTS, SWEEP_FOLDER, claim_folder, write_rows
from lengthwise.experiments.sweep_file import SweepFile, check_seeds, read_sweep_file
from lengthwise.experiments.trackers import check_trackers
from lengthwise.experiments.worker_pool import reject_import_in_worker
from lengthwise.training.launch import reject_several_processes

# Version of the layout of a sweep folder.
LAYOUT = {"layout": 1}


@check_arguments
def sweep(
    experiments: Mapping[str, Experiment] | StrPath,
    out: StrPath,
    *,
    seeds: int | Sequence[int] | None = None,
    executor: str = "local",
    address: str | None = None,
    workers: int | None = None,
    device: str = "auto",
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
    check_settings_of_all(source.experiments)
    check_trackers(trackers)
    out = Path(out)
    jobs = _jobs(source, source.seeds if seeds is None else check_seeds(seeds, "the sweep"), out, device)
    pool = select_executor(executor, address=address, workers=workers, num_jobs=len(jobs), device=device, folder=out)
    with exclusive_lock(out):
        claim_folder(out, SWEEP_FOLDER, LAYOUT, resume=True)
        planned_runs = {job.folder.name: to_dict(job.experiment) for job in jobs}
        write_atomically(out / PLANNED_RUNS, json.dumps(planned_runs).encode() + b"\n")
        results = _saved_results(jobs)

        def record_result(job: Job, result: JobResult | WorkerError) -> None:
            results[job.folder] = JobResult(rows=[], failed=str(result)) if isinstance(result, WorkerError) else result
            if report is not None:
                report(len(results), len(jobs), f"{job}: {results[job.folder]}")

        if report is not None:
            report(len(results), len(jobs), "runs are finished")
        pending_jobs = [replace(job, trackers=tuple(trackers)) for job in jobs if job.folder not in results]
        pending_jobs = starting_order(pending_jobs, pool)
        is_complete = not pending_jobs or pool.run(_run_and_catch, pending_jobs, record_result)
        comparison = summarize(out, jobs, results, is_complete=is_complete)
        write_rows(out / RESULTS, comparison.rows)
        return comparison


def _jobs(source: SweepFile, seeds: Sequence[int] | None, out: Path, device: str) -> list[Job]:
    jobs: dict[str, Job] = {}
    for label, experiment in source.experiments.items():
        for seed in (experiment.seed,) if seeds is None else seeds:
            seeded = replace(experiment, seed=seed)
            name = content_folder_name(seeded)
            if name in jobs:
                raise SettingError(f"experiments '{jobs[name].label}' and '{label}' are equal; remove one of them")
            # Worker processes may have another working folder.
            folder = out.absolute() / name
            jobs[name] = Job(label=label, experiment=seeded, folder=folder, device=device, threads=1)
    return list(jobs.values())


def _saved_results(jobs: Sequence[Job]) -> dict[Path, JobResult]:
    results = {}
    for job in jobs:
        try:
            result = saved_result(job)
        except RunFolderError:
            # The job reports this error.
            continue
        if result is not None:
            results[job.folder] = result
    return results


def _run_and_catch(job: Job, should_stop: Callable[[], bool]) -> JobResult | None:
    """Run a job; an error becomes its result, so that it stops no other job."""
    try:
        return run_job(job, should_stop)
    except LengthwiseError as error:
        return JobResult(rows=[], failed=str(error))
    except Exception as error:
        message = " ".join(str(error).split())
        return JobResult(rows=[], failed=f"{type(error).__name__}: {message}")
