"""Golden examples and random numbers; ``python tests/tasks/test_golden.py --write`` writes new ones.

A change to tests/golden is a decision: raise the task's ``version`` and name it in the changelog.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lengthwise.core.randomness import random_stream
from lengthwise.tasks import TASKS, Task

FOLDER = Path(__file__).parents[1] / "golden"
PURPOSES: tuple[tuple[str | int, ...], ...] = (("examples",), ("examples", 1), ("examples", "1"), ())


def key(task: type[Task]) -> str:
    """Return the key of a task in the golden file."""
    return f"{task.name}-v{task.version}"


def examples_of(name: str) -> dict[str, list[dict[str, str | None]]]:
    """Return five examples of the default task and of each variant."""
    task = TASKS[name]()
    return {variant: five_examples(each) for variant, each in {"default": task, **task.variants()}.items()}


def five_examples(task: Task) -> list[dict[str, str | None]]:
    """Return symbols, the first and last token index of the answer, and the coupling if there is one."""
    examples = task.sample(length=5, size=5, rng=random_stream(0, "golden", task.name))
    return [
        {
            "tokens": " ".join(task.vocabulary[token] for token in tokens),
            "answer": f"{examples.prompt_length[index]} {examples.response_end[index]}",
            "coupling": None
            if examples.coupling is None
            else " | ".join(" ".join(map(str, level)) for level in examples.coupling[:, index]),
        }
        for index, tokens in enumerate(examples.tokens)
    ]


def random_numbers(purpose: tuple[str | int, ...]) -> dict[str, str]:
    """Return the first random numbers of one seed and purpose."""
    rng = random_stream(7, *purpose)
    integers, floats = rng.integers(0, 1_000_000, size=5).tolist(), rng.random(3).tolist()
    return {"integers": " ".join(map(repr, integers)), "floats": " ".join(map(repr, floats))}


def read(name: str) -> dict[str, dict[str, Any]]:
    """Read a golden file."""
    return json.loads((FOLDER / name).read_text())


# A new task gets golden examples before its first release.
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if key(task) in read("tasks.json")])
def test_examples_of_a_task_version_never_change(name):
    assert examples_of(name) == read("tasks.json")[key(TASKS[name])]


@pytest.mark.parametrize("purpose", PURPOSES, ids=repr)
def test_random_numbers_of_a_stream_never_change(purpose):
    assert random_numbers(purpose) == read("streams.json")[repr(purpose)]


def test_golden_files_have_no_unused_entries():
    assert set(read("tasks.json")) <= {key(task) for task in TASKS.values()}
    assert set(read("streams.json")) == {repr(purpose) for purpose in PURPOSES}


def write() -> None:
    """Write all golden files with the current code."""
    FOLDER.mkdir(exist_ok=True)
    contents = {
        "tasks.json": {key(TASKS[name]): examples_of(name) for name in TASKS},
        "streams.json": {repr(purpose): random_numbers(purpose) for purpose in PURPOSES},
    }
    for name, content in contents.items():
        (FOLDER / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/tasks/test_golden.py --write")
    write()
