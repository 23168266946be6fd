"""Worker processes: scripts without a main guard, lost workers, and the end of workers with their parent."""

import os
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lengthwise.core.errors import WorkerError
from lengthwise.experiments.executors import run_in_processes

COMPARE = """
import dataclasses
import lengthwise as lw
from lengthwise.tasks import Parity

{custom}
small = dataclasses.replace(
    lw.experiment("parity", "sequential", "nope"),
    {task}
    decoder=lw.DecoderSettings(num_layers=1, d_model=16, num_heads=2),
    training=lw.TrainingSettings(steps=1, batch_size=2),
    train_lengths=(1, 2),
    evaluation=lw.EvaluationSettings(lengths=(2,), num_examples=(1,)),
)
rows = lw.compare({{"a": small, "b": small}}, "out", workers=2, device="cpu").rows
print("rows", len(rows))
"""
CUSTOM = """
@dataclasses.dataclass(frozen=True)
class Mine(Parity):
    name = "mine"
"""


def run(script: str, folder) -> subprocess.CompletedProcess[str]:
    """Run a script in a separate process and folder."""
    (folder / "script.py").write_text(textwrap.dedent(script))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.slow
def test_compare_works_in_a_script_without_a_main_guard(tmp_path):
    process = run(COMPARE.format(custom="", task=""), tmp_path)
    assert (process.returncode, process.stdout) == (0, "rows 2\n"), process.stderr
    assert "another process" not in process.stderr


@pytest.mark.slow
def test_a_script_without_a_main_guard_that_defines_a_used_class_raises_a_one_line_error(tmp_path):
    process = run(COMPARE.format(custom=CUSTOM, task="task=Mine(),"), tmp_path)
    assert process.returncode == 1
    assert 'put the call under `if __name__ == "__main__":` in your script, or use workers=1' in process.stderr
    assert "another process" not in process.stderr
    assert "BrokenProcessPool" not in process.stderr


def double(number: int) -> int:
    """Finish normally."""
    return 2 * number


def die(number: int) -> int:
    """Exit the worker process."""
    os._exit(1)


@pytest.mark.slow
def test_every_job_runs_once():
    done: dict[int, int] = {}
    assert run_in_processes(double, [1, 2, 3], 2, done.__setitem__)
    assert done == {1: 2, 2: 4, 3: 6}


@pytest.mark.slow
def test_a_lost_worker_raises_a_one_line_error_with_advice():
    text = r"^a worker process died .*repeat the same call to continue.*$"
    with pytest.raises(WorkerError, match=text) as error:
        run_in_processes(die, [1, 2], 2, lambda *done: None)
    assert "\n" not in str(error.value)


def write_number_and_wait(folder: str) -> str:
    """Write the process ID and wait."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)
    return folder


def die_late_or_idle(seconds: float) -> float:
    """Exit the process after some seconds; with 0, finish immediately."""
    if seconds:
        time.sleep(seconds)
        os._exit(1)
    return seconds


def is_alive(process: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
def test_a_lost_worker_ends_the_call_while_another_worker_is_idle():
    with pytest.raises(WorkerError):
        run_in_processes(die_late_or_idle, [1.0, 0.0], 2, lambda *done: None)


@pytest.mark.slow
@pytest.mark.linux
def test_workers_end_with_their_parent(tmp_path):
    call = f"run_in_processes(write_number_and_wait, [{str(tmp_path)!r}] * 2, 2, print)"
    script = f"from test_worker_pool import *; {call}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", script], env=environment) as parent:
        while len(workers := [int(path.name) for path in tmp_path.iterdir()]) < 2:
            assert parent.poll() is None
            time.sleep(0.1)
        parent.kill()
    for _ in range(200):
        if not any(map(is_alive, workers)):
            break
        time.sleep(0.1)
    assert not any(map(is_alive, workers))
