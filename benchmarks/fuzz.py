"""Fuzz the readers of files and prompts with a million inputs; see faults.md for the results.

Hypothesis samples inputs at random. ``--engine atheris`` uses a coverage-guided fuzzer, which must be installed
(``pip install -c constraints.txt -e '.[fuzz]'``).
"""

import argparse
import math
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1"}
sys.path.insert(0, str(Path(__file__).parents[1]))

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.attacks.inputs import READERS, input_of, raises_error

from lengthwise.core.provenance import collect_provenance, utc_timestamp
from lengthwise.experiments.run_folder import append_rows

RESULTS = Path(__file__).parent / "results" / "fuzz.jsonl"
ATHERIS = Path(__file__).with_name("fuzz_atheris.py")
# Hypothesis stores the inputs of a round in memory.
INPUTS_PER_ROUND = 5000
BYTE_SIZES = {"min_size": 60, "max_size": 120}
MEMORY_MIB = 2048
HANG_SECONDS = 5


def run_hypothesis(name: str, num_inputs: int, first_seed: int) -> dict[str, Any]:
    """Run a reader on random inputs; the first fault raises an error."""
    reader, counts, slowest = READERS[name], Counter[bool](), 0.0

    def try_input(choices: bytes) -> None:
        nonlocal slowest
        content, started = input_of(reader, choices), time.perf_counter()
        counts[raises_error(reader, content)] += 1
        slowest = max(slowest, time.perf_counter() - started)

    for number in range(math.ceil(num_inputs / INPUTS_PER_ROUND)):
        limits = settings(
            max_examples=min(INPUTS_PER_ROUND, num_inputs - number * INPUTS_PER_ROUND),
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        seed(first_seed + number)(limits(given(st.binary(**BYTE_SIZES))(try_input)))()
    assert slowest < HANG_SECONDS, f"{name} took {slowest:.1f} s for one input; the limit is {HANG_SECONDS} s"
    return {"inputs": counts.total(), "refused": counts[True], "slowest_s": round(slowest, 4)}


def run_atheris(name: str, num_inputs: int, first_seed: int) -> dict[str, Any]:
    """Run a reader in a separate process, which stops at the first fault."""
    flags = [
        f"-runs={num_inputs}",
        f"-seed={first_seed + 1}",
        "-max_len=200",
        "-len_control=0",
        f"-timeout={HANG_SECONDS}",
    ]
    command = [sys.executable, str(ATHERIS), name, *flags, f"-rss_limit_mb={MEMORY_MIB}", "-print_final_stats=1"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    stats = dict(line.removeprefix("stat::").split(":") for line in process.stderr.splitlines() if "stat::" in line)
    if process.returncode:
        raise SystemExit(f"{name}: atheris ended with {process.returncode}: {process.stderr[-3000:]}")
    return {"inputs": int(stats["number_of_executed_units"]), "slowest_s": float(stats["slowest_unit_time_sec"])}


def main() -> None:
    """Run all readers; ``--write`` saves one row per reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", default=list(READERS))
    parser.add_argument("--engine", choices=["hypothesis", "atheris"], default="hypothesis")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="total number of inputs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="append the rows to results/fuzz.jsonl")
    options = parser.parse_args()
    for name in options.readers:
        started = time.monotonic()
        num_inputs = math.ceil(options.inputs / len(options.readers))
        run_reader = run_hypothesis if options.engine == "hypothesis" else run_atheris
        counts = run_reader(name, num_inputs, options.seed)
        process = resource.RUSAGE_SELF if options.engine == "hypothesis" else resource.RUSAGE_CHILDREN
        peak = resource.getrusage(process).ru_maxrss / 1024
        wall_s = round(time.monotonic() - started, 1)
        row = {"reader": name, "engine": options.engine, "seed": options.seed, **counts, "peak_mib": round(peak)}
        print({**row, "wall_s": wall_s}, flush=True)
        assert peak < MEMORY_MIB, f"{name} used {peak:.0f} MiB; the limit is {MEMORY_MIB} MiB"
        if options.write:
            append_rows(RESULTS, [{**row, "wall_s": wall_s, **collect_provenance(), "time": utc_timestamp()}])


if __name__ == "__main__":
    main()
