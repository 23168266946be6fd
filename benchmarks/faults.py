"""Attacks on files, processes and the command line: `python benchmarks/faults.py`; see `faults.md`."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers  # noqa: F401  (every attack forks from here, so that none has to import it)

from attacks import command_lines, kills, lies, machine, mutations
from lengthwise.core.provenance import now, provenance
from lengthwise.experiments.run_folder import append_rows

RESULTS = Path(__file__).parent / "results" / "faults.jsonl"
# Each with how many are made, all in a quarter of an hour on two cores; the longest first.
ATTACKS = {
    "kills": (kills.attack, 195),
    "commands": (command_lines.attack, 1000),
    "mutations": (mutations.attack, 480),
    "workers": (kills.attack_workers, 9),
    "lies": (lies.attack, 420),
    "disk": (machine.attack_disk, 44),
    "pairs": (machine.attack_pairs, 33),
    "rights": (machine.attack_rights, 44),
    "types": (command_lines.attack_types, 200),
}


def main() -> None:
    """Make all attacks, or those of some kinds, and write one row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(ATTACKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int)
    parser.add_argument("--jobs", type=int, default=2, help="kinds at once, each in a process of its own")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    if len(asked.kinds) == 1:
        sys.exit(make(asked.kinds[0], asked))
    started = time.monotonic()
    with ThreadPoolExecutor(asked.jobs) as pool:
        statuses = list(pool.map(partial(_in_process, rest=sys.argv[1:], kinds=asked.kinds), asked.kinds))
    print(f"{time.monotonic() - started:.0f} s for {len(statuses)} kinds of attacks")
    sys.exit(max(statuses))


def make(kind: str, asked: argparse.Namespace) -> int:
    """Make the attacks of one kind; return 1 when one of them found something."""
    torch.set_num_threads(1)
    attack, number = ATTACKS[kind]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        tally = attack(number if asked.number is None else asked.number, asked.seed, Path(scratch))
    counts = {"attacks": tally.number, "refused": tally.refused, "faults": len(tally.found)}
    row = {"kind": kind, "seed": asked.seed, **counts, "wall_s": round(time.monotonic() - started, 1)}
    print(row, flush=True)
    if asked.write:
        append_rows(RESULTS, [{**row, "found": tally.found, **provenance(), "time": now()}])
    return int(bool(tally.found))


def _in_process(kind: str, rest: Sequence[str], kinds: Sequence[str]) -> int:
    flags = [flag for flag in rest if flag not in kinds]
    return subprocess.run([sys.executable, __file__, kind, *flags], check=False).returncode


if __name__ == "__main__":
    main()
