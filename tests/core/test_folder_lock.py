"""Locks on a folder: a second process raises an error or waits, and no record is lost."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.support.small_runs import small_experiment

from lengthwise.core import folder_lock
from lengthwise.core.errors import RunFolderError
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.experiments.comparison import compare
from lengthwise.experiments.run import train
from lengthwise.experiments.run_folder import append_rows, read_rows

HOLD_LOCK = """
import sys
from pathlib import Path
from lengthwise.core.folder_lock import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.readline()
"""
APPEND_ROWS = """
import sys
from pathlib import Path
from lengthwise.experiments.run_folder import append_rows
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    append_rows(Path(sys.argv[1]), [{"writer": sys.argv[2], "number": number}])
"""


@pytest.fixture
def locked_folder(tmp_path):
    """A folder that another process has locked, and that process."""
    command = [sys.executable, "-c", HOLD_LOCK, tmp_path]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"locked\n"
    yield tmp_path, holder
    holder.kill()
    holder.communicate()


def test_the_lock_of_a_process_that_dies_is_released(locked_folder):
    folder, holder = locked_folder
    with pytest.raises(RunFolderError, match=r"another process is writing into .*; wait until it ends, or choose"):
        exclusive_lock(folder).__enter__()
    holder.kill()
    holder.wait()
    with exclusive_lock(folder):
        pass


def test_waiting_for_a_folder_that_is_moved_raises_an_error(tmp_path, monkeypatch):
    folder = tmp_path / "moved"

    def lock_too_late(*args, **kwargs):
        folder.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(folder_lock, "_acquire_lock", lock_too_late)
    with (
        pytest.raises(RunFolderError, match=r"^another process moved or deleted .*moved; run the command again$"),
        exclusive_lock(folder),
    ):
        pytest.fail("the lock of a moved folder was accepted")


def test_training_and_comparing_into_a_locked_folder_write_nothing(locked_folder):
    folder, _ = locked_folder
    experiment = small_experiment()
    short = replace(experiment, training=replace(experiment.training, steps=2, fit_every=None))
    with pytest.raises(RunFolderError, match="another process is writing"):
        train(short, folder)
    with pytest.raises(RunFolderError, match="another process is writing"):
        compare({"small": short}, folder)
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_rows_that_processes_append_concurrently_are_all_saved(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    commands = [[sys.executable, "-c", APPEND_ROWS, path, name] for name in "ab"]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for command in commands]
    assert [writer.stdout.readline() for writer in writers] == [b"ready\n"] * 2
    for writer in writers:
        writer.stdin.write(b"\n")
        writer.stdin.flush()
    for number in range(40):
        append_rows(path, [{"writer": "c", "number": number}])
    assert [(writer.communicate(timeout=60), writer.returncode) for writer in writers] == [((b"", None), 0)] * 2
    rows = read_rows(path)
    for name in "abc":
        assert [row["number"] for row in rows if row["writer"] == name] == list(range(40))
