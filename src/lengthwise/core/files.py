"""Files and folders that are whole or not there, and no leftovers of writes that failed."""

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from lengthwise.core.errors import RunFolderError
from lengthwise.core.folder_lock import exclusive_lock

# Public functions accept a path as str or Path.
StrPath = str | os.PathLike[str]
UNFINISHED = ".unfinished"


def write_atomically(path: Path, content: bytes) -> None:
    """Write beside the target, then rename: a reader sees the old file or the new one, never a part."""
    beside = path.with_name(f".{path.name}.{_host()}-{os.getpid()}{UNFINISHED}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _delete_leftovers(path)
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise RunFolderError(f"cannot write {path} ({error.strerror}); choose a folder that can be written") from None
    finally:
        with suppress(OSError):
            beside.unlink()


@contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Yield a folder beside ``out`` that takes its place at the end, and is deleted when the work fails.

    ``RunFolderError`` when ``out`` holds something, when another process is making it, or when it cannot be written.
    """
    out = out.absolute()
    check_output_folder(out)
    unfinished = out.with_name(f".{out.name}{UNFINISHED}")
    with exclusive_lock(unfinished):
        try:
            unfinished.mkdir(parents=True, exist_ok=True)
            # What a killed process left. The folder itself stays: it is what is locked.
            for left in unfinished.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield unfinished
            check_output_folder(out)
            unfinished.replace(out)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            why = getattr(error, "strerror", None) or error
            raise RunFolderError(f"cannot write {out} ({why}); choose a folder that can be written") from None
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def check_output_folder(out: Path) -> None:
    """``RunFolderError`` unless nothing, or an empty folder, is at ``out``."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise RunFolderError(f"{out} exists already; choose another --out")


def _delete_leftovers(path: Path) -> None:
    """Delete what processes that were killed while they wrote this file have left of it."""
    for left in path.parent.glob(f".{path.name}.{_host()}-*{UNFINISHED}"):
        process = left.name.removesuffix(UNFINISHED).rpartition("-")[2]
        if process.isdecimal() and not _is_alive(int(process)):
            with suppress(OSError):
                left.unlink()


def _is_alive(process: int) -> bool:
    if os.name != "posix":
        # There, asking would end it.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _host() -> str:
    """The machine whose process numbers these are: a folder may be shared with others."""
    return platform.node().replace("/", "").replace("[", "").replace("*", "")
