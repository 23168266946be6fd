"""Compare PPC on couplings written by hand with PPC on found couplings, for built-in tasks.

``by hand``: the recipe of the task, whose coupling gives the IDs of training examples and test prompts. ``found``:
the scheme ``discovered``, whose rule is found in examples of the task; its prompts count 1, 2, 3, ... Both train on the
same lengths. Finished rows are kept in ``results/pointer_form.jsonl``.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.experiments.run_folder import append_rows, read_rows

RESULTS = Path(__file__).parent / "results" / "pointer_form.jsonl"
# Test lengths and examples per length.
TASKS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "parity": ((20, 200, 2000), (256, 64, 16)),
    "copy": ((20, 200, 1000), (256, 64, 16)),
    "reverse": ((20, 200, 1000), (256, 64, 16)),
    "addition": ((10, 100, 1000), (256, 64, 16)),
    "variable_assignment": ((16, 160, 1600), (256, 64, 16)),
}
# Numbers of IDs for prompts that count every token; a coupling by hand gives several tokens the same ID.
NUM_POSITION_IDS = {"addition": 4096, "variable_assignment": 8192}
FORMS = {"by hand": "predicted", "found": "discovered"}


def measure(name: str, form: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Train one form on a task, and return one result row per test length."""
    torch.set_num_threads(1)
    lengths, num_examples = TASKS[name]
    start = time.perf_counter()
    experiment = replace(lw.experiment(name, FORMS[form]), seed=seed)
    if form == "found" and name in NUM_POSITION_IDS:
        scheme = replace(experiment.scheme, num_position_ids=NUM_POSITION_IDS[name])
        experiment = replace(experiment, scheme=scheme)
    found = time.perf_counter()
    run = lw.train(experiment, folder / "run", device="cpu")
    trained = time.perf_counter()
    assert run is not None
    settings = replace(experiment.evaluation, lengths=lengths, num_examples=num_examples)
    kept = ("length", "variant", "num_examples", "exact_match", "exact_tokens", "low", "high", "fitted", "given")
    facts = {"task": name, "form": form, "seed": seed, "train_lengths": experiment.train_lengths}
    seconds = {"find_s": round(found - start, 1), "train_s": round(trained - found, 1), "steps": run.facts["steps"]}
    return [{**facts, **{key: row[key] for key in kept if key in row}, **seconds} for row in lw.evaluate(run, settings)]


def main() -> None:
    """Measure all tasks, forms and seeds that have no row yet, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"one of {', '.join(TASKS)}")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--first-seed", type=int, default=9200)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    for name in arguments.tasks or TASKS:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            for form in arguments.forms:
                # Read again, because another process can measure other tasks at the same time.
                done = read_rows(arguments.out) if arguments.out.exists() else []
                if (name, form, seed) in {(row["task"], row["form"], row["seed"]) for row in done}:
                    continue
                with TemporaryDirectory() as folder:
                    rows = measure(name, form, seed, Path(folder))
                append_rows(arguments.out, [{**row, "provenance": collect_provenance()} for row in rows])
                print(*rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
