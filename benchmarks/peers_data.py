"""Write examples of the tasks of three other projects as task files, with the generators of these projects.

    git clone https://github.com/HanseulJo/position-coupling peers/position_coupling
    git clone https://github.com/google-deepmind/randomized_positional_encodings peers/randomized_positional_encodings
    PYTHONPATH=peers/position_coupling python benchmarks/peers_data.py hj FOLDER   # needs torch and tqdm
    PYTHONPATH=peers python benchmarks/peers_data.py dm FOLDER                     # needs jax, chex, dm-tree and tqdm
    python benchmarks/peers_data.py rg FOLDER                                      # needs reasoning-gym

FOLDER gets a pair of files per task, ``NAME_train.jsonl`` with short and ``NAME_test.jsonl`` with ten times longer
examples, for ``benchmarks/peers_tasks.py``. The script needs nothing of lengthwise.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

# Lengths of the training and test examples, the number of examples per length, and the seed of the examples.
SPLITS = {"train": (range(3, 25), 60, 0), "test": ((24, 240), 24, 1_000_000)}
# Modules of randomized_positional_encodings, with the class of the task and its arguments.
DM_TASKS: dict[str, tuple[str, Mapping[str, int]]] = {
    "cs.binary_addition": ("BinaryAddition", {}),
    "cs.binary_multiplication": ("BinaryMultiplication", {}),
    "cs.bucket_sort": ("BucketSort", {"vocab_size": 5}),
    "cs.compute_sqrt": ("ComputeSqrt", {}),
    "cs.duplicate_string": ("DuplicateString", {"vocab_size": 2}),
    "cs.missing_duplicate_string": ("MissingDuplicateString", {}),
    "cs.odds_first": ("OddsFirst", {"vocab_size": 2}),
    "dcf.modular_arithmetic_brackets": ("ModularArithmeticBrackets", {"modulus": 5}),
    "dcf.reverse_string": ("ReverseString", {"vocab_size": 2}),
    "dcf.solve_equation": ("SolveEquation", {"modulus": 5}),
    "dcf.stack_manipulation": ("StackManipulation", {}),
    "regular.cycle_navigation": ("CycleNavigation", {}),
    "regular.even_pairs": ("EvenPairs", {}),
    "regular.modular_arithmetic": ("ModularArithmetic", {"modulus": 5}),
    "regular.parity_check": ("ParityCheck", {}),
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
RG_ROTATION = {"min_rotation": 3, "max_rotation": 3}
RG_TWO_TERMS = {"min_terms": 2, "max_terms": 2}
RG_INTEGERS = {"min_decimals": 0, "max_decimals": 0, "min_value": 0, "max_value": 99}
HJ_LOADERS = ("build_dataset", "build_loader", "build_auxiliary_dataset", "build_auxiliary_loader")
# Tasks of reasoning-gym: training settings, test settings, and the tokens of the prompt from an entry.
RG_TASKS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], Callable[[Mapping[str, Any]], Sequence[str]]]] = {
    "caesar_cipher": (
        RG_ROTATION | {"min_words": 1, "max_words": 6},
        RG_ROTATION | {"min_words": 30, "max_words": 60},
        lambda entry: entry["metadata"]["cipher_text"].replace(" ", "_"),
    ),
    "chain_sum": (
        RG_TWO_TERMS | {"min_digits": 1, "max_digits": 10},
        RG_TWO_TERMS | {"min_digits": 100, "max_digits": 100},
        lambda entry: entry["metadata"]["expression"].replace(" ", ""),
    ),
    "count_bits": ({"max_n": 2**20}, {"min_n": 2**199, "max_n": 2**200}, lambda entry: entry["metadata"]["binary"]),
    "isomorphic_strings": (
        {"min_string_length": 2, "max_string_length": 10},
        {"min_string_length": 100, "max_string_length": 100},
        lambda entry: "|".join(entry["metadata"]["words"]),
    ),
    "number_sorting": (
        RG_INTEGERS | {"min_numbers": 3, "max_numbers": 10},
        RG_INTEGERS | {"min_numbers": 100, "max_numbers": 100},
        lambda entry: [entry["metadata"]["direction"], *entry["metadata"]["original_numbers"]],
    ),
    "products": (
        {"max_digits": 5},
        {"min_digits": 50, "max_digits": 50},
        lambda entry: entry["metadata"]["expression"].replace(" ", ""),
    ),
    # The words have at most ten letters.
    "spell_backward": ({"max_word_len": 5}, {"min_word_len": 10}, lambda entry: entry["metadata"]["word"]),
    "spiral_matrix": (
        {"min_n": 2, "max_n": 6},
        {"min_n": 19, "max_n": 19},
        lambda entry: " ; ".join(" ".join(map(str, row)) for row in entry["metadata"]["matrix"]).split(),
    ),
    "string_insertion": (
        {"min_string_length": 5, "max_string_length": 20},
        {"min_string_length": 200, "max_string_length": 200},
        lambda entry: entry["metadata"]["string"],
    ),
    "word_sequence_reversal": (
        {"min_words": 3, "max_words": 10},
        {"min_words": 100, "max_words": 100},
        lambda entry: entry["metadata"]["words"],
    ),
}
# Number of training examples; the task of many words needs more, so that each word of a test prompt occurs in training.
RG_TRAIN, RG_TRAIN_WORDS, RG_TEST = 3000, 20_000, 64
# Separators of the words of an answer; the tokens of the other tasks are characters.
RG_SEPARATORS = {
    "count_bits": " ",
    "isomorphic_strings": " ",
    "number_sorting": ", ",
    "spiral_matrix": " ",
    "word_sequence_reversal": ", ",
}


def dm_records(module: str, split: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield prompts and responses; tokens that the task does not grade are left out."""
    jax = import_module("jax")
    name, arguments = DM_TASKS[module]
    task = getattr(import_module(f"randomized_positional_encodings.tasks.{module}"), name)(**arguments)
    lengths, size, seed = SPLITS[split]
    for length in lengths:
        # Some tasks take the first word of the key as their seed, and it is 0 in every new key.
        key = jax.random.split(jax.random.PRNGKey(seed + length))[0]
        batch = task.sample_batch(key, batch_size=size, length=length)
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


