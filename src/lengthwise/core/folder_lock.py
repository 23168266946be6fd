"""Lock on a folder against concurrent writes; the operating system releases the lock when its process ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lengthwise.core.errors import FolderInUseError, RunFolderError

# This file exists only while a process holds the lock, or after such a process was killed.
LOCK_FILE = ".lock"


@contextmanager
def exclusive_lock(folder: Path, *, wait: bool = False, file: Path | None = None) -> Iterator[None]:
    """Lock a folder against writes of other processes; create the folder if it does not exist.

    If another process holds the lock, raises ``FolderInUseError``, or waits for the lock if ``wait`` is True. ``file``
    is the lock file (default: a file in the folder). A folder that is not writable, or whose file system supports no
    locks, gets no protection; a later write raises the error.
    """
    lock = FileLock(folder / LOCK_FILE if file is None else file)
    lock_folder = Path(lock.lock_file).parent
    status = _create_folder(lock_folder)
    if status is not None:
        _acquire_lock(lock, folder, wait=wait)
        _check_not_moved(lock, lock_folder, status)
    try:
        yield
    finally:
        if lock.is_locked:
            # Delete the file before the release, because another process can lock it afterwards. On Windows, where an
            # open file cannot be deleted, the release deletes it.
            try:
                with suppress(OSError):
                    Path(lock.lock_file).unlink()
            finally:
                # Also after Ctrl-C in this moment, because the process may continue.
                lock.release()


def _create_folder(folder: Path) -> os.stat_result | None:
    """Create a folder and return its status, or None if this fails. A later write then raises the error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder.stat()
    except OSError:
        return None


def _acquire_lock(lock: FileLock, folder: Path, *, wait: bool) -> None:
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        raise FolderInUseError(
            f"another process is writing into {folder}; wait until it ends, or choose another --out"
        ) from None
    except (OSError, NotImplementedError):
        return


def _check_not_moved(lock: FileLock, folder: Path, status: os.stat_result) -> None:
    """Raise ``RunFolderError`` if the path no longer leads to the same folder, because the lock then has no effect."""
    with suppress(OSError):
        if os.path.samestat(status, folder.stat()):
            return
    lock.release()
    raise RunFolderError(f"another process moved or deleted {folder}; run the command again")
