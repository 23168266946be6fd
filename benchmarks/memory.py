"""Measure the memory of every command of README and docs: peak of the largest process, in MiB.

``python benchmarks/memory.py`` runs the commands page by page, as a reader would type them, with the files that the
page tells the reader to write. The model and texts of the reader are small (see ``tests/support/text_models.py``).
Each command is a process of its own; one that takes longer than ``--limit`` seconds is interrupted, and its row says
so. Its training is then repeated with two steps to the end, because evaluation comes after it. A run that several
pages train with the same command is trained once. The rows are written to ``results/memory.jsonl``; ``--table``
prints them as a table.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.project.test_documents import DOCS, README, blocks, commands_of, with_texts, write_texts

from lengthwise.core.provenance import collect_provenance, utc_timestamp
from lengthwise.experiments.run_folder import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "memory.jsonl"
# A command that takes more must say so beforehand.
LIMIT_MIB = 2048
PAGES = ("README", *(name for name, text in DOCS.items() if commands_of(text)))
# Names of files that a page shows as a block, by page and language.
FILES = {
    ("sweep", "json"): ("sweep.json",),
    ("sweep", "python"): ("widths.py",),
    ("train", "toml"): ("settings.toml",),
    ("couple", "python"): ("rows.py",),
    ("own_file", "python"): ("rows.py",),
    ("your_own", "python"): ("rows.py", "example.py", "my_tasks.py", "mine.py"),
}


def prepare(page: str, folder: Path) -> None:
    """Write the files that the commands of a page need."""
    with_texts(folder)
    write_texts(folder, library="py", manual="md")
    text = DOCS.get(page, README)
    for (name, language), files in FILES.items():
        if name == page:
            for file, block in zip(files, blocks(language, text), strict=False):
                (folder / file).write_text(block, encoding="utf-8")
    if (folder / "rows.py").exists():
        subprocess.run([sys.executable, "rows.py"], cwd=folder, check=True, capture_output=True)


def measure(command: str, folder: Path, limit_s: float) -> dict[str, Any]:
    """Run a command and return its row."""
    line = [sys.executable, "-m", "lengthwise", *shlex.split(command)[1:]]
    started = time.monotonic()
    process = subprocess.Popen(line, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak, interrupted = 0.0, False
    while process.poll() is None:
        peak = max(peak, _largest_mib(process.pid))
        if not interrupted and time.monotonic() - started > limit_s:
            process.terminate()
            interrupted = True
        time.sleep(0.02)
    error = process.stderr.read().decode(errors="replace") if process.stderr else ""
    return {
        "command": command,
        "peak_mib": round(peak),
        "wall_s": round(time.monotonic() - started, 1),
        "status": process.returncode,
        "interrupted": interrupted,
        **({"error": error.strip().splitlines()[-1][:200]} if process.returncode == 2 else {}),
    }


def _largest_mib(process: int) -> float:
    """Return the peak of the largest process among this one and its descendants."""
    peaks, waiting = [0.0], [process]
    while waiting:
        each = waiting.pop()
        try:
            status = Path(f"/proc/{each}/status").read_text(encoding="utf-8")
            children = Path(f"/proc/{each}/task/{each}/children").read_text(encoding="utf-8")
        except OSError:
            continue
        waiting += map(int, children.split())
        if found := re.search(r"VmHWM:\s+(\d+) kB", status):
            peaks.append(int(found[1]) / 1024)
    return max(peaks)


def newest_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest row of each command that a page still shows, without commands that were refused."""
    shown = {(page, command) for page in PAGES for command in commands_of(DOCS.get(page, README))}
    newest = {(row["page"], row["command"]): row for row in rows}
    return [row for key, row in newest.items() if key in shown and row["status"] != 2]


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the newest rows as a Markdown table, the largest first."""
    print("| command | page | MiB | seconds |\n|---|---|---|---|")
    for row in sorted(newest_rows(rows), key=peak_mib, reverse=True):
        end = "" if not ended(row) else f"; with two steps to the end: {_last_part(row)['wall_s']}"
        wall = f"{row['wall_s']} (interrupted{end})" if row["interrupted"] else row["wall_s"]
        print(f"| `{row['command']}` | {row['page']} | {peak_mib(row):,} | {wall} |")


def peak_mib(row: dict[str, Any]) -> int:
    """Return the peak of a command; that of an interrupted run includes the short run to its end."""
    return max(row["peak_mib"], _last_part(row)["peak_mib"])


def ended(row: dict[str, Any]) -> bool:
    """Return True if the command reached its end, at least with two training steps."""
    return not _last_part(row)["interrupted"]


def _last_part(row: dict[str, Any]) -> dict[str, Any]:
    """Return the short run to the end, if there is one, or the row itself."""
    return row.get("finished") or row


def main() -> None:
    """Measure the commands of all pages, or of some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", default=PAGES)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds per command")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        print_table(read_rows(RESULTS))
        return
    os.environ |= {"HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as kept:
        for page in options.pages:
            with tempfile.TemporaryDirectory() as name:
                prepare(page, Path(name))
                for command in commands_of(DOCS.get(page, README)):
                    if not reuse(command, Path(name), Path(kept)):
                        row = {"page": page, **measure(command, Path(name), options.limit)}
                        if row["interrupted"]:
                            row["finished"] = finish(command, Path(name), options.limit)
                        print(json.dumps(row), flush=True)
                        append_rows(RESULTS, [{**row, **collect_provenance(), "time": utc_timestamp()}])
                        keep(command, Path(name), Path(kept))


def split_out(command: str) -> tuple[str, str | None]:
    """Return a command without its ``--out`` and the value of that."""
    rest, _, out = command.partition(" --out ")
    return (rest, out) if out and " " not in out else (command, None)


def finish(command: str, folder: Path, limit_s: float) -> dict[str, Any]:
    """Train an interrupted run again, for two steps; return its row, which includes the evaluation at the end."""
    _, out = split_out(command)
    if out is None or not command.startswith(("lengthwise train ", "lengthwise compare ")):
        return {}
    shutil.rmtree(folder / out)
    return measure(f"{command} --steps 2", folder, limit_s)


def keep(command: str, folder: Path, kept: Path) -> None:
    """Keep the run of a built-in task, because other pages train it with the same command."""
    rest, out = split_out(command)
    if rest.startswith("lengthwise train --task ") and out and (folder / out).is_dir():
        shutil.copytree(folder / out, kept / _name(rest), dirs_exist_ok=True)


def reuse(command: str, folder: Path, kept: Path) -> bool:
    """Copy the run of an earlier page with the same command; return False if no page has trained it."""
    rest, out = split_out(command)
    if out is None or "jsonl" in rest or ":" in rest or "corpus" in rest or not (kept / _name(rest)).is_dir():
        return False
    shutil.copytree(kept / _name(rest), folder / out)
    return True


def _name(command: str) -> str:
    return re.sub(r"\W+", "_", command)


if __name__ == "__main__":
    main()
