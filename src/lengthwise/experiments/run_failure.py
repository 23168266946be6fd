"""Record of the error that ended a run, for the commands that show the states of runs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lengthwise.core.errors import RunFolderError
from lengthwise.core.files import write_atomically

FAILURE = "failure.json"


@contextmanager
def record_failure(folder: Path) -> Iterator[None]:
    """Write the error that ends a run into its folder, and first delete the record of an earlier error."""
    (folder / FAILURE).unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        record = {"error": type(error).__name__, "message": str(error)}
        # If the folder is not writable, the error itself is more important than its record.
        with suppress(RunFolderError):
            write_atomically(folder / FAILURE, json.dumps(record).encode() + b"\n")
        raise
