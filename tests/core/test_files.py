"""Files that are written as a whole or not at all."""

import os
import subprocess
import sys

from lengthwise.core import files


def test_a_write_deletes_the_unfinished_files_of_killed_processes_in_its_folder(tmp_path):
    code = "import os; print(os.getpid())"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    host = files._host_name()
    stale = [tmp_path / f".{name}.{host}-{dead}.unfinished" for name in ("step-60", "step-61")]
    kept = [tmp_path / f".step-62.{host}-{os.getppid()}.unfinished", tmp_path / f".step-62.other-{dead}.unfinished"]
    for path in (*stale, *kept):
        path.write_bytes(b"half")
    files.write_atomically(tmp_path / "step-60", b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / "step-60"])
