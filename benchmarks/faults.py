"""Run attacks on files, processes and the command line with ``python benchmarks/faults.py``; see faults.md."""

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
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers  # noqa: F401  (imported before the forks, so that no attack has to import it)
from tests.attacks import combinations, command_lines, doors, kills, launches, lies, machine, mutations

from lengthwise.core.provenance import collect_provenance, utc_timestamp
from lengthwise.experiments.run_folder import append_rows

RESULTS = Path(__file__).parent / "results" / "faults.jsonl"
# Number of attacks per kind, the longest kind first: all kinds take less than half an hour on two cores.
ATTACKS = {
    "ray": (partial(launches.attack, "ray"), 50),
    "commands": (command_lines.attack, 1000),
    "settings": (doors.attack_settings, 500),
    "sweep": (partial(launches.attack, "sweep"), 60),
    "kills": (kills.attack, 195),
    "views": (doors.attack_views, 700),
    "pages": (combinations.attack_pages, 80),
    "laws": (combinations.attack_laws, 400),
    "archives": (doors.attack_archives, 66),
    "mutations": (mutations.attack, 480),
    "streams": (doors.attack_streams, 450),
    "workers": (partial(launches.attack, "workers"), 20),
    "lies": (lies.attack, 420),
    "together": (partial(launches.attack, "together"), 90),
    "models": (doors.attack_models, 600),
    "tables": (doors.attack_tables, 250),
    "extensions": (combinations.attack_extensions, 300),
    "disk": (machine.attack_disk, 44),
    "gguf": (doors.attack_gguf, 300),
    "pairs": (machine.attack_pairs, 33),
    "two commands": (combinations.attack_together, 40),
    "types": (command_lines.attack_types, 200),
    "clocks": (combinations.attack_clocks, 40),
    "trackers": (combinations.attack_trackers, 60),
    "rights": (machine.attack_rights, 44),
    "addresses": (combinations.attack_ray, 20),
}


def main() -> None:
    """Run all attacks, or the attacks of some kinds; ``--write`` saves one row per kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=list(ATTACKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, help="number of attacks per kind")
    parser.add_argument("--jobs", type=int, default=3, help="number of parallel processes, one kind per process")
    parser.add_argument("--write", action="store_true", help="append the rows to results/faults.jsonl")
    options = parser.parse_args()
    if len(options.kinds) == 1:
        sys.exit(attack_kind(options.kinds[0], options))
    started = time.monotonic()
    with ThreadPoolExecutor(options.jobs) as pool:
        statuses = list(pool.map(partial(_run_in_process, arguments=sys.argv[1:], kinds=options.kinds), options.kinds))
    print(f"{time.monotonic() - started:.0f} s for {len(statuses)} kinds of attacks")
    sys.exit(max(statuses))


def attack_kind(kind: str, options: argparse.Namespace) -> int:
    """Run the attacks of one kind; return 1 if any attack reveals a fault."""
    torch.set_num_threads(1)
    attack, number = ATTACKS[kind]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tally = attack(number if options.number is None else options.number, options.seed, Path(folder))
    counts = {"attacks": tally.number, "refused": tally.errors, "faults": len(tally.faults)}
    row = {"kind": kind, "seed": options.seed, **counts, "wall_s": round(time.monotonic() - started, 1)}
    print(row, flush=True)
    if options.write:
        append_rows(RESULTS, [{**row, "found": tally.faults, **collect_provenance(), "time": utc_timestamp()}])
    return int(bool(tally.faults))


def _run_in_process(kind: str, arguments: Sequence[str], kinds: Sequence[str]) -> int:
    flags = [flag for flag in arguments if flag not in kinds]
    return subprocess.run([sys.executable, __file__, kind, *flags], check=False).returncode


if __name__ == "__main__":
    main()
