"""Attacks on files, processes and the command line: `python benchmarks/faults.py`; see `faults.md`."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers  # noqa: F401  (every attack forks from here, so that none has to import it)

from attacks import command_lines, kills, lies, machine, mutations
from lengthwise.folder import append_rows
from lengthwise.provenance import now, provenance

RESULTS = Path(__file__).parent / "results" / "faults.jsonl"
# Each with how many are made, all in a quarter of an hour.
ATTACKS = {
    "kills": (kills.attack, 204),
    "workers": (kills.attack_workers, 12),
    "mutations": (mutations.attack, 480),
    "lies": (lies.attack, 420),
    "disk": (machine.attack_disk, 40),
    "rights": (machine.attack_rights, 40),
    "pairs": (machine.attack_pairs, 40),
    "commands": (command_lines.attack, 1000),
    "types": (command_lines.attack_types, 200),
}


def main() -> None:
    """Make all attacks, or those of some kinds, and write one row for each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(ATTACKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for kind in asked.kinds:
        attack, number = ATTACKS[kind]
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            tally = attack(number if asked.number is None else asked.number, asked.seed, Path(scratch))
        counts = {"attacks": tally.number, "refused": tally.refused, "faults": len(tally.found)}
        row = {"kind": kind, "seed": asked.seed, **counts, "seconds": round(time.monotonic() - started, 1)}
        print(row, flush=True)
        if asked.write:
            append_rows(RESULTS, [{**row, "found": tally.found, **provenance(), "time": now()}])
        failed |= bool(tally.found)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
