"""Worker processes that stop on Ctrl-C and do not run the user's script again."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any, TypeVar

from lengthwise.core.errors import WorkerError
from lengthwise.core.interruption import catch_interrupts

Job = TypeVar("Job")
Result = TypeVar("Result")
GUARD = 'put the call under `if __name__ == "__main__":` in your script, or use jobs=1'


def run_in_processes(
    work: Callable[[Job], Result | None], jobs: Sequence[Job], workers: int, finish: Callable[[Job, Result], None]
) -> bool:
    """Run ``work`` on each job in ``workers`` processes, and pass results to ``finish``; return False after a signal.

    ``work`` returns None if a signal interrupted it. Raises ``WorkerError`` if a process dies. Workers always end with
    this process.
    """
    # torch needs a fresh interpreter per worker.
    spawn = multiprocessing.get_context("spawn")
    with (
        _report_lost_worker(),
        ProcessPoolExecutor(workers, spawn, _initialize) as pool,
        catch_interrupts() as stop,
        _hide_script(jobs),
    ):
        # One job per worker: a pool cannot cancel queued jobs.
        queue = iter(jobs)
        running: dict[Future[Result | None], Job] = {pool.submit(work, job): job for job in islice(queue, workers)}
        while running:
            for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                job, result = running.pop(future), future.result()
                if result is None:
                    return _stop_workers()
                finish(job, result)
                running |= {pool.submit(work, job): job for job in islice(queue, 1)}
            if stop():
                return _stop_workers()
    return True


def _stop_workers() -> bool:
    # Only one process may have received the signal.
    for worker in multiprocessing.active_children():
        worker.terminate()
    return False


def reject_import_in_worker() -> None:
    """Exit a worker that reaches this call while it imports a user script without a main guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(f"error: a worker process imported the script and would run it again; {GUARD}")


@contextmanager
def _report_lost_worker() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise WorkerError(
            "a worker process died (killed, out of memory, or unable to import the script); finished results are "
            f"saved, so repeat the same call to continue; if it dies again, {GUARD}"
        ) from None


@contextmanager
def _hide_script(jobs: Iterable[Any]) -> Iterator[None]:
    """Start processes that do not import the user's script, unless a job uses a class of that script.

    A spawned process imports the script of its parent; without a main guard, it would run the script again.
    """
    if any(b"__main__" in bytes(ForkingPickler.dumps(job)) for job in jobs):
        yield
        return
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


def _initialize() -> None:
    """Ignore signals between jobs: a worker that dies while holding the queue lock blocks the others."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _end_with_parent() -> None:
    """Exit immediately when the parent process ends; saved results remain."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
