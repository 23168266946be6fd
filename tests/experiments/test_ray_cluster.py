"""Executor on a ray cluster: nodes that die or join, signals, and errors that name the cause."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_runs import small_experiment

from lengthwise.core.errors import RunFolderError, SettingError, WorkerError
from lengthwise.encodings import NoPE
from lengthwise.experiments import executors
from lengthwise.experiments.executors import SHARED_FILE_PREFIX, RayExecutor, check_workers_see_file, import_ray
from lengthwise.experiments.runner import compare, sweep
from lengthwise.positions import Sequential

OBJECT_STORE_BYTES = 80 * 2**20
EXPERIMENTS = {
    "PPC": small_experiment(steps=60, checkpoint_every=10),
    "NoPE": small_experiment(scheme=Sequential(), encoding=NoPE(), steps=60, checkpoint_every=10),
}
# The sources of ray 2.60 open files and sockets that they do not close.
pytestmark = [
    pytest.mark.linux,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
        "ignore::FutureWarning",
        "ignore::DeprecationWarning",
    ),
]


def untimed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in ("wall_s", "train_s", "time")} for row in rows]


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Start a cluster of two nodes with one CPU each on this machine, and connect to it."""
    ray = import_ray()
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    node = {"num_cpus": 1, "object_store_memory": OBJECT_STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def executor(folder: Path, **settings: Any) -> RayExecutor:
    return RayExecutor(**{"address": None, "workers": None, "num_gpus": 0, "folder": folder, **settings})


@pytest.mark.slow
def test_a_sweep_survives_a_lost_node_and_uses_a_new_one(cluster, tmp_path):
    (worker_node,) = cluster.worker_nodes
    local = sweep(EXPERIMENTS, tmp_path / "local", seeds=4, workers=1, device="cpu")
    lines = []

    def replace_node(num_done: int, num_total: int, line: str) -> None:
        lines.append(line)
        if num_done == 2:
            cluster.remove_node(worker_node, allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)

    swept = sweep(EXPERIMENTS, tmp_path / "ray", seeds=4, executor="ray", device="cpu", report=replace_node)
    assert len(lines) == 9
    assert (swept.is_complete, swept.failed, swept.diverged) == (True, [], [])
    assert untimed(swept.rows) == untimed(local.rows)
    assert not list((tmp_path / "ray").glob(".shared-*"))


def node_of(job: int, should_stop: Callable[[], bool]) -> str:
    """Work for a short time and return the ID of the node."""
    time.sleep(0.5)
    return str(import_ray().get_runtime_context().get_node_id())


@pytest.mark.slow
def test_all_nodes_take_jobs_also_a_node_that_joins_later(cluster, tmp_path):
    results: dict[int, str] = {}

    def add_node(job: int, node: Any) -> None:
        results[job] = node
        if len(results) == 4:
            cluster.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)

    assert executor(tmp_path).run(node_of, list(range(60)), add_node)
    assert sorted(results) == list(range(60))
    assert len({*results.values()}) == 3


def die_or_return(job: int, should_stop: Callable[[], bool]) -> int:
    """Kill the worker for job 0."""
    if job == 0:
        os._exit(1)
    return job


def stop_once(job: Path, should_stop: Callable[[], bool]) -> bool | None:
    """Send a signal to the worker in the first call, as a node that shuts down does."""
    if job.exists():
        return True
    job.touch()
    os.kill(os.getpid(), signal.SIGTERM)
    return None if should_stop() else False


def raise_error(job: int, should_stop: Callable[[], bool]) -> None:
    """Raise an error of the library."""
    raise SettingError(f"job {job} is invalid")


def wait_for_stop(job: Path, should_stop: Callable[[], bool]) -> None:
    """Write a file, wait for a signal, and write another file as the saved state."""
    job.with_suffix(".started").touch()
    while not should_stop():
        time.sleep(0.05)
    job.touch()


def interrupt_after_start(jobs: list[Path]) -> None:
    """Send Ctrl-C to this process once the jobs have started."""
    while not all(job.with_suffix(".started").exists() for job in jobs):
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_jobs_on_a_cluster_end_as_the_executor_promises(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "MAX_RETRIES", 1)
    results: dict[Any, Any] = {}
    assert executor(tmp_path).run(die_or_return, [0, 1], results.__setitem__)
    assert isinstance(results[0], WorkerError)
    assert str(results[0]).startswith("its worker died 2 times (")
    assert "\n" not in str(results[0])
    assert results[1] == 1
    # A job that a signal has stopped runs again.
    assert executor(tmp_path).run(stop_once, [tmp_path / "stopped"], results.__setitem__)
    assert results[tmp_path / "stopped"] is True
    with pytest.raises(SettingError, match=r"^job 3 is invalid$"):
        executor(tmp_path).run(raise_error, [3], results.__setitem__)
    # Ctrl-C stops the jobs, which save their state.
    jobs = [tmp_path / "one", tmp_path / "two", tmp_path / "three"]
    threading.Thread(target=interrupt_after_start, args=(jobs[:2],)).start()
    assert not executor(tmp_path, workers=2).run(wait_for_stop, jobs, results.__setitem__)
    assert [job.exists() for job in jobs] == [True, True, False]


@pytest.mark.slow
def test_a_comparison_on_a_new_cluster_gives_the_same_rows(tmp_path):
    experiments = {"PPC": small_experiment(steps=6)}
    local = compare(experiments, tmp_path / "local", workers=1, device="cpu")
    remote = compare(experiments, tmp_path / "ray", workers=1, device="cpu", executor="ray")
    assert untimed(remote.rows) == untimed(local.rows)
    assert not import_ray().is_initialized()


def test_a_node_without_the_shared_file_raises_an_error(tmp_path):
    shared_file = tmp_path / f"{SHARED_FILE_PREFIX}1"
    text = r"^node .* does not see the files in .*; choose an --out on a file system that all nodes share"
    with pytest.raises(RunFolderError, match=text):
        check_workers_see_file(shared_file)
    shared_file.write_bytes(b"2")
    with pytest.raises(RunFolderError, match=text):
        check_workers_see_file(shared_file)
    shared_file.write_bytes(b"1")
    check_workers_see_file(shared_file)


def test_without_ray_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    text = r"^executor 'ray' needs the ray library; run pip install 'lengthwise\[ray\]'$"
    with pytest.raises(SettingError, match=text):
        sweep({"PPC": small_experiment()}, tmp_path / "out", executor="ray")
    assert not (tmp_path / "out").exists()


def test_an_unreachable_cluster_raises_an_error(monkeypatch, tmp_path):
    def refuse(**settings: Any) -> None:
        raise ConnectionError("no answer\nfrom the node")

    monkeypatch.setattr(import_ray(), "init", refuse)
    text = (
        r"^cannot connect to the ray cluster at 10.0.0.1:6379 \(no answer\); check the address and the versions of ray$"
    )
    with pytest.raises(WorkerError, match=text):
        sweep({"PPC": small_experiment()}, tmp_path / "out", executor="ray", address="10.0.0.1:6379")
    assert not list((tmp_path / "out").glob(".shared-*"))
