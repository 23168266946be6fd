"""Executors: places where jobs run at the same time, which are processes on this machine or a cluster of ray.

A job is any value, and ``run_job`` receives it together with a function that returns True after a signal; ``run_job``
must then return None. A job finds its state in its folder, so an executor may start it again anywhere.
"""

import logging
import multiprocessing
import os
import platform
import signal
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from lengthwise.core.devices import limit_cpu_threads, pick_device
from lengthwise.core.errors import RunFolderError, SettingError, WorkerError, unknown_name_error
from lengthwise.core.files import write_atomically
from lengthwise.core.interruption import catch_interrupts

RunJob = Callable[[Any, Callable[[], bool]], Any]
EXECUTORS = ("local", "ray")
# Number of jobs in a row that may kill their only worker.
MAX_LOSSES = 3
# Number of times that ray repeats a job after the loss of its worker or node.
MAX_RETRIES = 5
# Memory for objects in a new cluster, in bytes; jobs and results are small.
OBJECT_STORE_BYTES = 100 * 2**20
SHARED_FILE_PREFIX = ".shared-"
# Seconds between two checks for Ctrl-C, and seconds that a stopped job of ray has to save its state.
WAIT_S, STOP_S = 0.5, 60
MAIN_GUARD_ADVICE = 'put the call under `if __name__ == "__main__":` in your script, or use workers=1'


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalExecutor:
    """Executor that runs jobs in processes on this machine; a single worker uses this process.

    ``threads`` is the number of CPU threads for each job.
    """

    workers: int
    threads: int

    def run(self, run_job: RunJob, jobs: Sequence[Any], on_result: Callable[[Any, Any], None]) -> bool:
        """Run jobs and pass each job with its result to ``on_result``; return False if a signal stopped them.

        After the loss of a worker process, unfinished jobs start again in new processes. If no job had finished, those
        that were running start one at a time. Raises ``WorkerError`` once ``MAX_LOSSES`` such jobs in a row, or all
        jobs that are left, have killed their worker.
        """
        if self.workers == 1:
            with limit_cpu_threads(torch.get_num_threads()), catch_interrupts() as should_stop:
                for job in jobs:
                    result = None if should_stop() else run_job(job, should_stop)
                    if result is None:
                        return False
                    on_result(job, result)
            return True
        waiting, num_suspects, num_losses = list(jobs), 0, 0

        def record_result(job: Any, result: Any) -> None:
            nonlocal num_losses
            waiting.remove(job)
            num_losses = 0
            on_result(job, result)

        while waiting:
            # The suspects are the first jobs; one of them was in the lost worker.
            batch, workers = (waiting[:num_suspects], 1) if num_suspects else (waiting, self.workers)
            num_waiting = len(waiting)
            try:
                if not run_in_processes(partial(_run_until_signal, run_job), tuple(batch), workers, record_result):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RayExecutor:
    """Executor that runs each job as a remote task with one CPU thread and, for ``num_gpus=1``, one GPU.

    ``address`` is the address of a cluster (None: a new one on this machine). All nodes must see ``folder`` under this
    path. At most ``workers`` jobs run at the same time (None: as many as the cluster has CPUs or GPUs).
    """

    address: str | None
    workers: int | None
    num_gpus: int
    folder: Path
    threads: int = 1

    def run(self, run_job: RunJob, jobs: Sequence[Any], on_result: Callable[[Any, Any], None]) -> bool:
        """Run jobs and pass each job with its result to ``on_result``; return False if a signal stopped them.

        A job whose worker or node is lost starts again elsewhere; after ``MAX_RETRIES`` such losses, its result is a
        ``WorkerError``. Raises ``WorkerError`` if the cluster cannot be reached, and ``RunFolderError`` if a node does
        not see ``folder``.
        """
        ray = import_ray()
        with _connection(ray, self.address), _shared_file(self.folder) as shared_file:
            _check_nodes(ray, shared_file)
            # Only a lost worker or node is repeated; an exception of the job is its result.
            # The import path without the Python installation; it can contain the folder of a sweep file.
            folders = [path for path in sys.path if path and not path.startswith((sys.prefix, sys.base_prefix))]
            environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(folders)}}
            resources = {"num_cpus": self.threads, "num_gpus": self.num_gpus, "runtime_env": environment}
            task = ray.remote(max_retries=MAX_RETRIES, **resources)(_run_on_node)
            queue, running = iter(jobs), {}

            def submit(next_jobs: Iterable[Any]) -> None:
                running.update({task.remote(run_job, job, shared_file): job for job in next_jobs})

            with catch_interrupts() as was_interrupted:
                try:
                    submit(islice(queue, self.workers))
                    while running and not was_interrupted():
                        for reference in ray.wait(list(running), timeout=WAIT_S)[0]:
                            job, result = running.pop(reference), _result_of(ray, reference)
                            if result is not None:
                                on_result(job, result)
                            # A signal can stop a worker without a result, for example because its node shuts down.
                            submit([job] if result is None else islice(queue, 1))
                    return not running
                finally:
                    for reference in running:
                        ray.cancel(reference)
                    if running:
                        # Stopped jobs save their state.
                        ray.wait(list(running), num_returns=len(running), timeout=STOP_S)


Executor = LocalExecutor | RayExecutor


def select_executor(
    name: str, *, address: str | None, workers: int | None, num_jobs: int, device: str, folder: Path
) -> Executor:
    """Return the executor with this name, for a number of jobs that write into ``folder``.

    ``local`` has one worker per core by default, or one on a GPU. ``ray`` uses the cluster at ``address``, or else a
    new cluster on this machine; ``workers`` is None for all its CPUs. Raises ``SettingError`` if ray is not installed.
    """
    if name not in EXECUTORS:
        raise unknown_name_error("executor", name, EXECUTORS)
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


