"""Items of reasoning-gym, or of anything of that form, as rows of a file that is a task."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthwise.core.errors import TaskFileError
from lengthwise.core.files import StrPath, write_atomically
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.jsonl_table import ENDING, read_table

SUCH_AS = "reasoning_gym.create_dataset"
Item = Mapping[str, Any]
Length = str | Callable[[Item], int]


@check_arguments
def reasoning_records(
    items: Iterable[Item], *, length: Length | None = None, tokens: Callable[[str], Sequence[str]] = str.split
) -> Iterator[dict[str, Any]]:
    """Each item's ``question`` and ``answer`` as ``prompt`` and ``response`` of a row, with its ``length``.

    ``length`` names what of the item's metadata is its length, such as ``"num_terms"``, or makes it of an item. By
    default it is the one difficulty that the metadata has; without any it is the number of the prompt's tokens. A
    difficulty that is given as a range, as reasoning-gym does, counts as what the item itself has under that name.
    ``tokens`` cuts a text, into its words by default. ``TaskFileError`` names the first item that is of another form.
    """
    for number, item in enumerate(items, start=1):
        try:
            row = {"prompt": list(tokens(item["question"])), "response": list(tokens(item["answer"]))}
            found = length(item) if callable(length) else _length(item.get("metadata", {}), length)
        except _FormError as error:
            raise TaskFileError(f"item {number} {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise TaskFileError(
                f"item {number} is of another form ({error!r}); give items with question, answer and metadata, such as "
                f"those of {SUCH_AS}"
            ) from None
        yield row if found is None else {**row, "length": found}


@check_arguments
def write_reasoning_records(
    items: Iterable[Item],
    file: StrPath,
    *,
    length: Length | None = None,
    tokens: Callable[[str], Sequence[str]] = str.split,
) -> Path:
    """Write the rows of ``reasoning_records`` to a file that any ``--task FILE.jsonl`` takes; nothing if one is none."""
    file = Path(file)
    if file.suffix != ENDING:
        raise TaskFileError(f"{file} does not end in {ENDING}; name one that does, as --task FILE{ENDING} asks for it")
    lines = [json.dumps(row).encode() + b"\n" for row in reasoning_records(items, length=length, tokens=tokens)]
    # What the task would refuse is refused now.
    read_table(lines, f"{file}, to be written,")
    write_atomically(file, b"".join(lines))
    return file


class _FormError(Exception):
    """What an item lacks."""


def _length(metadata: Mapping[str, Any], name: str | None) -> int | None:
    difficulty = metadata.get("difficulty", {})
    if name is None:
        if len(difficulty) > 1:
            raise _FormError(f"has several difficulties, {', '.join(difficulty)}; name the one that is its length")
        if not difficulty:
            return None
        (name,) = difficulty
    known = {**{key: _value(value) for key, value in difficulty.items()}, **metadata}
    value = known.get(name)
    if type(value) is not int:
        raise _FormError(
            f"has no whole number '{name}' in its metadata; name another or give a function of an item, "
            "length=lambda item: ..."
        )
    return value


def _value(difficulty: Any) -> Any:
    """A range from a number to itself is that number."""
    same = isinstance(difficulty, list | tuple) and len(set(difficulty)) == 1
    return difficulty[0] if same else difficulty