def rg_entries(name: str, split: str) -> tuple[Any, list[dict[str, Any]]]:
    """Return the data set of a task and a part of its entries."""
    if split == "train":
        settings, seed = RG_TASKS[name][0], 1
        size = RG_TRAIN_WORDS if name == "word_sequence_reversal" else RG_TRAIN
    else:
        settings, seed, size = RG_TASKS[name][1], 1_000_000, RG_TEST
    dataset = import_module("reasoning_gym").create_dataset(name, size=size, seed=seed, **settings)
    return dataset, [dataset[index] for index in range(size)]


def rg_records(name: str, split: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield prompts and responses."""
    for entry in rg_entries(name, split)[1]:
        # This token ends every response in a task file of lengthwise.
        if "end" in RG_TASKS[name][2](entry):
            continue
        answer = entry["answer"].replace("'", "").strip("[]")
        separator = RG_SEPARATORS.get(name)
        yield list(RG_TASKS[name][2](entry)), answer.split(separator) if separator else [*answer.replace(" ", "_")]


def rg_scores(name: str, answers: Mapping[tuple[str, ...], Sequence[str]]) -> list[float]:
    """Return the scores of our answers to the prompts of the test file, as the verifier of the task sees them."""
    dataset, entries = rg_entries(name, "test")
    scores = []
    for entry in entries:
        tokens = answers.get(tuple(RG_TASKS[name][2](entry)))
        if tokens is None:
            continue
        text = (
            str([*tokens]) if name == "number_sorting" else RG_SEPARATORS.get(name, "").join(tokens).replace("_", " ")
        )
        scores.append(float(dataset.score_answer(answer=text, entry=entry)))
    return scores


def main() -> None:
    """Write the files of all tasks of a project."""
    project, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    names, records = {"dm": (DM_TASKS, dm_records), "hj": (HJ_TASKS, hj_records), "rg": (RG_TASKS, rg_records)}[project]
    for name in names:
        for split in SPLITS:
            distinct = {tuple(prompt): response for prompt, response in records(name, split)}
            lines = (json.dumps({"prompt": prompt, "response": answer}) + "\n" for prompt, answer in distinct.items())
            file = folder / f"{project}_{name.rpartition('.')[2]}_{split}.jsonl"
            file.write_text("".join(lines), encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
