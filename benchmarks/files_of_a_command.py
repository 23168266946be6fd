"""Count the files and functions of the package that a command enters, as a measure of how much there is to read.

Run ``python benchmarks/files_of_a_command.py`` for the command in ``COMMAND``, or add another command line. Module
bodies, which every import runs, do not count: a file is entered if one of its functions is called.
"""

import argparse
import inspect
import shlex
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import lengthwise
from lengthwise.cli import app

PACKAGE = Path(lengthwise.__file__).parent
COMMAND = "train --task parity --scheme predicted --steps 4"


def functions_of(command: list[str]) -> set[tuple[str, str]]:
    """Run a command and return the file and the qualified name of each function of the package that it enters."""
    entered: set[tuple[str, str]] = set()
    prefix = f"{PACKAGE}/"

    def record(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        # Bodies of modules and classes run on import, and comprehensions are parts of functions.
        is_function = code.co_flags & inspect.CO_NEWLOCALS and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(prefix):
            entered.add((code.co_filename.removeprefix(prefix), code.co_qualname))

    threading.setprofile(record)
    sys.setprofile(record)
    try:
        app.main(command)
    except SystemExit as end:
        # A run of a few steps does not fit, which is exit status 1.
        if end.code not in (None, 0, 1):
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return entered


def main() -> None:
    """Print the number of files and functions and, with ``--all``, their names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", nargs="?", default=COMMAND, help="command line without the word lengthwise")
    parser.add_argument("--all", action="store_true", help="print each file with its functions")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        entered = functions_of([*shlex.split(options.command), "--out", f"{folder}/run"])
    files = {file for file, _ in entered}
    if options.all:
        for file in sorted(files):
            print(f"{file}: {', '.join(sorted(name for other, name in entered if other == file))}")
    print(f"{len(files)} files and {len(entered)} functions on Python {sysconfig.get_python_version()}")


if __name__ == "__main__":
    main()
