"""Settings of experiments on the command line: configuration files, ``--set NAME=VALUE``, and flags."""

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from lengthwise.cli.options import parse_integers, parse_range, split_names
from lengthwise.core.errors import SettingError
from lengthwise.core.files import read_file
from lengthwise.core.json_parsing import check_nesting_depth, parse_json
from lengthwise.experiments.experiment import TABLES, SettingChange
from lengthwise.tasks.text.corpus import open_corpus

JSON_TOKENS = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]]')
TOML_TABLE = re.compile(r"\s*\[+([^\[\]]+)\]+")
TOML_KEY = re.compile(r"""\s*([\w."' -]+?)\s*=""")


def _read_corpus(folder: Path) -> str:
    """Return the absolute path of a corpus, so that a run loads from any working folder."""
    open_corpus(folder)
    return str(folder.absolute())


# Flags that set one setting: its path, and the function that converts the value of the flag. A new flag is one line
# here, and one parameter of the command.
FLAGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "train_lengths": ("train_lengths", parse_range),
    "steps": ("training.steps", int),
    "batch_size": ("training.batch_size", int),
    "lengths_per_batch": ("training.lengths_per_batch", int),
    "num_position_ids": ("scheme.num_position_ids", int),
    "head": ("decoder.head", str),
    "corpus": ("task.corpus", _read_corpus),
    "lengths": ("evaluation.lengths", partial(parse_integers, flag="--lengths")),
    "num_examples": ("evaluation.num_examples", partial(parse_integers, flag="--num-examples")),
    "variants": ("evaluation.variants", split_names),
    "seed": ("seed", int),
}


def read_setting_changes(options: Mapping[str, Any]) -> list[SettingChange]:
    """Return the changes of the options of a command: its configuration file, then ``--set``, then the ``FLAGS``.

    ``options`` maps the parameters of a command to their values: ``config``, ``assignments`` (``--set``), and names of
    ``FLAGS``. None changes nothing, and other parameters are ignored. Raises ``SettingError`` if ``--set`` and a flag
    set the same setting.
    """
    assigned = [parse_assignment(assignment) for assignment in options.get("assignments") or ()]
    flag_changes = []
    for name, (path, convert) in FLAGS.items():
        if (value := options.get(name)) is None:
            continue
        source = f"--{name.replace('_', '-')} {value}"
        for change in assigned:
            if change.path == path:
                raise SettingError(f"{change.source} and {source} set the same setting; use only one of them")
        flag_changes.append(SettingChange(path=path, value=convert(value), source=source))
    config = options.get("config")
    return [*(read_config(config) if config is not None else ()), *assigned, *flag_changes]


def parse_assignment(text: str) -> SettingChange:
    """Parse ``NAME=VALUE``; the value is JSON (``1e-3``, ``[1, 20]``, ``null``), a Python literal or a plain text."""
    path, separator, value = text.partition("=")
    source = f"--set {text}"
    if not separator or not path.strip():
        raise SettingError(f"invalid {source}; use NAME=VALUE, such as --set training.learning_rate=1e-3")
    return SettingChange(path=path.strip(), value=_parse_value(value.strip()), source=source)


def _parse_value(text: str) -> Any:
    with suppress(ValueError):
        return parse_json(text, object)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        value = ast.literal_eval(text)
        check_nesting_depth(value)
        return value
    return text


def read_config(path: Path) -> list[SettingChange]:
    """Read a TOML or JSON file with the names of ``experiment.json``; raise ``SettingError`` if it is not readable."""
    if path.suffix not in (".toml", ".json"):
        raise SettingError(f"--config {path} is not a .toml or .json file; use a file with one of these endings")
    try:
        text = read_file(path).decode()
        tree = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text)
        check_nesting_depth(tree)
        lines = _toml_lines(text) if path.suffix == ".toml" else _json_lines(text)
    except OSError as error:
        raise SettingError(f"--config {path} cannot be read ({error.strerror}); use a readable file") from None
    except (ValueError, RecursionError) as error:
        raise SettingError(f"--config {path} is not valid {path.suffix[1:].upper()} ({error}); fix the file") from None
    return [
        SettingChange(path=".".join(keys), value=value, source=f"{path} line {_line_of(keys, lines)}")
        for keys, value in _settings(tree)
    ]


def select_component_names(changes: Sequence[SettingChange], **names: str | None) -> dict[str, str | None]:
    """Return the names of task, scheme and encoding: the given name, or the built-in name among the changes."""
    named = {change.path.removesuffix(".name"): change for change in changes if change.path.endswith(".name")}
    for kind, table in TABLES.items():
        if names[kind] is None and (change := named.get(kind)) is not None:
            # A file never decides which code runs.
            if not isinstance(change.value, str) or change.value not in table:
                advice = f"use --{kind} for a custom {kind}, or one of {', '.join(sorted(table))}"
                raise SettingError(f"{change.source}: unknown {kind} {change.value!r:.40}; {advice}")
            names[kind] = change.value
    return names


def _settings(tree: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the keys and the value of each setting in nested tables; an empty table is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, (*keys, key))
        else:
            yield (*keys, key), value


def _line_of(keys: tuple[str, ...], lines: Mapping[tuple[str, ...], int]) -> int:
    """Return the line of a setting, or of the innermost table around it whose line is known."""
    return next((lines[keys[:size]] for size in range(len(keys), 0, -1) if keys[:size] in lines), 1)


def _json_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each key in valid JSON, by its path."""
    lines: dict[tuple[str, ...], int] = {}
    parents: list[str] = []
    key = ""
    for token in JSON_TOKENS.finditer(text):
        if token[2]:
            key = json.loads(token[1])
            lines[(*parents[1:], key)] = text.count("\n", 0, token.start()) + 1
        elif token[0] in ("{", "["):
            parents.append(key)
        elif token[0] in ("}", "]"):
            parents.pop()
    return lines


def _toml_lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each table and key in valid TOML, by its path; inline tables count as one key."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := TOML_TABLE.match(line):
            table = _toml_path(header[1])
            lines[table] = number
        elif key := TOML_KEY.match(line):
            lines[(*table, *_toml_path(key[1]))] = number
    return lines


def _toml_path(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))
