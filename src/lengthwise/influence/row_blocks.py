"""Files of the rows of a study: rows are appended in blocks, each with its digest."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError

ROWS, DIGESTS = "influence.jsonl", "influence.sha256"


def append_block(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append the rows of a block, then their digest: a process killed in between leaves rows without a digest."""
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    for name, addition in ((ROWS, content), (DIGESTS, _digest_line(content))):
        with (folder / name).open("ab") as file:
            file.write(addition)
            file.flush()
            os.fsync(file.fileno())


def complete_blocks(folder: Path, size: int, num_rows: int) -> list[bytes]:
    """Return the complete blocks of ``size`` rows; the last block of ``num_rows`` rows may be smaller.

    Leaves out a block that a killed process did not complete. Raises ``RunFolderError`` if rows do not match their
    digests.
    """
    blocks: list[bytes] = []
    digests = _read(folder / DIGESTS).splitlines(keepends=True)
    lines = iter(_read(folder / ROWS).splitlines(keepends=True))
    for digest in digests if digests and digests[-1].endswith(b"\n") else digests[:-1]:
        block = list(islice(lines, size))
        blocks.append(b"".join(block))
        complete = len(block) == size or (len(blocks) - 1) * size + len(block) == num_rows
        if not complete or _digest_line(blocks[-1]) != digest:
            raise _mismatch(folder, len(blocks))
    if sum(line.endswith(b"\n") for line in lines) > size:
        raise _mismatch(folder, len(blocks) + 2)
    return blocks


def truncate_to(folder: Path, blocks: Sequence[bytes]) -> None:
    """Remove everything after the complete blocks from both files."""
    for name, length in ((ROWS, sum(map(len, blocks))), (DIGESTS, len(digest_lines(blocks)))):
        if (folder / name).exists():
            os.truncate(folder / name, length)


def digest_lines(blocks: Sequence[bytes]) -> bytes:
    """Return the content of the digest file for these blocks."""
    return b"".join(map(_digest_line, blocks))


def _digest_line(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _mismatch(folder: Path, block: int) -> RunFolderError:
    return RunFolderError(
        f"{folder / ROWS} was changed after it was written (block {block} does not match {DIGESTS}); "
        "choose another --out"
    )
