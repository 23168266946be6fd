"""Reads of regular files, and atomic writes; each write also deletes the temporary files of killed processes."""

import errno
import os
import platform
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from lengthwise.core.errors import RunFolderError
from lengthwise.core.folder_lock import LOCK_FILE, exclusive_lock

# Public functions accept a path as str or Path.
StrPath = str | os.PathLike[str]
TEMPORARY_SUFFIX = ".unfinished"
# Number of bytes at the start of a file that can contain the mark of this library.
MARKED_BYTES = 4096


def read_file(path: StrPath) -> bytes:
    """Return the content of a regular file; raise ``OSError`` for another file, see `check_regular_file`."""
    check_regular_file(path)
    return Path(path).read_bytes()


def check_regular_file(path: StrPath) -> None:
    """Raise ``OSError`` for a path that is missing or that is a named pipe or a device, which can block for ever."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file and rename it, so that readers see either the old content or the new content."""
    temporary_path = path.with_name(f".{path.name}.{_host_name()}-{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _delete_stale_files(path)
        with temporary_path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary_path.replace(path)
    except OSError as error:
        raise RunFolderError(f"cannot write {path} ({error.strerror}); choose a writable folder") from None
    finally:
        with suppress(OSError):
            temporary_path.unlink()


@contextmanager
def write_folder_atomically(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``out`` at the end, or deleted after an error.

    Raises ``RunFolderError`` if ``out`` is not empty or not writable, or if another process is writing it.
    """
    out = out.absolute()
    check_output_folder(out)
    temporary_path = out.with_name(f".{out.name}{TEMPORARY_SUFFIX}")
    # The temporary folder is renamed, so the lock file is beside it.
    with exclusive_lock(out, file=temporary_path.with_name(f"{temporary_path.name}{LOCK_FILE}")):
        try:
            temporary_path.mkdir(parents=True, exist_ok=True)
            # Delete the files of a killed process.
            for stale_path in temporary_path.iterdir():
                shutil.rmtree(stale_path) if stale_path.is_dir() else stale_path.unlink()
            yield temporary_path
            check_output_folder(out)
            temporary_path.replace(out)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary_path, ignore_errors=True)
            reason = getattr(error, "strerror", None) or error
            raise RunFolderError(f"cannot write {out} ({reason}); choose a writable folder") from None
        except BaseException:
            shutil.rmtree(temporary_path, ignore_errors=True)
            raise


def check_output_folder(out: Path) -> None:
    """Raise ``RunFolderError`` unless ``out`` does not exist or is an empty folder."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise RunFolderError(f"{out} already exists and is not an empty folder; choose another --out")


def check_output_file(out: Path | None, mark: bytes | None = None) -> None:
    """Raise ``RunFolderError`` unless ``out`` is None, free, or a file of this library, which starts with ``mark``."""
    if out is None:
        return
    try:
        if out.is_symlink():
            raise RunFolderError(f"{out} is a link to another file; choose another --out")
        if out.exists() and not (mark is not None and out.is_file() and mark in _first_bytes(out)):
            reason = "" if mark is None else " and is not a result of this command"
            raise RunFolderError(f"{out} already exists{reason}; choose another --out")
    except OSError as error:
        raise RunFolderError(f"cannot write {out} ({error.strerror}); choose another --out") from None


def check_report_folder(folder: Path, report_file: str) -> None:
    """Raise ``RunFolderError`` unless a folder is new, empty, or contains an earlier report of the same kind."""
    if not (folder / report_file).is_file():
        check_output_folder(folder)


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MARKED_BYTES)


def _delete_stale_files(path: Path) -> None:
    """Delete the temporary files of processes that were killed while they wrote a file of this folder."""
    for stale_path in path.parent.glob(f".*.{_host_name()}-*{TEMPORARY_SUFFIX}"):
        process_id = stale_path.name.removesuffix(TEMPORARY_SUFFIX).rpartition("-")[2]
        if process_id.isdecimal() and not _is_alive(int(process_id)):
            with suppress(OSError):
                stale_path.unlink()


def _is_alive(process_id: int) -> bool:
    if os.name != "posix":
        # On Windows, os.kill would terminate the process.
        return True
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _host_name() -> str:
    """Return the name of this machine; process IDs are unique only within a machine."""
    return platform.node().replace("/", "").replace("[", "").replace("*", "")
