"""Lock on a folder against concurrent writes; the operating system releases the lock when its process ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lengthwise.core.errors import FolderInUseError, RunFolderError

try:
    import fcntl
except ImportError:  # Windows has no fcntl, so folders are not locked there.
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder against writes of other processes; create the folder if it does not exist.

    If another process holds the lock, raises ``FolderInUseError``, or waits for the lock if ``wait`` is True. File
    systems that do not support folder locks (NFS, CIFS) give no protection.
    """
    descriptor = _open_folder(folder)
    try:
        if descriptor is not None:
            _acquire_lock(descriptor, folder, wait=wait)
            _check_not_moved(descriptor, folder)
        yield
    finally:
        if descriptor is not None:
            # A child process with the same descriptor must not keep the lock.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _open_folder(folder: Path) -> int | None:
    """Create and open a folder; return its descriptor, or None if this fails. A later write then raises the error."""
    if fcntl is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY)
    except OSError:
        return None


def _check_not_moved(descriptor: int, folder: Path) -> None:
    """Raise ``RunFolderError`` if the path no longer leads to the open folder, because the lock then has no effect."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return
    raise RunFolderError(f"another process moved or deleted {folder}; run the command again")


def _acquire_lock(descriptor: int, folder: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise FolderInUseError(
            f"another process is writing into {folder}; wait until it ends, or choose another --out"
        ) from None
    except OSError:
        return
