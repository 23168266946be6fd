"""Two processes at one folder: the second is told, or waits; nothing is lost."""

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.support.small_runs import small_experiment

from lengthwise.core import folder_lock as locks
from lengthwise.core.errors import RunFolderError
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.experiments.comparison import compare
from lengthwise.experiments.run import train
from lengthwise.experiments.run_folder import append_rows, read_rows

HOLD = """
import sys
from pathlib import Path
from lengthwise.core.folder_lock import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""
APPEND = """
import sys
from pathlib import Path
from lengthwise.experiments.run_folder import append_rows
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    append_rows(Path(sys.argv[1]), [{"writer": sys.argv[2], "number": number}])
"""


@pytest.fixture
def held(tmp_path):
    """A folder that another process holds, and that process."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    yield tmp_path, holder
    holder.kill()
    holder.communicate()


def test_a_folder_is_free_again_when_its_process_dies(held):
    folder, holder = held
    with pytest.raises(RunFolderError, match=r"another process is writing into .*; wait until it ends, or choose"):
        exclusive_lock(folder).__enter__()
    holder.kill()
    holder.wait()
    with exclusive_lock(folder):
        pass


def test_who_waited_for_a_folder_that_is_gone_is_told_so(tmp_path, monkeypatch):
    folder = tmp_path / "moved"

    def locked_too_late(*given, **named):
        folder.rename(tmp_path / "elsewhere")

    monkeypatch.setattr(locks, "_lock", locked_too_late)
    with (
        pytest.raises(RunFolderError, match=r"^another process has moved or deleted .*moved; give the same command"),
        exclusive_lock(folder),
    ):
        pytest.fail("two would be in it")


def test_nothing_is_trained_or_compared_into_a_folder_in_use(held):
    folder, _ = held
    experiment = small_experiment()
    short = replace(experiment, training=replace(experiment.training, steps=2, fit_every=None))
    with pytest.raises(RunFolderError, match="another process is writing"):
        train(short, folder)
    with pytest.raises(RunFolderError, match="another process is writing"):
        compare({"small": short}, folder)
    assert list(folder.iterdir()) == []


def test_rows_that_several_processes_add_at_once_are_all_kept(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    asked = [[sys.executable, "-c", APPEND, path, name] for name in "ab"]
    writers = [subprocess.Popen(each, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for each in asked]
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
