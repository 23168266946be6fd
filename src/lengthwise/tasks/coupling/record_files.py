"""Task files with sampled examples of a task, and with the found coupling of each record."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.core.files import write_atomically
from lengthwise.core.randomness import stream
from lengthwise.tasks.coupling.found_coupling import FoundCoupling
from lengthwise.tasks.coupling.pointers import couple
from lengthwise.tasks.jsonl_task import JSONLTask
from lengthwise.tasks.task import Task


def write_sampled_records(
    task: Task, path: Path, lengths: Iterable[int], *, num_per_length: int, seed: int = 0
) -> None:
    """Write examples of a task as records without a coupling."""
    vocabulary, rng = np.array(task.vocabulary, dtype=object), stream(seed, "sampled records")
    records = []
    for length in lengths:
        examples = task.sample(length=length, size=num_per_length, rng=rng)
        for tokens, prompt_length, end in zip(
            examples.tokens, examples.prompt_length, examples.response_end, strict=True
        ):
            names = vocabulary[tokens[:end]].tolist()
            records.append({"prompt": names[:prompt_length], "response": names[prompt_length:], "length": length})
    _write(records, path)


def write_coupled_records(task: JSONLTask, found: FoundCoupling, path: Path) -> int:
    """Write the records of a task file with their coupling, one list per level, and return their number.

    A list has the numbers of the prompt tokens, ``<mark>``, the response tokens and ``end``. The number of a response
    token is that of the prompt token it depends on.
    """
    vocabulary, records = np.array(task.vocabulary, dtype=object), []
    for length in task.available_lengths:
        examples = task.records_at(length, np.arange(task.num_records(length)))
        # Each token from the start token on has the number of the next token.
        coupling = couple(found.rule, examples) - 1
        for index, (tokens, prompt_length, end) in enumerate(
            zip(examples.tokens, examples.prompt_length, examples.response_end, strict=True)
        ):
            names = vocabulary[tokens[:end]].tolist()
            record = {"prompt": names[: prompt_length - 2], "response": names[prompt_length:]}
            records.append(record | {"coupling": coupling[:, index, :end].tolist(), "length": length})
    _write(records, path)
    return len(records)


def _write(records: Sequence[dict[str, Any]], path: Path) -> None:
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in records).encode())
