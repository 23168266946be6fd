"""Examples and draws that must never change unnoticed; ``python tests/tasks/test_golden.py --write`` writes them anew.

A change to tests/golden is a decision: raise the task's ``version`` and name it in the changelog.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lengthwise.core.randomness import stream
from lengthwise.tasks import TASKS, Task

FOLDER = Path(__file__).parents[1] / "golden"
PURPOSES: tuple[tuple[str | int, ...], ...] = (("examples",), ("examples", 1), ("examples", "1"), ())


def key(task: type[Task]) -> str:
    """What golden examples are filed under."""
    return f"{task.name}-v{task.version}"


def examples_of(name: str) -> dict[str, list[dict[str, str | None]]]:
    """Five examples of the default task and of each variant."""
    task = TASKS[name]()
    return {variant: five_examples(each) for variant, each in {"default": task, **task.variants()}.items()}


def five_examples(task: Task) -> list[dict[str, str | None]]:
    """Symbols, the first and last token index of the answer and, where it is declared, the coupling."""
    examples = task.sample(length=5, size=5, rng=stream(0, "golden", task.name))
    return [
        {
            "tokens": " ".join(task.vocabulary[token] for token in tokens),
            "answer": f"{examples.prompt_length[row]} {examples.response_end[row]}",
            "coupling": None
            if examples.coupling is None
            else " | ".join(" ".join(map(str, level)) for level in examples.coupling[:, row]),
        }
        for row, tokens in enumerate(examples.tokens)
    ]


def draws_of(purpose: tuple[str | int, ...]) -> dict[str, str]:
    """The first draws of one seed and purpose."""
    rng = stream(7, *purpose)
    integers, floats = rng.integers(0, 1_000_000, size=5).tolist(), rng.random(3).tolist()
    return {"integers": " ".join(map(repr, integers)), "floats": " ".join(map(repr, floats))}


def read(name: str) -> dict[str, dict[str, Any]]:
    """One golden file."""
    return json.loads((FOLDER / name).read_text())


@pytest.mark.parametrize("name", TASKS)
def test_examples_of_a_task_version_never_change(name):
    assert examples_of(name) == read("tasks.json")[key(TASKS[name])]


@pytest.mark.parametrize("purpose", PURPOSES, ids=repr)
def test_draws_of_a_stream_never_change(purpose):
    assert draws_of(purpose) == read("streams.json")[repr(purpose)]


def test_golden_files_hold_nothing_that_no_test_reads():
    assert set(read("tasks.json")) == {key(task) for task in TASKS.values()}
    assert set(read("streams.json")) == {repr(purpose) for purpose in PURPOSES}


def write() -> None:
    """Write all golden files from the code as it is."""
    FOLDER.mkdir(exist_ok=True)
    contents = {
        "tasks.json": {key(TASKS[name]): examples_of(name) for name in TASKS},
        "streams.json": {repr(purpose): draws_of(purpose) for purpose in PURPOSES},
    }
    for name, content in contents.items():
        (FOLDER / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python tests/tasks/test_golden.py --write")
    write()
