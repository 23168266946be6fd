"""Worker processes: a script without a main guard works, or ends with one line; a lost worker is reported."""

import os
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

from lengthwise.core.errors import WorkerError
from lengthwise.experiments.worker_pool import run_in_processes

COMPARE = """
import dataclasses
import lengthwise as lw

{own}
small = dataclasses.replace(
    lw.experiment_for("parity", "sequential", "nope"),
    {task}
    decoder=lw.DecoderSettings(num_layers=1, d_model=16, num_heads=2),
    training=lw.TrainingSettings(steps=1, batch_size=2),
    train_lengths=(1, 2),
    evaluation=lw.EvaluationSettings(lengths=(2,), num_examples=(1,)),
)
rows = lw.compare({{"a": small, "b": small}}, "out", jobs=2, device="cpu").rows
print("rows", len(rows))
"""
OWN = """
@dataclasses.dataclass(frozen=True)
class Mine(lw.Parity):
    name = "mine"
"""


def run(script: str, folder) -> subprocess.CompletedProcess[str]:
    """A script in a process and a folder of its own."""
    (folder / "script.py").write_text(textwrap.dedent(script))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, env=environment, check=False
    )


@pytest.mark.slow
def test_compare_works_in_a_script_without_a_main_guard(tmp_path):
    ran = run(COMPARE.format(own="", task=""), tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "rows 2\n"), ran.stderr
    assert "another process" not in ran.stderr


@pytest.mark.slow
def test_a_script_without_a_guard_whose_classes_are_needed_is_refused_in_one_line(tmp_path):
    ran = run(COMPARE.format(own=OWN, task="task=Mine(),"), tmp_path)
    assert ran.returncode == 1
    assert 'put the call under `if __name__ == "__main__":` in your script, or use jobs=1' in ran.stderr
    assert "another process" not in ran.stderr
    assert "BrokenProcessPool" not in ran.stderr


def double(number: int) -> int:
    """Work that is done."""
    return 2 * number


def die(number: int) -> int:
    """Work that takes its process along."""
    os._exit(1)


def test_every_job_is_done_once():
    done: dict[int, int] = {}
    assert run_in_processes(double, [1, 2, 3], 2, done.__setitem__)
    assert done == {1: 2, 2: 4, 3: 6}


def test_a_lost_worker_is_one_line_that_says_how_to_continue():
    text = r"^a worker process died .*repeat the same call to continue.*$"
    with pytest.raises(WorkerError, match=text) as ended:
        run_in_processes(die, [1, 2], 2, lambda *done: None)
    assert "\n" not in str(ended.value)


def write_number_and_wait(folder: str) -> str:
    """Work that says which process does it, and does not end."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)
    return folder


def die_late_or_idle(seconds: float) -> float:
    """Work that takes its process along while another one has none."""
    if seconds:
        time.sleep(seconds)
        os._exit(1)
    return seconds


def is_alive(process: int) -> bool:
    """Whether a process is there and no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_an_idle_worker_does_not_keep_the_call_when_another_one_is_lost():
    with pytest.raises(WorkerError):
        run_in_processes(die_late_or_idle, [1.0, 0.0], 2, lambda *done: None)


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
