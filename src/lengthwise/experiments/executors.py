"""Executors: the places where the jobs of a comparison or a sweep run."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import torch

from lengthwise.core.devices import pick_device
from lengthwise.core.errors import SettingError, WorkerError, unknown_name
from lengthwise.core.interruption import catch_interrupts
from lengthwise.experiments.ray_cluster import RayExecutor, import_ray
from lengthwise.experiments.worker_pool import run_in_processes

Job = TypeVar("Job")
Result = TypeVar("Result")
EXECUTORS = ("local", "ray")
# Number of jobs in a row that may kill their only worker.
MAX_LOSSES = 3


@runtime_checkable
class Executor(Protocol):
    """Place where jobs run, several at the same time. ``threads`` is the number of CPU threads for each job."""

    @property
    def threads(self) -> int:
        """Return the number of CPU threads for each job."""
        ...

    @property
    def workers(self) -> int | None:
        """Return the maximum number of jobs at the same time; None if the place decides."""
        ...

    def run(
        self,
        run_job: Callable[[Job, Callable[[], bool]], Result | None],
        jobs: Sequence[Job],
        on_result: Callable[[Job, Result | WorkerError], None],
    ) -> bool:
        """Run jobs and pass each result to ``on_result``; return False if a signal stopped them.

        ``run_job`` receives a job and a function that returns True after a signal; it must then return None. If the
        worker of a job dies again and again, ``on_result`` receives a ``WorkerError`` instead of a result.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalExecutor:
    """Executor that runs jobs in processes on this machine; a single worker uses this process."""

    workers: int
    threads: int

    def run(
        self,
        run_job: Callable[[Job, Callable[[], bool]], Result | None],
        jobs: Sequence[Job],
        on_result: Callable[[Job, Result | WorkerError], None],
    ) -> bool:
        """Run jobs; see ``Executor.run``.

        After the loss of a worker process, unfinished jobs start again in new processes. If no job had finished, those
        that were running start one at a time. Raises ``WorkerError`` once ``MAX_LOSSES`` such jobs in a row, or all
        jobs that are left, have killed their worker.
        """
        if self.workers == 1:
            return _run_serially(run_job, jobs, on_result)
        waiting, num_suspects, num_losses = list(jobs), 0, 0

        def record_result(job: Job, result: Result) -> None:
            nonlocal num_losses
            waiting.remove(job)
            num_losses = 0
            on_result(job, result)

        while waiting:
            # The suspects are the first jobs; one of them was in the lost worker.
            batch, workers = (waiting[:num_suspects], 1) if num_suspects else (waiting, self.workers)
            num_waiting = len(waiting)
            try:
                if not run_in_processes(partial(_run_in_worker, run_job), tuple(batch), workers, record_result):
                    return False
                num_suspects = 0
            except WorkerError:
                num_finished = num_waiting - len(waiting)
                if not num_suspects and not num_finished:
                    num_suspects = self.workers
                    continue
                num_losses += bool(num_suspects)
                if waiting and num_losses >= min(MAX_LOSSES, len(waiting)):
                    raise
                num_suspects = max(0, num_suspects - num_finished - 1)
                # A job that may kill its worker again starts last.
                waiting[:] = waiting[workers:] + waiting[:workers]
        return True


def select_executor(
    name: str, *, address: str | None, workers: int | None, num_jobs: int, device: str, folder: Path
) -> Executor:
    """Return the executor with this name, for a number of jobs that write into ``folder``.

    ``local`` has one worker per core by default, or one on a GPU. ``ray`` uses the cluster at ``address``, or else a
    new cluster on this machine; ``workers`` is None for all its CPUs. Raises ``SettingError`` if ray is not installed.
    """
    if name not in EXECUTORS:
        raise unknown_name("executor", name, EXECUTORS)
    if workers is not None and workers < 1:
        raise SettingError(f"invalid number of workers {workers}; use at least 1")
    if name == "ray":
        import_ray()
        return RayExecutor(address=address, workers=workers, num_gpus=int(device == "cuda"), folder=folder.absolute())
    if address is not None:
        raise SettingError(
            f"address '{address}' needs the executor 'ray'; use executor 'ray', or leave out the address"
        )
    num_cores = 1 if pick_device(device).type == "cuda" else os.cpu_count() or 1
    num_workers = max(1, min(num_cores if workers is None else workers, num_jobs))
    # OMP_NUM_THREADS can set a smaller number of threads.
    return LocalExecutor(workers=num_workers, threads=max(1, min(num_cores // num_workers, torch.get_num_threads())))


def _run_serially(
    run_job: Callable[[Job, Callable[[], bool]], Result | None],
    jobs: Sequence[Job],
    on_result: Callable[[Job, Result | WorkerError], None],
) -> bool:
    num_threads = torch.get_num_threads()
    try:
        with catch_interrupts() as should_stop:
            for job in jobs:
                result = None if should_stop() else run_job(job, should_stop)
                if result is None:
                    return False
                on_result(job, result)
    finally:
        torch.set_num_threads(num_threads)
    return True


def _run_in_worker(run_job: Callable[[Job, Callable[[], bool]], Result | None], job: Job) -> Result | None:
    with catch_interrupts() as should_stop:
        return run_job(job, should_stop)
