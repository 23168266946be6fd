"""Locks on a folder: a second process raises an error or waits, and no record is lost."""

import errno
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from tests.support.small_runs import small_experiment

from lengthwise.core import folder_lock
from lengthwise.core.errors import RunFolderError
from lengthwise.core.files import write_folder_atomically
from lengthwise.core.folder_lock import exclusive_lock
from lengthwise.experiments.run import train
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.experiments.runner import compare

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
    assert (folder / folder_lock.LOCK_FILE).exists()
    with exclusive_lock(folder):
        pass
    assert list(folder.iterdir()) == []


def test_a_process_that_waits_for_a_folder_gets_an_error_if_it_is_moved(locked_folder, tmp_path_factory, monkeypatch):
    folder, _ = locked_folder
    errors, is_waiting, acquire = [], threading.Event(), folder_lock.FileLock.acquire

    def report_and_acquire(*arguments, **settings):
        is_waiting.set()
        return acquire(*arguments, **settings)

    def wait_for_lock():
        try:
            with exclusive_lock(folder, wait=True):
                pass
        except RunFolderError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait_for_lock)
    monkeypatch.setattr(folder_lock.FileLock, "acquire", report_and_acquire)
    waiting.start()
    assert is_waiting.wait(timeout=30)
    folder.rename(tmp_path_factory.mktemp("other") / "elsewhere")
    waiting.join(timeout=30)
    assert errors == [f"another process moved or deleted {folder}; run the command again"]


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), NotImplementedError()])
def test_a_file_system_without_locks_gives_no_protection(error, tmp_path, monkeypatch):
    def acquire(*arguments, **settings):
        raise error

    monkeypatch.setattr(folder_lock.FileLock, "acquire", acquire)
    with exclusive_lock(tmp_path / "new", wait=True):
        (tmp_path / "new" / "file").write_text("written")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_the_lock_of_a_folder_that_is_renamed_afterwards_leaves_no_file(tmp_path):
    with write_folder_atomically(tmp_path / "whole") as folder:
        (folder / "file").write_text("content")
        with (
            pytest.raises(RunFolderError, match=r"writing into .*whole; wait"),
            write_folder_atomically(tmp_path / "whole"),
        ):
            pytest.fail("two processes write the same folder")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["whole", "whole/file"]


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
    assert [path.name for path in folder.iterdir()] == [folder_lock.LOCK_FILE]


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
