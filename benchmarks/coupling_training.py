"""Train PPC on found couplings of task files, and test it at 10 and 100 times the training length.

Every run writes a training file and a test file without couplings, finds the coupling, trains with the settings of
``--scheme discovered``, and evaluates exact match with the rule of the run. Finished rows are kept in
``results/coupling_training.jsonl``. ``--first-seed`` separates published seeds from tuning seeds.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.coupling_tasks import FILE_TASKS, Row

import lengthwise as lw
from lengthwise.core.provenance import collect_provenance
from lengthwise.core.randomness import random_stream
from lengthwise.experiments.run_folder import append_rows, read_rows
from lengthwise.tasks import Addition, JSONLTask, Parity, Task, VariableAssignment
from lengthwise.tasks.task import declared_given

RESULTS = Path(__file__).parent / "results" / "coupling_training.jsonl"
# Number of test rows of at most MEDIUM_LENGTH, and of longer rows.
NUM_TEST_ROWS, NUM_LONG_ROWS, MEDIUM_LENGTH = 64, 16, 100


@dataclass(frozen=True, kw_only=True)
class FileTask:
    """Rows of a task: lengths and rows per length of the training file, test lengths, and what the responses tell."""

    sample: Callable[[np.random.Generator, int], Row]
    train_lengths: Sequence[int] = range(2, 11)
    rows_per_length: int = 300
    test_lengths: Sequence[int] = (100, 1000)
    given: tuple[str, ...] = ()


def built_in(task: Task) -> Callable[[np.random.Generator, int], Row]:
    """Return a function that samples one row of a built-in task."""

    def sample(rng: np.random.Generator, length: int) -> Row:
        examples = task.sample(length=length, size=1, rng=rng)
        names = [task.vocabulary[token] for token in examples.tokens[0, : examples.response_end[0]].tolist()]
        prompt_length = int(examples.prompt_length[0])
        return names[:prompt_length], names[prompt_length:]

    return sample


TASKS = {
    "parity": FileTask(
        sample=built_in(Parity()),
        train_lengths=range(1, 21),
        rows_per_length=100,
        test_lengths=(200, 2000),
        given=declared_given(Parity()),
    ),
    "addition": FileTask(
        sample=built_in(Addition()), train_lengths=range(1, 11), rows_per_length=1000, test_lengths=(100, 400)
    ),
    "variable assignment": FileTask(
        sample=built_in(VariableAssignment(num_names=256)),
        train_lengths=range(2, 17),
        rows_per_length=500,
        test_lengths=(160,),
        given=declared_given(VariableAssignment()),
    ),
    **{name: FileTask(sample=sample) for name, sample in FILE_TASKS.items()},
    # The table has at most 40 keys.
    "look up in a table": FileTask(sample=FILE_TASKS["look up in a table"], test_lengths=(20, 39)),
}


def write_rows(path: Path, task: FileTask, lengths: Sequence[int], count: int, rng: np.random.Generator) -> None:
    """Write rows of the given lengths without a coupling."""
    with path.open("w", encoding="utf-8") as file:
        for length in lengths:
            for _ in range(count):
                prompt, response = task.sample(rng, length)
                file.write(json.dumps({"prompt": prompt, "response": response, "length": length}) + "\n")


def measure(name: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Find the coupling of a task's rows, train on it, and return one result row per test length."""
    torch.set_num_threads(1)
    task, train_file, test_file = TASKS[name], folder / "train.jsonl", folder / "test.jsonl"
    write_rows(train_file, task, task.train_lengths, task.rows_per_length, random_stream(seed, "training rows", name))
    write_rows(test_file, task, task.test_lengths, NUM_TEST_ROWS, random_stream(seed, "test rows", name))
    start = time.perf_counter()
    experiment = lw.experiment(str(train_file), "discovered")
    found = time.perf_counter()
    run = lw.train(replace(experiment, seed=seed), folder / "run", device="cpu")
    trained = time.perf_counter()
    assert run is not None
    loaded = lw.load_run(folder / "run", overrides={"task": JSONLTask(file=str(test_file))}, device="cpu")
    num_examples = tuple(NUM_TEST_ROWS if length <= MEDIUM_LENGTH else NUM_LONG_ROWS for length in task.test_lengths)
    rows = lw.evaluate(loaded, lw.EvaluationSettings(lengths=tuple(task.test_lengths), num_examples=num_examples))
    # A file declares nothing, but its responses can contain a scratchpad.
    rows = [{**row, "given": ", ".join((*task.given, row["given"]))} for row in rows]
    facts = {"find_s": round(found - start, 1), "train_s": round(trained - found, 1), "rule": experiment.scheme.rule}
    kept = ("length", "num_examples", "exact_match", "exact_tokens", "id_accuracy", "low", "high", "fitted", "given")
    return [{"task": name, "seed": seed, **{key: row[key] for key in kept}, **facts} for row in rows]


def main() -> None:
    """Measure all tasks and seeds that have no row yet, and print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--first-seed", type=int, default=9000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = {(row["task"], row["seed"]) for row in read_rows(arguments.out)} if arguments.out.exists() else set()
    for name in arguments.tasks:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            if (name, seed) not in done:
                with tempfile.TemporaryDirectory() as folder:
                    rows = measure(name, seed, Path(folder))
                append_rows(arguments.out, [{**row, "provenance": collect_provenance()} for row in rows])
                print(*rows, sep="\n", flush=True)


if __name__ == "__main__":
    main()
