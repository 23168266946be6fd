"""Locks that keep two processes from writing the same results; the system drops those of a process that dies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lengthwise.errors import RunFolderError

try:
    import fcntl
except ImportError:  # Windows has none: nothing is locked there.
    fcntl = None  # type: ignore[assignment]


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder; ``RunFolderError`` when one is in it already."""
    try:
        descriptor = _locked(folder, wait=False)
    except BlockingIOError:
        raise RunFolderError(
            f"another process is writing into {folder}; wait until it ends, or choose another --out"
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def one_at_a_time(file: Path) -> Iterator[None]:
    """Wait until no other process changes a file, which is made if it is not there; it may be replaced meanwhile."""
    descriptor = None
    # Whoever goes on to write there says why it cannot be written.
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        descriptor = _locked(file, wait=True)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _locked(path: Path, *, wait: bool) -> int:
    """A descriptor that holds what is at a path now; where the file system knows no locks, one that holds nothing."""
    while True:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:
            return descriptor
        # Whoever held it before may have put another file in its place.
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
        os.close(descriptor)
