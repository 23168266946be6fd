"""Task files with sampled examples of a task, and with the found coupling of each record."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.core.files import write_atomically
from lengthwise.core.randomness import stream
from lengthwise.tasks.coupling.found_coupling import DEFAULT_LENGTHS, FoundCoupling, check_single_answers
from lengthwise.tasks.coupling.pointers import couple
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.jsonl_table import MARK, START
from lengthwise.tasks.jsonl_task import JSONLTask
from lengthwise.tasks.task import Task


def sample_task_file(
    task: Task, lengths: Sequence[int] | None, num_per_length: int, seed: int, path: Path
) -> JSONLTask:
    """Write sampled examples of a task as records without a coupling, and return the task of this file."""
    check_single_answers(task)
    rng = stream(seed, "sampled records")
    lengths = DEFAULT_LENGTHS if lengths is None else lengths
    groups = [(length, task.sample(length=length, size=num_per_length, rng=rng)) for length in lengths]
    write_records(path, groups, task.vocabulary, num_layout_tokens=0)
    return JSONLTask(file=str(path)).read()


def write_records(
    path: Path,
    groups: Iterable[tuple[int, Examples]],
    vocabulary: Sequence[str],
    *,
    num_layout_tokens: int = len((MARK, START)),
) -> None:
    """Write examples of each length as records without a coupling, except the last tokens of their prompts."""
    names, records = np.array(vocabulary, dtype=object), []
    for length, examples in groups:
        for tokens, prompt_length, end in zip(
            examples.tokens, examples.prompt_length, examples.response_end, strict=True
        ):
            texts = names[tokens[:end]].tolist()
            prompt, response = texts[: prompt_length - num_layout_tokens], texts[prompt_length:]
            records.append({"prompt": prompt, "response": response, "length": length})
    _write(records, path)


def write_coupled_records(task: JSONLTask, found: FoundCoupling, lengths: Sequence[int], path: Path) -> dict[str, int]:
    """Write the distinct records of these lengths with their coupling, one list per level.

    Return the number of these ``records``, and of those left out: ``repeated`` ones, and those of ``other_lengths``.

    A list has the numbers of the prompt tokens, ``<mark>``, the response tokens and ``end``. The number of a response
    token is that of the prompt token it depends on.
    """
    vocabulary, records = np.array(task.vocabulary, dtype=object), []
    for length in lengths:
        examples = task.records_at(length, np.arange(task.num_records(length)))
        # Each token from the start token on has the number of the next token.
        coupling = couple(found.rule, examples) - 1
        for index, (tokens, prompt_length, end) in enumerate(
            zip(examples.tokens, examples.prompt_length, examples.response_end, strict=True)
        ):
            names = vocabulary[tokens[:end]].tolist()
            record = {"prompt": names[: prompt_length - len((MARK, START))], "response": names[prompt_length:]}
            records.append(record | {"coupling": coupling[:, index, :end].tolist(), "length": length})
    _write(records, path)
    num_at_lengths = sum(map(task.num_rows, lengths))
    return {
        "records": len(records),
        "repeated": num_at_lengths - len(records),
        "other_lengths": sum(map(task.num_rows, task.available_lengths)) - num_at_lengths,
    }


def _write(records: Sequence[dict[str, Any]], path: Path) -> None:
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in records).encode())
