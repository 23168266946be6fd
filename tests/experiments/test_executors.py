"""Local executor after the loss of a worker, and sweeps after the loss of the process that started them."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lengthwise.core.errors import WorkerError
from lengthwise.experiments.executors import LocalExecutor


def work(folder: Path, job: str, should_stop: Callable[[], bool]) -> str:
    """Write a file, and kill the worker of the jobs ``first loss`` (once) and ``loss`` (always)."""
    path = folder / job
    is_first = not path.exists()
    path.touch()
    if job == "loss" or (job == "first loss" and is_first):
        while not (folder / "done").exists():
            time.sleep(0.05)
        os._exit(1)
    return job


@pytest.mark.slow
def test_jobs_start_again_after_the_loss_of_a_worker(tmp_path):
    results: dict[str, Any] = {}
    executor = LocalExecutor(workers=2, threads=1)

    def record(job: str, result: Any) -> None:
        results[job] = result
        (tmp_path / "done").touch()

    assert executor.run(partial(work, tmp_path), ["first loss", "one", "two"], record)
    assert results == {job: job for job in ("first loss", "one", "two")}
    # A job that always kills its worker ends the call after all other jobs.
    results.clear()
    with pytest.raises(WorkerError, match="a worker process died"):
        executor.run(partial(work, tmp_path), ["loss", "one", "two", "three"], record)
    assert results == {job: job for job in ("one", "two", "three")}


def lose(folder: Path, job: str, should_stop: Callable[[], bool]) -> str:
    """Add a line to a file and kill the worker, except for the job ``good``."""
    with (folder / "starts").open("a", encoding="utf-8") as file:
        file.write(f"{job}\n")
    if job != "good":
        os._exit(1)
    return job


@pytest.mark.slow
def test_jobs_that_kill_their_workers_run_one_at_a_time_and_do_not_stop_another(tmp_path):
    results: dict[str, Any] = {}
    jobs = ["bad", "worse", "good"]
    with pytest.raises(WorkerError, match="a worker process died"):
        LocalExecutor(workers=2, threads=1).run(partial(lose, tmp_path), jobs, results.__setitem__)
    assert results == {"good": "good"}
    # Without a job that finishes, three losses alone end the call.
    starts = tmp_path / "starts"
    starts.unlink()
    with pytest.raises(WorkerError):
        LocalExecutor(workers=2, threads=1).run(partial(lose, tmp_path), [f"bad {n}" for n in range(9)], print)
    # Two together, then each of them alone; the next two together, and one of them alone.
    assert 5 <= len(starts.read_text(encoding="utf-8").splitlines()) <= 7


SWEEP = """
import lengthwise as lw
from tests.support.small_runs import small_experiment

if __name__ == "__main__":
    experiment = small_experiment(steps=60, checkpoint_every=10)
    result = lw.sweep({"PPC": experiment}, "out", seeds=6, device="cpu", executor="EXECUTOR", workers=2)
    print(len(result.rows), result.failed)
"""


def start(folder: Path, executor: str) -> subprocess.Popen[str]:
    """Start a sweep in another process."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SWEEP).replace("EXECUTOR", executor))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )


def finished_models(folder: Path) -> dict[Path, int]:
    """Return the time of the last change of each trained model."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("out/*/model.safetensors")}


@pytest.mark.slow
@pytest.mark.linux
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_a_sweep_continues_after_its_process_is_killed(executor, tmp_path):
    with start(tmp_path, executor) as process:
        while len(finished_models(tmp_path)) < 2:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    before = finished_models(tmp_path)
    with start(tmp_path, executor) as process:
        output, _ = process.communicate()
    assert (process.returncode, output) == (0, "12 []\n")
    after = finished_models(tmp_path)
    assert len(before) < len(after) == 6
    # Finished runs are not trained again.
    assert {path: after[path] for path in before} == before
    assert not list(tmp_path.glob("out/.shared-*"))
