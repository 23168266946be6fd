"""Try learning rates for the rows of the claim ``rivals`` on a tuning seed, until a row fits its training lengths."""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import lengthwise as lw
from lengthwise.evaluation.result_rows import FIT_THRESHOLD
from lengthwise.experiments.reproduction import import_claim

rivals = import_claim("rivals")
# Learning rates in the order in which they are tried.
LEARNING_RATES = {"copy": (3e-3, 1e-3, 6e-3), "parity": (1e-3, 3e-3, 3e-4)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the given rows of a task, and print the steps and the fit of every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=LEARNING_RATES)
    parser.add_argument("--rows", nargs="+", choices=rivals.RIVALS, default=list(rivals.RIVALS))
    parser.add_argument("--steps", type=int, help="number of steps instead of that of the task")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    for row in options.rows:
        for rate in LEARNING_RATES[options.task]:
            experiment = rivals.rival_experiments(options.task, {row: rate})[f"{options.task}, {row}"]
            if options.steps is not None:
                experiment = replace(experiment, training=replace(experiment.training, steps=options.steps))
            with tempfile.TemporaryDirectory() as folder:
                experiment = replace(experiment, seed=options.seed)
                run = lw.train(experiment, Path(folder) / "run", device="cpu", report=None)
            assert run is not None
            facts = f"{run.facts['steps']} steps, exact match {run.facts['fitted']:.3f}, {run.facts['train_s']:.0f} s"
            print(f"{options.task}, {row}, learning rate {rate:g}, seed {options.seed}: {facts}", flush=True)
            if run.facts["fitted"] >= FIT_THRESHOLD:
                break


if __name__ == "__main__":
    main()
