"""Lock on a folder against concurrent writes; the operating system releases the lock when its process ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lengthwise.core.errors import RunFolderError

try:
    import fcntl
except ImportError:  # Not available on Windows, where folders are not locked.
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder against other processes; create it if it does not exist.

    If another process holds the lock, raises ``RunFolderError``, or waits for the lock if ``wait`` is True. There is
    no lock on file systems that cannot lock folders (NFS, CIFS).
    """
    descriptor = _open_folder(folder)
    try:
        if descriptor is not None:
            _lock(descriptor, folder, wait=wait)
            _check_unchanged(descriptor, folder)
        yield
    finally:
        if descriptor is not None:
            # A child process with the same descriptor must not keep the lock.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _open_folder(folder: Path) -> int | None:
    """Return a file descriptor, or None if the folder cannot be locked; a later write reports the reason."""
    if fcntl is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY)
    except OSError:
        return None


def _check_unchanged(descriptor: int, folder: Path) -> None:
    """Raise an error if the folder was moved or deleted after it was opened: its lock would have no effect."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return
    raise RunFolderError(f"another process moved or deleted {folder}; run the command again")


def _lock(descriptor: int, folder: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise RunFolderError(
            f"another process is writing into {folder}; wait until it ends, or choose another --out"
        ) from None
    except OSError:
        return
