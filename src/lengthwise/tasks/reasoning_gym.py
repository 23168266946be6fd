"""Conversion of reasoning-gym items to records of a task file."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import TaskFileError
from lengthwise.core.files import StrPath, check_output_file, write_atomically
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.jsonl_table import SUFFIX, parse_jsonl_records

Item = Mapping[str, Any]
LengthSource = str | Callable[[Item], int]
Splitter = Callable[[str], Sequence[str]]


@check_arguments
def reasoning_records(
    items: Iterable[Item], *, length: LengthSource | None = None, tokens: Splitter = str.split
) -> Iterator[dict[str, Any]]:
    """Yield one record per item, with its ``question`` as ``prompt``, its ``answer`` as ``response``, and its length.

    ``length`` is a metadata key, such as ``"num_terms"``, or a function that returns the length of an item. By default,
    the length is the only difficulty in the metadata. An item without difficulties gets no length; the task then uses
    the number of prompt tokens. If a difficulty is a range, the length is the metadata value with the same key.
    ``tokens`` splits a text into tokens; the default splits at whitespace. The first invalid item raises
    ``TaskFileError``.
    """
    for item_number, item in enumerate(items, start=1):
        try:
            record = {"prompt": list(tokens(item["question"])), "response": list(tokens(item["answer"]))}
            item_length = length(item) if callable(length) else _find_length(item.get("metadata", {}), length)
        except _ItemError as error:
            raise TaskFileError(f"item {item_number} {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise TaskFileError(
                f"invalid item {item_number} ({error!r}); use items with question, answer and metadata, such as the "
                "items of reasoning_gym.create_dataset"
            ) from None
        yield record if item_length is None else {**record, "length": item_length}


@check_arguments
def write_reasoning_records(
    items: Iterable[Item], file: StrPath, *, length: LengthSource | None = None, tokens: Splitter = str.split
) -> Path:
    """Write the records of ``reasoning_records`` to a task file; raise ``TaskFileError`` for an invalid record.

    Raises ``RunFolderError`` if the file already exists.
    """
    file = Path(file)
    if file.suffix != SUFFIX:
        raise TaskFileError(f"{file} does not end in {SUFFIX}; use a file name that ends in {SUFFIX}")
    check_output_file(file)
    lines = [json.dumps(record).encode() + b"\n" for record in reasoning_records(items, length=length, tokens=tokens)]
    # Parse the records first, so that an invalid record does not leave an unusable file.
    parse_jsonl_records(lines, f"the content of {file}")
    write_atomically(file, b"".join(lines))
    return file


class _ItemError(Exception):
    """Error for an item without a valid length."""


def _find_length(metadata: Mapping[str, Any], name: str | None) -> int | None:
    difficulty = metadata.get("difficulty", {})
    if name is None:
        if len(difficulty) > 1:
            raise _ItemError(f"has several difficulties ({', '.join(difficulty)}); set length to one of them")
        if not difficulty:
            return None
        (name,) = difficulty
    value = {**{key: _collapse_range(value) for key, value in difficulty.items()}, **metadata}.get(name)
    if type(value) is not int:
        raise _ItemError(
            f"has no integer '{name}' in its metadata; set length to another metadata key, or to a function of the item"
        )
    return value


def _collapse_range(difficulty: Any) -> Any:
    """Return the common value of a range with equal ends; return other difficulties unchanged."""
    return difficulty[0] if isinstance(difficulty, list | tuple) and len(set(difficulty)) == 1 else difficulty
