"""Measure the time to a solution: seconds of a process until its model solves 10 and 100 times the training length.

    python benchmarks/speedrun.py --change "oneDNN for large products"

Each task runs in a new process: import, training with the recipe, then evaluation with fresh examples. The seconds to
``n`` times the length count until this evaluation ends. A record counts only if exact match is at least ``MIN_EXACT``.
The rows go to ``results/speedrun.jsonl``, the history of ``speedrun.md``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance

RESULTS = Path(__file__).parent / "results" / "speedrun.jsonl"
TASKS = ("parity", "copy", "addition", "variable_assignment")
MIN_EXACT = 0.99
# Factor of the training length, and the number of examples.
EVALUATIONS = ((10, 256), (100, 32))


def solve(recipe: str, seed: int, started: float) -> dict[str, Any]:
    """Train a recipe and evaluate it; ``started`` is the time at which the process started, in seconds."""
    experiment = replace(lw.recipe(recipe), seed=seed)
    row: dict[str, Any] = {"recipe": recipe, "seed": seed}
    with TemporaryDirectory() as folder:
        run = lw.train(experiment, Path(folder) / "run", device="cpu")
        assert run is not None
        row |= {"trained_s": round(time.time() - started, 2), "steps": run.facts["steps"]}
        for factor, num_examples in EVALUATIONS:
            length = factor * experiment.train_lengths[1]
            settings = lw.EvaluationSettings(lengths=(length,), num_examples=(num_examples,), seed=seed)
            (result,) = lw.evaluate(run, settings)
            row[f"exact_{factor}x"] = result["exact_match"]
            row[f"seconds_{factor}x"] = round(time.time() - started, 2)
    used = sum(os.times()[:2])
    return {**row, "cpu_s": round(used, 2), "solved": _is_solved(row), **collect_provenance()}


def _is_solved(row: dict[str, Any]) -> bool:
    return all(row[f"exact_{factor}x"] >= MIN_EXACT for factor, _ in EVALUATIONS)


def main() -> None:
    """Measure each task with each seed in its own process, and append the rows to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(TASKS))
    parser.add_argument("--first-seed", type=int, default=9940)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--change", default="", help="What changed since the last record.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(solve(options.recipes[0], options.first_seed, float(os.environ["SPEEDRUN_STARTED"]))))
        return
    for recipe in options.recipes:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            command = [sys.executable, __file__, recipe, "--first-seed", str(seed), "--child"]
            environment = {**os.environ, "SPEEDRUN_STARTED": str(time.time())}
            process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            row = {**json.loads(process.stdout.splitlines()[-1]), "change": options.change}
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                {key: row[key] for key in row if key in ("recipe", "seed", "solved") or key[:5] in ("secon", "exact")}
            )


if __name__ == "__main__":
    main()
