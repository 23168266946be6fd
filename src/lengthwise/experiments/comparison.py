"""Compare: train and evaluate several experiments for several seeds, side by side on the machine's cores."""

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
from lengthwise.evaluation.evaluator import HELD_OUT, check_row, evaluator_of, seen_lengths
from lengthwise.evaluation.exact_match import compares_distances
from lengthwise.evaluation.tables_and_figures import label_of, outcome
from lengthwise.experiments.experiment import Experiment, build_decoder, to_dict
from lengthwise.experiments.run import iter_result_rows, train
from lengthwise.experiments.run_folder import (
    COMPARISON_FOLDER,
    RESULTS,
    append_rows,
    claim_folder,
    read_sealed,
    run_folder,
    seal_rows,
    slug,
    write_rows,
)
from lengthwise.experiments.validation import check_evaluation, prepare_training
from lengthwise.experiments.worker_pool import refuse_in_a_workers_import, run_in_processes
from lengthwise.tasks import task_facts

COMPARED = "compared.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows of all runs; ``warnings`` tell which used ID distances that training never showed, and which diverged.

    ``diverged`` has the ``row``, ``task``, ``seed`` and ``reason`` of each run that has no results for that reason.
    """

    folder: Path
    rows: list[dict[str, Any]]
    diverged: list[dict[str, Any]]
    warnings: list[str]
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """One experiment with one seed, to be run in a process of its own."""

    label: str
    experiment: Experiment
    folder: Path
    device: str
    threads: int

    def __str__(self) -> str:
        return f"{self.label}, seed {self.experiment.seed}"

    def row_label(self, variant: str | None) -> str:
        """What the rows of one distribution are called."""
        return self.label if variant is None else f"{self.label}, {variant}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """What a job ended with: rows, or the reason why there are none."""

    rows: list[dict[str, Any]]
    diverged: str | None = None


@check_arguments
def compare(  # noqa: PLR0913  (a setting of the call each)
    experiments: Mapping[str, Experiment],
    out: StrPath,
    *,
    num_seeds: int = 1,
    jobs: int | None = None,
    device: str = "auto",
    only: Collection[str] | None = None,
    report: Callable[[str], None] | None = None,
) -> Comparison:
    """Run every experiment with seeds counted from its own; what an earlier call finished is not run again.

    ``jobs`` processes share the cores (all of them by default; one job runs in this process). Interrupted, it
    returns what is finished; the same call goes on from there. ``only`` these labels are run now (None: all), and the
    rows of the others are those that earlier calls finished. ``RunFolderError`` for a folder that holds anything else,
    or into which another process compares.
    """
    refuse_in_a_workers_import()
    if num_seeds < 1:
        raise SettingError(f"{num_seeds} seeds run nothing; use at least 1")
    if jobs is not None and jobs < 1:
        raise SettingError(f"{jobs} jobs run nothing; use at least 1")
    out = Path(out)
    chosen = experiments if only is None else only
    check_experiments(experiments, chosen)
    cores = 1 if pick_device(device).type == "cuda" else os.cpu_count() or 1
    whole = [
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
    todo = [job for job in whole if job.label in chosen]
    workers = min(jobs if jobs is not None else cores, len(todo))
    todo = [replace(job, threads=max(1, cores // workers)) for job in todo]
    with exclusive_lock(out):
        asked = {"experiments": {label: to_dict(row) for label, row in experiments.items()}, "num_seeds": num_seeds}
        claim_folder(out, COMPARISON_FOLDER, asked, resume=True)
        done = _run_here(todo, report) if workers == 1 else _run_apart(todo, workers, report)
        return _outcome(out, experiments, whole, done, len(done) == len(todo))


def _outcome(
    out: Path, experiments: Mapping[str, Experiment], whole: list[_Job], done: dict[Path, _Cell], finished: bool
) -> Comparison:
    """The rows of what was run now or earlier, kept in the folder's ``results.jsonl``."""
    done |= {job.folder: cell for job in whole if job.folder not in done and (cell := _compared(job)) is not None}
    rows = [row for job in whole if job.folder in done for row in done[job.folder].rows]
    failed = [(job, why) for job in whole if job.folder in done and (why := done[job.folder].diverged) is not None]
    reasons = [f"{job}: {why}" for job, why in failed]
    if finished and not rows:
        raise DivergedError(f"every row diverged, such as {reasons[0]}")
    comparing = {label for label, each in experiments.items() if compares_distances(build_decoder(each), each.scheme)}
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
        warnings=reasons + _seen(rows) + _untrained(row for row in rows if label_of(row) in comparing),
        finished=finished,
    )


