"""Compare: train and evaluate several experiments for several seeds, side by side on the machine's cores."""

import json
import multiprocessing
import os
import re
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lengthwise.checkpoint import write_atomically
from lengthwise.errors import RunFolderError, SettingError, UntrainedDistanceWarning
from lengthwise.experiment import Experiment, to_dict
from lengthwise.folder import RESULTS, append_rows, provenance, read_rows
from lengthwise.interruption import interruptible
from lengthwise.run import check, evaluate, pick_device, train

COMPARISON = "comparison.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The rows of all runs; ``warnings`` tell what to keep in mind when reading them."""

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
    rows = [row for answer in order.values() if answer is not None for row in answer[0]]
    notes = [note for answer in order.values() if answer is not None for note in answer[1]]
    (out / RESULTS).unlink(missing_ok=True)
    append_rows(out / RESULTS, rows)
    return Comparison(
        folder=out,
        rows=rows,
        warnings=list(dict.fromkeys(notes)),
        finished=all(answer is not None for answer in order.values()),
    )


Answer = tuple[list[dict[str, Any]], list[str]]


def _run_here(todo: list[_Job], report: Callable[[str], None] | None) -> dict[Path, Answer]:
    done = {}
    for job in todo:
        answer = _run(job)
        if answer is None:
            break
        done[job.folder] = answer
        _tell(report, job, answer, len(done), len(todo))
    return done


def _run_apart(todo: list[_Job], workers: int, report: Callable[[str], None] | None) -> dict[Path, Answer]:
    done: dict[Path, Answer] = {}
    # The longest budgets first, so that no core idles at the end; a fresh interpreter per worker keeps torch sane.
    todo = sorted(todo, key=lambda job: -job.experiment.training.steps * job.experiment.decoder.num_layers)
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool, interruptible() as stop:
        futures: dict[Future[Answer | None], _Job] = {pool.submit(_run, job): job for job in todo}
        pending = set(futures)
        while pending and not stop():
            finished, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
            for future in finished:
                answer = future.result()
                if answer is not None:
                    done[futures[future].folder] = answer
                    _tell(report, futures[future], answer, len(done), len(todo))
        if pending:
            # A signal that came to this process alone: the workers save and leave.
            for worker in multiprocessing.active_children():
                worker.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
    return done


def _tell(report: Callable[[str], None] | None, job: _Job, answer: Answer, done: int, total: int) -> None:
    if report is not None:
        last = answer[0][-1]
        report(
            f"[{done}/{total}] {job.label}, seed {job.experiment.seed}: {last['steps']} steps in "
            f"{last['train_seconds']:.0f} s, exact match {last['fitted']:.2f} at length {last['train_lengths'][1]}"
        )


def _run(job: _Job) -> Answer | None:
    """Train (or go on), evaluate, and answer with rows and warnings; None when interrupted."""
    torch.set_num_threads(job.threads)
    with interruptible() as stop:
        run = train(job.experiment, job.folder, resume=True, device=job.device, stop=stop)
        if run is None or stop():
            return None
        rows = read_rows(job.folder / RESULTS)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UntrainedDistanceWarning)
            if not rows:
                rows = evaluate(run, job.experiment.evaluation)
    notes = [f"{job.label}: {warning.message}" for warning in caught]
    labels = [job.label if row["variant"] is None else f"{job.label}, {row['variant']}" for row in rows]
    return [{"row": label, **row} for label, row in zip(labels, rows, strict=True)], notes


def _claim(out: Path, experiments: Mapping[str, Experiment], num_seeds: int) -> None:
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{out} is a file, a comparison needs a folder; choose another --out")
    tree = {
        "experiments": {label: to_dict(experiment) for label, experiment in experiments.items()},
        "num_seeds": num_seeds,
    }
    path = out / COMPARISON
    if path.exists():
        if json.loads(path.read_text()).get("comparison") != tree:
            raise RunFolderError(f"{out} holds another comparison than the one asked for; choose another --out")
        return
    if (out / "experiment.json").exists():
        raise RunFolderError(f"{out} holds a run already; choose another --out for the comparison")
    write_atomically(path, json.dumps({"comparison": tree, "provenance": provenance()}, indent=2).encode())


def _slug(label: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")
