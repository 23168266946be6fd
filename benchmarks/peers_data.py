"""Write examples of the tasks of two other projects as task files, with the generators of these projects.

    git clone https://github.com/HanseulJo/position-coupling peers/position_coupling
    git clone https://github.com/google-deepmind/randomized_positional_encodings peers/randomized_positional_encodings
    PYTHONPATH=peers/position_coupling python benchmarks/peers_data.py hj FOLDER   # needs torch and tqdm
    PYTHONPATH=peers python benchmarks/peers_data.py dm FOLDER                     # needs jax, chex, dm-tree and tqdm

FOLDER gets a pair of files per task, ``NAME_train.jsonl`` with short and ``NAME_test.jsonl`` with ten times longer
examples, for ``benchmarks/peers_tasks.py``. The script needs nothing of lengthwise.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

# Lengths of the training and test examples, the number of examples per length, and the seed of the examples.
SPLITS = {"train": (range(3, 25), 60, 0), "test": ((24, 240), 24, 1_000_000)}
# Modules of randomized_positional_encodings, with the class of the task and the size of its vocabulary, if it has one.
DM_TASKS: dict[str, tuple[str, int | None]] = {
    "cs.binary_addition": ("BinaryAddition", None),
    "cs.binary_multiplication": ("BinaryMultiplication", None),
    "cs.bucket_sort": ("BucketSort", 5),
    "cs.compute_sqrt": ("ComputeSqrt", None),
    "cs.duplicate_string": ("DuplicateString", 2),
    "cs.missing_duplicate_string": ("MissingDuplicateString", None),
    "cs.odds_first": ("OddsFirst", 2),
    "dcf.modular_arithmetic_brackets": ("ModularArithmeticBrackets", None),
    "dcf.reverse_string": ("ReverseString", 2),
    "dcf.solve_equation": ("SolveEquation", None),
    "dcf.stack_manipulation": ("StackManipulation", None),
    "regular.cycle_navigation": ("CycleNavigation", None),
    "regular.even_pairs": ("EvenPairs", None),
    "regular.modular_arithmetic": ("ModularArithmetic", None),
    "regular.parity_check": ("ParityCheck", None),
}
HJ_PADDED = {"padding": True, "pad_token": "0"}
# Data sets of position-coupling: module, class, arguments, and the largest number of digits in training.
HJ_TASKS: dict[str, tuple[str, str, Mapping[str, Any], int]] = {
    "add_nopad_plain": ("addition", "AdditionDataset", {}, 20),
    "add_nopad_revout": ("addition", "AdditionDataset", {"reverse_output": True}, 20),
    "add_pad_plain": ("addition", "AdditionDataset", HJ_PADDED, 20),
    "add_pad_revout": ("addition", "AdditionDataset", HJ_PADDED | {"reverse_output": True}, 20),
    "add_three": ("addition", "MultipleAdditionDataset", {}, 10),
    "copy": ("copy", "CopyDataset", {}, 20),
    "mult_Nx1": ("multiplication", "NxMMultiplicationDataset", HJ_PADDED | {"M": 1}, 20),
    "mult_Nx2": ("multiplication", "NxMMultiplicationDataset", HJ_PADDED | {"M": 2}, 20),
    "parity_scratch": ("parity", "ParityDatasetWithScratchpad", {}, 20),
}
HJ_TRAIN, HJ_TEST = 3000, 64
HJ_LOADERS = ("build_dataset", "build_loader", "build_auxiliary_dataset", "build_auxiliary_loader")


def dm_records(module: str, split: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield prompts and responses; tokens that the task does not grade are left out."""
    jax = import_module("jax")
    name, vocabulary = DM_TASKS[module]
    task_class = getattr(import_module(f"randomized_positional_encodings.tasks.{module}"), name)
    task = task_class() if vocabulary is None else task_class(vocab_size=vocabulary)
    lengths, size, seed = SPLITS[split]
    for length in lengths:
        batch = task.sample_batch(jax.random.PRNGKey(seed + length), batch_size=size, length=length)
        answers = np.asarray(batch["output"]).argmax(-1).reshape(size, -1)
        graded = np.asarray(task.accuracy_mask(batch["output"])).astype(bool).reshape(size, -1)
        for prompt, answer, mask in zip(np.asarray(batch["input"]).argmax(-1), answers, graded, strict=True):
            yield [*map(str, prompt)], [*map(str, answer[mask])]


def hj_records(name: str, split: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield prompts and responses."""
    torch = import_module("torch")
    # The loaders of the project need an old version of transformers; the data sets do not.
    loaders = ModuleType("src.data.arithmetic_dataset")
    vars(loaders).update(dict.fromkeys(HJ_LOADERS))
    sys.modules.setdefault(loaders.__name__, loaders)
    torch.manual_seed(0 if split == "train" else 1)
    module, class_name, settings, longest = HJ_TASKS[name]
    sizes = (1, longest, HJ_TRAIN) if split == "train" else (10 * longest, 10 * longest, HJ_TEST)
    dataset = getattr(import_module(f"src.data.{module}"), class_name)
    arguments = dict(zip(("min_n_digits", "max_n_digits", "n_data"), sizes, strict=True))
    for text, answer in dataset(**arguments, **settings):
        yield text.split(), answer.split()


def main() -> None:
    """Write the files of all tasks of a project."""
    project, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    names, records = (DM_TASKS, dm_records) if project == "dm" else (HJ_TASKS, hj_records)
    for name in names:
        for split in SPLITS:
            distinct = {tuple(prompt): response for prompt, response in records(name, split)}
            lines = (json.dumps({"prompt": prompt, "response": answer}) + "\n" for prompt, answer in distinct.items())
            file = folder / f"{project}_{name.rpartition('.')[2]}_{split}.jsonl"
            file.write_text("".join(lines), encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
