"""Compare: train and evaluate several experiments for several seeds, side by side on the machine's cores."""

import json
import multiprocessing
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from lengthwise.checkpoint import write_atomically
from lengthwise.errors import RunFolderError, SettingError, UntrainedDistanceWarning
from lengthwise.evaluation import check_lengths
from lengthwise.experiment import Experiment, to_dict
from lengthwise.folder import COMPARISON, RESULTS, append_rows, provenance, read_rows
from lengthwise.interruption import interruptible
from lengthwise.run import check, evaluate, pick_device, train

COMPARED = "compared.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows of all runs; ``warnings`` tell which rows used ID distances that training never showed."""

    folder: Path
    rows: list[dict[str, Any]]
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


def compare(
    experiments: Mapping[str, Experiment],
    out: Path,
    *,
    num_seeds: int = 1,
    jobs: int | None = None,
    device: str = "auto",
    report: Callable[[str], None] | None = None,
) -> Comparison:
    """Run every experiment with seeds counted from its own; what an earlier call finished is not run again.

    ``jobs`` processes share the cores (all of them by default; one job runs in this process). Interrupted, it
    returns what is finished; the same call goes on from there.
    """
    if num_seeds < 1:
        raise SettingError(f"{num_seeds} seeds run nothing; use at least 1")
    if jobs is not None and jobs < 1:
        raise SettingError(f"{jobs} jobs run nothing; use at least 1")
    for experiment in experiments.values():
        check(experiment)
        check_lengths(experiment.task, experiment.scheme, experiment.encoding, experiment.evaluation)
    cores = 1 if pick_device(device).type == "cuda" else os.cpu_count() or 1
    todo = [
        _Job(
            label=label,
            experiment=replace(experiment, seed=experiment.seed + seed),
            folder=out / _slug(label) / f"seed-{experiment.seed + seed}",
            device=device,
            threads=0,
        )
        for label, experiment in experiments.items()
        for seed in range(num_seeds)
    ]
    workers = min(jobs if jobs is not None else cores, len(todo))
    todo = [replace(job, threads=max(1, cores // workers)) for job in todo]
    _claim(out, experiments, num_seeds)
    done = _run_here(todo, report) if workers == 1 else _run_apart(todo, workers, report)
    order = {(job.label, job.experiment.seed): done.get(job.folder) for job in todo}
    rows = [row for answer in order.values() if answer is not None for row in answer]
    # These keep to the range of their training, whatever the widest draw was.
    drawn = {each.scheme.name for each in experiments.values() if each.scheme.draws_at_evaluation}
    (out / RESULTS).unlink(missing_ok=True)
    append_rows(out / RESULTS, rows)
    return Comparison(
        folder=out,
        rows=rows,
        warnings=_untrained(row for row in rows if row["scheme"] not in drawn),
        finished=all(answer is not None for answer in order.values()),
    )


Answer = list[dict[str, Any]]


def _run_here(todo: list[_Job], report: Callable[[str], None] | None) -> dict[Path, Answer]:
    done = {}
    threads = torch.get_num_threads()
    try:
        for job in todo:
            answer = _run(job)
            if answer is None:
                break
            done[job.folder] = answer
            _tell(report, job, answer, len(done), len(todo))
    finally:
        torch.set_num_threads(threads)
    return done


def _run_apart(todo: list[_Job], workers: int, report: Callable[[str], None] | None) -> dict[Path, Answer]:
    done: dict[Path, Answer] = {}
    # The longest budgets first, so that no core idles at the end; a fresh interpreter per worker keeps torch sane.
    todo = sorted(todo, key=lambda job: -job.experiment.training.steps * job.experiment.decoder.num_layers)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, _wait_quietly) as pool, interruptible() as stop, suppress(_Stopped):
        # No more than the workers hold: a pool does not take back what waits in its queue.
        waiting = iter(todo)
        running: dict[Future[Answer | None], _Job] = {pool.submit(_run, job): job for job in islice(waiting, workers)}
        while running:
            for future in _finished(running, stop):
                job, answer = running.pop(future), future.result()
                if answer is None:
                    raise _Stopped
                done[job.folder] = answer
                _tell(report, job, answer, len(done), len(todo))
                running |= {pool.submit(_run, following): following for following in islice(waiting, 1)}
    return done


class _Stopped(Exception):  # noqa: N818  (no error)
    """A signal came: what runs is saved, nothing more is begun."""


def _finished(running: Iterable[Future[Answer | None]], stop: Callable[[], bool]) -> Iterable[Future[Answer | None]]:
    """The jobs that have ended by now; on a signal, the workers are asked to save, and it is over."""
    ended = wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done
    if stop():
        # The signal may have come to this process alone.
        for worker in multiprocessing.active_children():
            worker.terminate()
        raise _Stopped
    return ended


def _wait_quietly() -> None:
    """Between jobs a worker ignores signals: one that died holding the queue would leave the others waiting."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _tell(report: Callable[[str], None] | None, job: _Job, answer: Answer, done: int, total: int) -> None:
    if report is not None:
        last = answer[-1]
        report(
            f"[{done}/{total}] {job.label}, seed {job.experiment.seed}: {last['steps']} steps in "
            f"{last['train_seconds']:.0f} s, exact match {last['fitted']:.2f} at length {last['train_lengths'][1]}"
        )


def _run(job: _Job) -> Answer | None:
    """Train (or go on), evaluate, and answer with rows; None when interrupted."""
    torch.set_num_threads(job.threads)
    with interruptible() as stop:
        run = train(job.experiment, job.folder, resume=True, device=job.device, stop=stop)
        if run is None or stop():
            return None
        # Rows of the run's own results.jsonl may come from other evaluations.
        rows = read_rows(job.folder / COMPARED)
        if not rows:
            with warnings.catch_warnings():
                # Told once for the whole comparison, from its rows.
                warnings.simplefilter("ignore", UntrainedDistanceWarning)
                rows = evaluate(run, job.experiment.evaluation)
            append_rows(job.folder / COMPARED, rows)
    labels = [job.label if row["variant"] is None else f"{job.label}, {row['variant']}" for row in rows]
    return [{"row": label, **row} for label, row in zip(labels, rows, strict=True)]


def _untrained(chosen: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line per row label whose evaluation used ID distances that no seed's training showed."""
    rows, notes = list(chosen), []
    for label in dict.fromkeys(row["row"] for row in rows):
        beyond = [row for row in rows if row["row"] == label and row["largest_distance"] > row["trained_distance"]]
        if beyond:
            lengths = ", ".join(f"{length:,}" for length in sorted({row["length"] for row in beyond}))
            widest = max(row["largest_distance"] for row in beyond)
            notes.append(
                f"{label}: length {lengths} used ID distances that training never showed "
                f"(up to {widest:,}, trained to {beyond[0]['trained_distance']:,})"
            )
    return notes


def _claim(out: Path, experiments: Mapping[str, Experiment], num_seeds: int) -> None:
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out} is a file, a comparison needs a folder; choose another --out")
    tree = {
        "experiments": {label: to_dict(experiment) for label, experiment in experiments.items()},
        "num_seeds": num_seeds,
    }
    path = out / COMPARISON
    if path.exists():
        if _read(path) != tree:
            raise RunFolderError(f"{out} holds another comparison than the one asked for; choose another --out")
        return
    if (out / "experiment.json").exists():
        raise RunFolderError(f"{out} holds a run already; choose another --out for the comparison")
    write_atomically(path, json.dumps({"comparison": tree, "provenance": provenance()}, indent=2).encode())


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())["comparison"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read ({error!r}); choose another --out") from None


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
