"""Measure found couplings: against the declared support of built-in tasks, and on twelve tasks from files.

``support``: for every answer, compare the tokens of the found rule with the tokens that the task declares. The start
token and other tokens that are the same in all sequences at a step are not counted, because no example can show whether
an answer depends on them.
``files``: write rows of twelve tasks that the package does not have, and find their coupling or the reason against it.
Without names of tasks, the script measures all of them; a new row replaces the former one of its task.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.coupling_tasks import FILE_TASKS

from lengthwise.core.errors import CouplingError
from lengthwise.core.provenance import collect_provenance
from lengthwise.core.randomness import random_stream
from lengthwise.experiments.run_folder import read_rows, write_rows
from lengthwise.tasks import (
    Addition,
    Copy,
    IndexHints,
    JSONLTask,
    MultiAddition,
    Multiplication,
    Parity,
    Reverse,
    Sort,
    Task,
    VariableAssignment,
)
from lengthwise.tasks.coupling.answer_steps import AnswerSteps, build_answer_steps, join_steps
from lengthwise.tasks.coupling.found_coupling import SAMPLES_IN_PARTS, find_coupling_in_examples
from lengthwise.tasks.coupling.locators import MatchingTokenLocator
from lengthwise.tasks.coupling.rule_search import RuleSearchAttempt, search_rules

RESULTS = Path(__file__).parent / "results" / "coupling.jsonl"
# Task, lengths and examples per length.
BUILT_IN: dict[str, tuple[Task, Sequence[int], int]] = {
    "parity": (Parity(), range(1, 9), 100),
    "copy": (Copy(), range(1, 9), 100),
    "reverse": (Reverse(), range(1, 9), 100),
    "addition with written carries": (Addition(scratchpad="carry"), range(1, 8), 500),
    "addition": (Addition(), range(1, 8), 1000),
    "variable assignment": (VariableAssignment(num_names=64), range(2, 8), 500),
    "variable assignment, 2 operands": (VariableAssignment(num_names=64, operands=2), range(2, 8), 500),
    "several operands": (MultiAddition(), range(1, 5), 500),
    "multiplication": (Multiplication(), range(1, 5), 500),
    "index hints": (IndexHints(num_hints=32), range(1, 9), 500),
    "sort": (Sort(), range(2, 8), 500),
}
FILE_LENGTHS, ROWS_PER_LENGTH = range(2, 11), 300


def found_dependencies(steps: AnswerSteps, attempt: RuleSearchAttempt) -> list[set[int]]:
    """Return the token indexes that the rule reads for each step, without the start token."""
    found: list[set[int]] = [set() for _ in range(len(steps))]
    for rule in attempt.rules:
        numbers = np.flatnonzero(rule.mask)
        phase_steps = steps.select(rule.mask)
        for located in rule.locators:
            indexes = [located.index]
            if isinstance(located.locator, MatchingTokenLocator):
                # A look-up also reads its key and the match.
                has_match = located.index >= 0
                key, match = located.locator.key_index(phase_steps), located.locator.find_match(phase_steps)
                indexes += [key, np.where(has_match, match, -1)]
            for index in map(partial(without_constant_tokens, phase_steps), indexes):
                for number, token_index, start in zip(numbers, index, phase_steps.prompt_length - 1, strict=True):
                    if token_index >= 0 and token_index != start:
                        found[number].add(int(token_index))
    return found


def without_constant_tokens(steps: AnswerSteps, index: np.ndarray) -> np.ndarray:
    """Return the indexes without those at which all sequences have the same token at the same step."""
    index, tokens = index.copy(), steps.token_at(index)
    for number in np.unique(steps.number):
        mask = steps.number == number
        if len(np.unique(tokens[mask])) == 1:
            index[mask] = -1
    return index


def measure_dependencies(name: str) -> dict[str, Any]:
    """Compare the found with the declared support of a built-in task."""
    task, lengths, num_per_length = BUILT_IN[name]
    rng, started = random_stream(0, "coupling benchmark"), time.perf_counter()
    parts, declared = [], {}
    # A task can draw a number, such as that of the operands, once per call of sample.
    for length in [each for each in lengths for _ in range(SAMPLES_IN_PARTS)]:
        examples = task.sample(length=length, size=num_per_length // SAMPLES_IN_PARTS, rng=rng)
        parts.append(build_answer_steps(examples, length))
        if examples.depends_on is not None:
            for tokens, depends_on in zip(parts[-1].tokens, examples.depends_on, strict=True):
                declared[tuple(tokens[tokens >= 0].tolist())] = depends_on
    steps = join_steps(parts)
    attempt = search_rules(steps)[-1]
    row = {"part": "support", "task": name, "examples": len(steps.tokens), "answers": len(steps)}
    row |= {
        "seconds": round(time.perf_counter() - started, 1),
        "found": bool(attempt.rules and not attempt.is_ambiguous),
    }
    if not row["found"] or not declared:
        return row
    end = task.vocabulary.index("end")
    row |= compare_dependencies(steps, attempt, declared, steps.target != end)
    with_end = compare_dependencies(steps, attempt, declared, np.ones(len(steps), dtype=bool))
    return row | {f"{name}_with_end": value for name, value in with_end.items()}


def compare_dependencies(
    steps: AnswerSteps, attempt: RuleSearchAttempt, declared: dict[tuple[int, ...], Any], is_counted: np.ndarray
) -> dict[str, float]:
    """Return the precision and the recall of the found support for the counted steps."""
    right = num_found = num_declared = 0
    for step, found in enumerate(found_dependencies(steps, attempt)):
        if not is_counted[step]:
            continue
        sequence = steps.tokens[steps.sequence[step]]
        start = int(steps.prompt_lengths[steps.sequence[step]]) - 1
        depends_on = declared[tuple(sequence[sequence >= 0].tolist())][start + 1 + steps.number[step]]
        expected = {int(index) for index in depends_on if index >= 0} - {start}
        right += len(found & expected)
        num_found, num_declared = num_found + len(found), num_declared + len(expected)
    return {"precision": right / num_found, "recall": right / num_declared}


def measure_file(name: str, path: Path) -> dict[str, Any]:
    """Write the rows of a task, and find their coupling."""
    rng = random_stream(0, "coupling files", name)
    records = []
    for length in FILE_LENGTHS:
        for _ in range(ROWS_PER_LENGTH):
            prompt, response = FILE_TASKS[name](rng, length)
            records.append({"prompt": prompt, "response": response, "length": length})
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    started, row = time.perf_counter(), {"part": "files", "task": name, "examples": len(records)}
    try:
        found = find_coupling_in_examples(JSONLTask(file=str(path)).read())
    except CouplingError as error:
        return row | {"seconds": round(time.perf_counter() - started, 1), "found": False, "reason": str(error)}
    row |= {"seconds": round(time.perf_counter() - started, 1), "found": True, "k": found.num_tokens}
    return row | {"addresses": found.phases, "rule": found.rule.saved_texts}


def main() -> None:
    """Measure both parts, write the rows, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"one of {', '.join([*BUILT_IN, *FILE_TASKS])}")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    facts = collect_provenance()
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.tasks or [*BUILT_IN, *FILE_TASKS]:
            row = measure_dependencies(name) if name in BUILT_IN else measure_file(name, Path(folder) / "rows.jsonl")
            print(row, flush=True)
            rows = [each for each in read_rows(arguments.out) if each["task"] != name]
            write_rows(arguments.out, [*rows, {**row, "provenance": facts}])


if __name__ == "__main__":
    main()
