"""Worker processes that stop on Ctrl-C and do not run the user's script again."""

import multiprocessing
import os
import signal
import sys
import threading
import warnings
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
MAIN_GUARD_ADVICE = 'put the call under `if __name__ == "__main__":` in your script, or use jobs=1'


def run_in_processes(
    run_job: Callable[[Job], Result | None], jobs: Sequence[Job], workers: int, on_result: Callable[[Job, Result], None]
) -> bool:
    """Run jobs in ``workers`` processes and pass each result to ``on_result``; return False if a signal stopped them.

    ``run_job`` must return None if a signal stopped it. Raises ``WorkerError`` if a worker process dies. The workers
    end when this process ends.
    """
    # torch needs a fresh interpreter per worker.
    spawn_context = multiprocessing.get_context("spawn")
    with (
        _report_lost_worker(),
        ProcessPoolExecutor(workers, spawn_context, _initialize_worker) as pool,
        catch_interrupts() as was_interrupted,
        _hide_script(jobs),
    ):
        # Submit one job per worker, because a pool cannot cancel queued jobs.
        queue = iter(jobs)
        futures: dict[Future[Result | None], Job] = {pool.submit(run_job, job): job for job in islice(queue, workers)}
        while futures:
            for future in wait(futures, timeout=0.5, return_when=FIRST_COMPLETED).done:
                job, result = futures.pop(future), future.result()
                if result is None:
                    return _stop_workers()
                on_result(job, result)
                futures |= {pool.submit(run_job, job): job for job in islice(queue, 1)}
            if was_interrupted():
                return _stop_workers()
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
def _report_lost_worker() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise WorkerError(
            "a worker process died (killed, out of memory, or unable to import the script); finished results are "
            f"saved, so repeat the same call to continue; if it dies again, {MAIN_GUARD_ADVICE}"
        ) from None


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
