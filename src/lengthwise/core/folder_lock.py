"""A lock that keeps two processes from writing the same results; the system drops that of a process that dies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lengthwise.core.errors import RunFolderError

try:
    import fcntl
except ImportError:  # Windows has none: nothing is locked there.
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive_lock(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep other processes out of a folder, which is made if it is not there.

    When one is in it already, ``RunFolderError``, or with ``wait`` the end of that. A file system without locks on
    folders (NFS, CIFS) lets all in.
    """
    descriptor = _descriptor(folder)
    try:
        if descriptor is not None:
            _lock(descriptor, folder, wait=wait)
            _check_still_there(descriptor, folder)
        yield
    finally:
        if descriptor is not None:
            # A child process that shares the descriptor keeps no lock.
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _descriptor(folder: Path) -> int | None:
    """None where there can be no lock; whoever writes into a folder that cannot be written says why."""
    if fcntl is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder, os.O_RDONLY)
    except OSError:
        return None


def _check_still_there(descriptor: int, folder: Path) -> None:
    """Who waited for a folder that is moved or deleted meanwhile holds the lock of what nobody else will ask for."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(descriptor), folder.stat()):
            return
    raise RunFolderError(f"another process has moved or deleted {folder}; give the same command again")


def _lock(descriptor: int, folder: Path, *, wait: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise RunFolderError(
            f"another process is writing into {folder}; wait until it ends, or choose another --out"
        ) from None
    except OSError:
        return
