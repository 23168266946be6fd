"""Measure the cost of exact sums over sets of tokens (window, chain, product), forward and backward, on one thread.

Each time is the smallest of several CPU times, which depend less on other processes than wall times. ``sets`` is the
number of sets of k tokens in a sequence, and ``summed`` is the number of sets in the sum. The limit applies to the
forward pass at the longest length. Additional rows contain the CPU time of an exact risk by the Laplace transfer
operator, and the wall time of ``lengthwise certify`` for every built-in task.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from math import comb
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from lengthwise.core.provenance import provenance
from lengthwise.experiments.run_folder import append_rows
from lengthwise.tasks import TASKS
from lengthwise.theory.attention.sparse_attention import SparseFunctionalAttention
from lengthwise.theory.risk.exact_risk import TotalVariation
from lengthwise.theory.risk.laplace_risk import laplace_risk
from support.random_instances import Sizes, random_instance

BATCH, TOKENS, OUTPUTS = 8, 8, 2
LENGTHS = (256, 1024, 4096)
STRUCTURES: dict[str, dict[str, Any]] = {
    "window": {"k": 3, "span": 9},
    "chain": {"k": 8, "span": 7 * 16 + 1, "max_gap": 16, "score": "chain", "value": "automaton"},
    "product": {"k": 8, "score": "product", "local": False, "value": "automaton"},
}
MAX_FORWARD_SECONDS = 0.15
# Sizes of a random law.
RISK_SIZES, MAX_RISK_SECONDS = Sizes(num_tokens=3, k=3, span=3, train_length=16, test_length=4096), 60.0
MAX_CERTIFY_SECONDS = 120.0
RESULTS = Path(__file__).parent / "results" / "theory_speed.jsonl"


def count_summed_sets(module: SparseFunctionalAttention, length: int) -> int:
    """Return the number of sets within the span and the largest gap."""
    if module.span is None:
        return comb(length, module.k)
    if module.score == "table":
        return sum(comb(min(last, module.span - 1), module.k - 1) for last in range(length))
    ending = [1] * length
    for _ in range(module.k - 1):
        ending = [sum(ending[max(0, last - (module.max_gap or length)) : last]) for last in range(length)]
    return sum(ending)


def measure_structure(name: str, length: int, repeats: int) -> dict[str, Any]:
    """Return the row of one structure and length."""
    torch.manual_seed(0)
    module = SparseFunctionalAttention(num_tokens=TOKENS, num_outputs=OUTPUTS, **STRUCTURES[name])
    tokens = torch.randint(0, TOKENS, (BATCH, length))
    forward, backward = [], []
    for _ in range(repeats):
        started = time.process_time()
        loss = -module(tokens)[:, 0].mean()
        forward_end = time.process_time()
        loss.backward()
        forward.append(forward_end - started)
        backward.append(time.process_time() - forward_end)
    return {
        "structure": name,
        "length": length,
        "batch": BATCH,
        "forward_cpu_s": round(min(forward), 4),
        "backward_cpu_s": round(min(backward), 4),
        "sets": float(comb(length, module.k)),
        "summed": float(count_summed_sets(module, length)),
        "within_bar": min(forward) <= MAX_FORWARD_SECONDS if length == LENGTHS[-1] else None,
    }


def measure_risk(length: int, repeats: int) -> dict[str, Any]:
    """Return the row of the exact risk of one head on one law."""
    instance = random_instance("mixed", RISK_SIZES, seed=0)
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        risk = laplace_risk(instance.law, instance.heads[0], length, TotalVariation())
        seconds.append(time.process_time() - started)
    return {
        "structure": "exact risk",
        "length": length,
        "risk": risk,
        "cpu_s": round(min(seconds), 4),
        "within_bar": min(seconds) <= MAX_RISK_SECONDS if length == LENGTHS[-1] else None,
    }


def measure_certificate(task: str) -> dict[str, Any]:
    """Return the row of one call of ``lengthwise certify``; ``refused`` contains its error message, or None."""
    started = time.perf_counter()
    process = subprocess.run(
        [sys.executable, "-m", "lengthwise", "certify", task, "--json"], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    return {
        "structure": "certify",
        "task": task,
        "refused": None if process.returncode == 0 else process.stderr.strip(),
        "wall_s": round(seconds, 1),
        "within_bar": seconds <= MAX_CERTIFY_SECONDS,
    }


def iter_rows(repeats: int, tasks: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all measurements."""
    for name in STRUCTURES:
        yield from (measure_structure(name, length, repeats) for length in LENGTHS)
    yield from (measure_risk(length, repeats) for length in LENGTHS)
    yield from map(measure_certificate, tasks)


def main() -> None:
    """Print and store one row per structure and length, and one row per task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="Run each part once without storing rows.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 1 if arguments.quick else arguments.repeats
    for row in iter_rows(repeats, list(TASKS)[:1] if arguments.quick else list(TASKS)):
        print(json.dumps(row), flush=True)
        if not arguments.quick:
            append_rows(arguments.out, [{**row, "provenance": provenance()}])


if __name__ == "__main__":
    main()
