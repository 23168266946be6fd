"""Jobs shared out among processes that stop on Ctrl-C and never run the user's script by accident."""

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
    work: Callable[[Job], Result | None],
    jobs: Sequence[Job],
    workers: int,
    finish: Callable[[Job, Result], None],
) -> bool:
    """Do each job in one of ``workers`` processes and pass its result to ``finish``; False when a signal came first.

    ``work`` returns None when a signal interrupted it. ``WorkerError`` when a process dies. Workers end with this
    process, however it ends.
    """
    # A fresh interpreter per worker keeps torch sane.
    spawn = multiprocessing.get_context("spawn")
    with (
        _lost_worker_reported(),
        ProcessPoolExecutor(workers, spawn, _begin) as pool,
        catch_interrupts() as stop,
        _script_hidden(jobs),
    ):
        # No more than the workers hold: a pool does not take back what waits in its queue.
        waiting = iter(jobs)
        running: dict[Future[Result | None], Job] = {pool.submit(work, job): job for job in islice(waiting, workers)}
        while running:
            for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                job, result = running.pop(future), future.result()
                if result is None:
                    return _leave()
                finish(job, result)
                running |= {pool.submit(work, following): following for following in islice(waiting, 1)}
            if stop():
                return _leave()
    return True


def _leave() -> bool:
    # The signal may have come to one process alone.
    for worker in multiprocessing.active_children():
        worker.terminate()
    return False


def refuse_in_a_workers_import() -> None:
    """End a worker whose import of the user's script arrives here: the script has no main guard."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(f"error: a worker process imports the script and would start it again; {GUARD}")


@contextmanager
def _lost_worker_reported() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool:
        raise WorkerError(
            "a worker process ended without a result (it was killed, ran out of memory, or could not import the "
            f"script); finished results are kept and the same call continues them; if it comes again, {GUARD}"
        ) from None


@contextmanager
def _script_hidden(jobs: Iterable[Any]) -> Iterator[None]:
    """Start processes that do not import the user's script, unless a job has a class of that script.

    A spawned process imports the script of its parent: without a main guard it would do all of it again.
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


def _begin() -> None:
    """Ignore signals between jobs: a worker that died holding the queue would leave the others waiting."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _end_with_parent() -> None:
    """End this process at once when its parent is gone: nobody takes its results, and what it saved stays."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
