"""Executor on a cluster of the ray library: one remote task per job, repeated elsewhere if its node is lost."""

import logging
import os
import platform
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from lengthwise.core.errors import RunFolderError, SettingError, WorkerError
from lengthwise.core.files import write_atomically
from lengthwise.core.interruption import catch_interrupts

Job = TypeVar("Job")
Result = TypeVar("Result")
# Number of times that a job is repeated after the loss of its worker or node.
MAX_RETRIES = 5
# Memory for objects in a new cluster, in bytes; jobs and results are small.
OBJECT_STORE_BYTES = 100 * 2**20
SHARED_FILE_PREFIX = ".shared-"
# Seconds between two checks for Ctrl-C.
WAIT_S = 0.5
# Seconds that a stopped job has to save its state.
STOP_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFile:
    """File that the driver has written, to detect nodes that do not share its file system."""

    path: Path
    content: bytes

    def check(self) -> None:
        """Raise ``RunFolderError`` unless this node reads the same file."""
        try:
            is_shared = self.path.read_bytes() == self.content
        except OSError:
            is_shared = False
        if not is_shared:
            raise RunFolderError(
                f"node {platform.node()} does not see the files in {self.path.parent}; choose an --out on a file "
                "system that all nodes share, under the same path"
            )


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

    def run(
        self,
        run_job: Callable[[Job, Callable[[], bool]], Result | None],
        jobs: Sequence[Job],
        on_result: Callable[[Job, Result | WorkerError], None],
    ) -> bool:
        """Run jobs; see ``Executor.run``.

        Raises ``WorkerError`` if the cluster cannot be reached, and ``RunFolderError`` if a node does not see
        ``folder``.
        """
        ray = import_ray()
        with _connection(ray, self.address), _shared_file(self.folder) as shared_file:
            _check_nodes(ray, shared_file)
            # Only a lost worker or node is repeated; an exception of the job is its result.
            environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(_import_folders())}}
            resources = {"num_cpus": self.threads, "num_gpus": self.num_gpus, "runtime_env": environment}
            task = ray.remote(max_retries=MAX_RETRIES, **resources)(_run_on_node)
            queue, running = iter(jobs), {}

            def submit(next_jobs: Iterable[Job]) -> None:
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
                    _cancel(ray, list(running))


def import_ray() -> Any:
    """Return the module ``ray``; raise ``SettingError`` if it is not installed."""
    # Ray otherwise reports usage statistics to its makers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray  # noqa: PLC0415
    except ImportError:
        raise SettingError("executor 'ray' needs the ray library; run pip install 'lengthwise[ray]'") from None
    return ray


def _import_folders() -> list[str]:
    """Return the import path without the Python installation; it can contain the folder of a sweep file."""
    installed = (sys.prefix, sys.base_prefix)
    return [folder for folder in sys.path if folder and not folder.startswith(installed)]


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


@contextmanager
def _shared_file(folder: Path) -> Iterator[SharedFile]:
    """Write a file with a random name and content that every node must see, and delete it on exit."""
    for stale_path in folder.glob(f"{SHARED_FILE_PREFIX}*"):
        # A killed driver has left it; only one driver at a time uses the folder.
        stale_path.unlink(missing_ok=True)
    content = uuid.uuid4().hex
    shared_file = SharedFile(path=folder / f"{SHARED_FILE_PREFIX}{content}", content=content.encode())
    write_atomically(shared_file.path, shared_file.content)
    try:
        yield shared_file
    finally:
        shared_file.path.unlink(missing_ok=True)


def _check_nodes(ray: Any, shared_file: SharedFile) -> None:
    """Raise ``RunFolderError`` for the first node that does not see the shared file."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

    check = ray.remote(num_cpus=0)(SharedFile.check)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    placements = [NodeAffinitySchedulingStrategy(node_id=node, soft=True) for node in nodes]
    checks = [check.options(scheduling_strategy=placement).remote(shared_file) for placement in placements]
    for reference in checks:
        _result_of(ray, reference)


def _run_on_node(
    run_job: Callable[[Job, Callable[[], bool]], Result | None], job: Job, shared_file: SharedFile
) -> Result | None:
    shared_file.check()
    with catch_interrupts() as should_stop:
        return run_job(job, should_stop)


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


def _cancel(ray: Any, references: Sequence[Any]) -> None:
    """Stop remote tasks, and wait until they have saved their state."""
    for reference in references:
        ray.cancel(reference)
    if references:
        ray.wait(references, num_returns=len(references), timeout=STOP_S)
