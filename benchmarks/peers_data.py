"""Write examples of the tasks of randomized_positional_encodings as task files, with the generators of that project.

    git clone https://github.com/google-deepmind/randomized_positional_encodings checkout/randomized_positional_encodings
    PYTHONPATH=checkout python benchmarks/peers_data.py FOLDER      # needs jax and chex

FOLDER gets one pair of files per task, ``dm_NAME_train.jsonl`` (3 to 24 tokens) and ``dm_NAME_test.jsonl`` (24 and 240
tokens), for ``benchmarks/peers_tasks.py``. The script needs nothing of lengthwise.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

# Modules of the tasks, and the names of their classes.
TASKS = {
    "cs.binary_addition": "BinaryAddition",
    "cs.binary_multiplication": "BinaryMultiplication",
    "cs.bucket_sort": "BucketSort",
    "cs.compute_sqrt": "ComputeSqrt",
    "cs.duplicate_string": "DuplicateString",
    "cs.missing_duplicate_string": "MissingDuplicateString",
    "cs.odds_first": "OddsFirst",
    "dcf.modular_arithmetic_brackets": "ModularArithmeticBrackets",
    "dcf.reverse_string": "ReverseString",
    "dcf.solve_equation": "SolveEquation",
    "dcf.stack_manipulation": "StackManipulation",
    "regular.cycle_navigation": "CycleNavigation",
    "regular.even_pairs": "EvenPairs",
    "regular.modular_arithmetic": "ModularArithmetic",
    "regular.parity_check": "ParityCheck",
}
# Sizes of the vocabularies of tasks that take them as arguments, as in the experiments of the project.
VOCABULARY = {"BucketSort": 5, "DuplicateString": 2, "OddsFirst": 2, "ReverseString": 2}
SPLITS = {"train": ({length: 60 for length in range(3, 25)}, 0), "test": ({24: 24, 240: 24}, 1_000_000)}


def records(task: Any, counts: dict[int, int], seed: int) -> list[dict[str, list[str]]]:
    """Return distinct examples of each length; the tokens that the task does not grade are left out."""
    found = {}
    for length, count in counts.items():
        batch = task.sample_batch(jax.random.PRNGKey(seed + length), batch_size=count, length=length)
        output = np.asarray(batch["output"])
        mask = np.asarray(task.accuracy_mask(batch["output"])).astype(bool)
        prompts, answers = np.asarray(batch["input"]).argmax(-1), output.argmax(-1)
        if answers.ndim == 1:
            answers, mask = answers[:, None], np.ones((count, 1), dtype=bool)
        for prompt, answer, graded in zip(prompts, answers, mask, strict=True):
            symbols = {"prompt": [*map(str, prompt)], "response": [*map(str, answer[graded])]}
            found[tuple(symbols["prompt"])] = symbols
    return list(found.values())


def main() -> None:
    """Write the files of all tasks."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for module, name in TASKS.items():
        task_class = getattr(importlib.import_module(f"randomized_positional_encodings.tasks.{module}"), name)
        task = task_class(vocab_size=VOCABULARY[name]) if name in VOCABULARY else task_class()
        for split, (counts, seed) in SPLITS.items():
            lines = (json.dumps(record) + "\n" for record in records(task, counts, seed))
            (folder / f"dm_{module.partition('.')[2]}_{split}.jsonl").write_text("".join(lines), encoding="utf-8")
        print(module, flush=True)


if __name__ == "__main__":
    main()
