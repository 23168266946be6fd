"""The rows of a study on disk: added in blocks, each with its digest, and used again only as they were written."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError

ROWS, DIGESTS = "influence.jsonl", "influence.sha256"


def add_block(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add the rows of a block, then their digest: what is killed in between leaves rows without one."""
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    for name, added in ((ROWS, content), (DIGESTS, _line(content))):
        with (folder / name).open("ab") as file:
            file.write(added)
            file.flush()
            os.fsync(file.fileno())


def whole_blocks(folder: Path, size: int, num_rows: int) -> list[bytes]:
    """Return the blocks of ``size`` rows that are complete, the last of ``num_rows`` may be smaller.

    What a killed process left of a block is not among them. ``RunFolderError`` for rows that are not those whose
    digests were written.
    """
    blocks: list[bytes] = []
    digests = _read(folder / DIGESTS).splitlines(keepends=True)
    lines = iter(_read(folder / ROWS).splitlines(keepends=True))
    for digest in digests if digests and digests[-1].endswith(b"\n") else digests[:-1]:
        block = list(islice(lines, size))
        blocks.append(b"".join(block))
        whole = len(block) == size or (len(blocks) - 1) * size + len(block) == num_rows
        if not whole or _line(blocks[-1]) != digest:
            raise _changed(folder, len(blocks))
    if sum(line.endswith(b"\n") for line in lines) > size:
        raise _changed(folder, len(blocks) + 2)
    return blocks


def cut_to(folder: Path, blocks: Sequence[bytes]) -> None:
    """Cut off what a killed process left behind the complete blocks."""
    for name, length in ((ROWS, sum(map(len, blocks))), (DIGESTS, sum(len(_line(block)) for block in blocks))):
        if (folder / name).exists():
            os.truncate(folder / name, length)


def digests_of(blocks: Sequence[bytes]) -> bytes:
    """Return the file of digests that belongs to these blocks."""
    return b"".join(map(_line, blocks))


def _line(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _changed(folder: Path, block: int) -> RunFolderError:
    return RunFolderError(
        f"{folder / ROWS} is not what was measured (block {block} of its rows differs from {DIGESTS}); "
        "measure into another --out"
    )
