"""Files that store the rows of a study in blocks, with a digest for each block."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from lengthwise.core.errors import RunFolderError
from lengthwise.core.files import read_file

ROWS_FILE, DIGESTS_FILE = "influence.jsonl", "influence.sha256"


def append_block(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append the rows of a block, then their digest. If the process is killed in between, the rows have no digest."""
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    for name, data in ((ROWS_FILE, content), (DIGESTS_FILE, _digest_line(content))):
        with (folder / name).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def complete_blocks(folder: Path, size: int, num_rows: int) -> list[bytes]:
    """Return the complete blocks of ``size`` rows. The last of ``num_rows`` rows may form a smaller block.

    The incomplete last block of an interrupted study is omitted. Raises ``RunFolderError`` if rows do not match their
    digests.
    """
    blocks: list[bytes] = []
    digests = _read_bytes(folder / DIGESTS_FILE).splitlines(keepends=True)
    remaining_rows = iter(_read_bytes(folder / ROWS_FILE).splitlines(keepends=True))
    for digest in digests if digests and digests[-1].endswith(b"\n") else digests[:-1]:
        block = list(islice(remaining_rows, size))
        blocks.append(b"".join(block))
        is_complete = len(block) == size or (len(blocks) - 1) * size + len(block) == num_rows
        if not is_complete or _digest_line(blocks[-1]) != digest:
            raise _mismatch_error(folder, len(blocks))
    if sum(row_line.endswith(b"\n") for row_line in remaining_rows) > size:
        raise _mismatch_error(folder, len(blocks) + 2)
    return blocks


def truncate_to(folder: Path, blocks: Sequence[bytes]) -> None:
    """Remove everything after the complete blocks from both files."""
    for name, num_bytes in ((ROWS_FILE, sum(map(len, blocks))), (DIGESTS_FILE, len(digest_lines(blocks)))):
        if (folder / name).exists():
            os.truncate(folder / name, num_bytes)


def digest_lines(blocks: Sequence[bytes]) -> bytes:
    """Return the content of the digest file for these blocks."""
    return b"".join(map(_digest_line, blocks))


def _digest_line(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode() + b"\n"


def _read_bytes(path: Path) -> bytes:
    return read_file(path) if path.exists() else b""


def _mismatch_error(folder: Path, block_number: int) -> RunFolderError:
    return RunFolderError(
        f"{folder / ROWS_FILE} was changed after it was written (block {block_number} does not match {DIGESTS_FILE}); "
        "choose another --out"
    )