def run_in_processes(
    run_job: Callable[[Any], Any], jobs: Sequence[Any], workers: int, on_result: Callable[[Any, Any], None]
) -> bool:
    """Run jobs in ``workers`` processes and pass each result to ``on_result``; return False if a signal stopped them.

    ``run_job`` must return None if a signal stopped it. Raises ``WorkerError`` if a worker process dies. The workers
    end when this process ends.
    """
    # torch needs a fresh interpreter per worker.
    spawn_context = multiprocessing.get_context("spawn")
    try:
        with (
            ProcessPoolExecutor(workers, spawn_context, _initialize_worker) as pool,
            catch_interrupts() as was_interrupted,
            _hide_script(jobs),
        ):
            # Submit one job per worker, because a pool cannot cancel queued jobs.
            queue = iter(jobs)
            futures: dict[Future[Any], Any] = {pool.submit(run_job, job): job for job in islice(queue, workers)}
            while futures:
                for future in wait(futures, timeout=WAIT_S, return_when=FIRST_COMPLETED).done:
                    job, result = futures.pop(future), future.result()
                    if result is None:
                        return _stop_workers()
                    on_result(job, result)
                    futures |= {pool.submit(run_job, job): job for job in islice(queue, 1)}
                if was_interrupted():
                    return _stop_workers()
    except BrokenProcessPool:
        raise WorkerError(
            "a worker process died (killed, out of memory, or unable to import the script); finished results are "
            f"saved, so repeat the same call to continue; if it dies again, {MAIN_GUARD_ADVICE}"
        ) from None
    return True


def _stop_workers() -> bool:
    # The signal may have reached only one process.
    for worker in multiprocessing.active_children():
        worker.terminate()
    return False


def reject_import_in_worker() -> None:
    """Exit a worker that reaches this call while it imports a user script without a main guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(f"error: a worker process imported the script and would run it again; {MAIN_GUARD_ADVICE}")


@contextmanager
def _hide_script(jobs: Iterable[Any]) -> Iterator[None]:
    """Start worker processes without importing the user's script, unless a job uses a class from that script.

    A spawned process imports the script of its parent; without a main guard, it would run the script again.
    """
    if any(b"__main__" in bytes(ForkingPickler.dumps(job)) for job in jobs):
        yield
        return
    script_module = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script_module


def _initialize_worker() -> None:
    """Ignore SIGINT and SIGTERM between jobs, because a worker that dies with the queue lock would block the others."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # One line, without the line of source code that Python adds.
    warnings.formatwarning = lambda message, *location, **options: f"warning: {message}\n"
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)


def _end_with_parent() -> None:
    parent_process = multiprocessing.parent_process()
    if parent_process is not None:
        connection.wait([parent_process.sentinel])
        os._exit(1)


def _run_until_signal(run_job: RunJob, job: Any) -> Any:
    with catch_interrupts() as should_stop:
        return run_job(job, should_stop)


def import_ray() -> Any:
    """Return the module ``ray``; raise ``SettingError`` if it is not installed."""
    # Ray otherwise reports usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # noqa: PLC0415
    except ImportError:
        raise SettingError("executor 'ray' needs the ray library; run pip install 'lengthwise[ray]'") from None
    return ray


@contextmanager
def _connection(ray: Any, address: str | None) -> Iterator[None]:
    """Connect to a cluster, unless this process is connected already, and disconnect on exit."""
    if ray.is_initialized():
        yield
        return
    settings = {} if address is not None else {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    try:
        ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **settings)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        place = "a local ray cluster" if address is None else f"the ray cluster at {address}"
        reason = str(error).partition("\n")[0]
        raise WorkerError(f"cannot connect to {place} ({reason}); check the address and the versions of ray") from None
    try:
        yield
    finally:
        ray.shutdown()


def check_workers_see_file(path: Path) -> None:
    """Raise ``RunFolderError`` unless this node reads the file of the driver, whose content is a part of its name."""
    try:
        is_shared = path.read_text(encoding="utf-8") == path.name.removeprefix(SHARED_FILE_PREFIX)
    except OSError:
        is_shared = False
    if not is_shared:
        raise RunFolderError(
            f"node {platform.node()} does not see the files in {path.parent}; choose an --out on a file "
            "system that all nodes share, under the same path"
        )


@contextmanager
def _shared_file(folder: Path) -> Iterator[Path]:
    """Write a file with a random name and content that every node must see, and delete it on exit."""
    for stale_path in folder.glob(f"{SHARED_FILE_PREFIX}*"):
        # A killed driver has left it; only one driver at a time uses the folder.
        stale_path.unlink(missing_ok=True)
    content = uuid.uuid4().hex
    path = folder / f"{SHARED_FILE_PREFIX}{content}"
    write_atomically(path, content.encode())
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _check_nodes(ray: Any, shared_file: Path) -> None:
    """Raise ``RunFolderError`` for the first node that does not see the shared file."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    check = ray.remote(num_cpus=0)(check_workers_see_file)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    placements = [NodeAffinitySchedulingStrategy(node_id=node, soft=True) for node in nodes]
    for reference in [check.options(scheduling_strategy=placement).remote(shared_file) for placement in placements]:
        _result_of(ray, reference)


def _run_on_node(run_job: RunJob, job: Any, shared_file: Path) -> Any:
    check_workers_see_file(shared_file)
    return _run_until_signal(run_job, job)


def _result_of(ray: Any, reference: Any) -> Any:
    """Return the result of a remote task, or a ``WorkerError`` if its worker died again and again."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        reason = str(error).partition("\n")[0]
        return WorkerError(
            f"its worker died {MAX_RETRIES + 1} times ({reason}); use a node with more memory, or read the logs of ray"
        )