def check_experiments(experiments: Mapping[str, Experiment], chosen: Iterable[str] = ()) -> None:
    """Refuse what could not be trained or measured to the end, and rows that no table can hold together."""
    for label in chosen:
        if label not in experiments:
            raise unknown_name("row", label, experiments)
    folders: dict[str, str] = {}
    for label in experiments:
        other = folders.setdefault(slug(label), label)
        if not slug(label) or other != label:
            raise SettingError(
                f"row {label!r} has no folder name of its own ({f'like {other!r}' if slug(label) else 'no letter'}); "
                "give each row a label with other letters or digits"
            )
    for experiment in experiments.values():
        prepare_training(experiment)
        check_evaluation(experiment, experiment.evaluation)
    if len({evaluator_of(experiment.task).by_loss for experiment in experiments.values()}) > 1:
        raise SettingError("rows graded by loss and rows graded by exact match share no scale; compare them apart")


def _run_here(todo: list[_Job], report: Callable[[str], None] | None) -> dict[Path, _Cell]:
    done: dict[Path, _Cell] = {}
    threads = torch.get_num_threads()
    try:
        with catch_interrupts() as stop:
            for job in todo:
                cell = None if stop() else _cell(job, stop)
                if cell is None:
                    break
                done[job.folder] = cell
                _tell(report, job, cell, len(done), len(todo))
    finally:
        torch.set_num_threads(threads)
    return done


def _run_apart(todo: list[_Job], workers: int, report: Callable[[str], None] | None) -> dict[Path, _Cell]:
    done: dict[Path, _Cell] = {}

    def finish(job: _Job, cell: _Cell) -> None:
        done[job.folder] = cell
        _tell(report, job, cell, len(done), len(todo))

    # The longest budgets first, so that no core idles at the end.
    order = sorted(todo, key=lambda job: -job.experiment.training.steps * job.experiment.decoder.num_layers)
    run_in_processes(_run, order, workers, finish)
    return done


class _Stopped(Exception):  # noqa: N818  (no error)
    """Raised inside an evaluation to leave it after a signal."""


def _tell(report: Callable[[str], None] | None, job: _Job, cell: _Cell, done: int, total: int) -> None:
    if report is None:
        return
    if cell.diverged is not None:
        report(f"[{done}/{total}] {job}: {cell.diverged}")
        return
    last = cell.rows[-1]
    report(f"[{done}/{total}] {job}: {last['steps']} steps in {last['train_s']:.0f} s, {outcome(cell.rows)}")


def _run(job: _Job) -> _Cell | None:
    """A job in a process of its own."""
    with catch_interrupts() as stop:
        return _cell(job, stop)


def _cell(job: _Job, stop: Callable[[], bool]) -> _Cell | None:
    """Train (or go on), evaluate, and answer with rows; None when interrupted."""

    def leave(*progress: int) -> None:
        if stop():
            raise _Stopped

    torch.set_num_threads(job.threads)
    try:
        run = train(job.experiment, job.folder, resume=True, device=job.device, stop=stop)
    except DivergedError as error:
        return _Cell(rows=[], diverged=str(error))
    if run is None or stop():
        return None
    if (known := _compared(job)) is None:
        with warnings.catch_warnings():
            # Told once for the whole comparison, from its rows.
            warnings.simplefilter("ignore", UntrainedDistanceWarning)
            warnings.simplefilter("ignore", TrainingOverlapWarning)
            try:
                # All at once: what is left early is measured again.
                rows = list(iter_result_rows(run, job.experiment.evaluation, report=leave))
            except _Stopped:
                return None
            except DivergedError as error:
                return _Cell(rows=[], diverged=str(error))
        seal_rows(job.folder / COMPARED, rows)
        known = _compared(job)
    append_rows(job.folder / RESULTS, read_sealed(job.folder / COMPARED), once=True)
    return known


def _compared(job: _Job) -> _Cell | None:
    """What an earlier call measured; rows of the run's own results.jsonl may come from other evaluations."""
    rows = read_sealed(job.folder / COMPARED)
    try:
        for row in rows:
            check_row(row, evaluator_of(job.experiment.task))
    except SettingError as error:
        raise RunFolderError(f"{job.folder / COMPARED} has other rows ({error}); delete it to measure again") from None
    return _Cell(rows=[{"row": job.row_label(row["variant"]), **row} for row in rows]) if rows else None


def _seen(rows: list[dict[str, Any]]) -> list[str]:
    seen = seen_lengths(rows)
    return [f"rows of length {seen} were trained on, some or all; {HELD_OUT}, to each run by evaluate"] if seen else []


def _untrained(chosen: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line per experiment whose evaluation, on any variant, used ID distances that no seed's training showed."""
    rows, notes = list(chosen), []
    for label in dict.fromkeys(map(label_of, rows)):
        own = [row for row in rows if label_of(row) == label]
        beyond = [row for row in own if row["largest_distance"] > row["trained_distance"]]
        if beyond:
            lengths = ", ".join(f"{length:,}" for length in sorted({row["length"] for row in beyond}))
            widest = max(row["largest_distance"] for row in beyond)
            notes.append(
                f"{label}: length {lengths} used ID distances that training never showed "
                f"(up to {widest:,}, trained to {beyond[0]['trained_distance']:,})"
            )
    return notes
