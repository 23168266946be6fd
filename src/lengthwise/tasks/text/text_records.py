"""Texts from records in plain or compressed JSON files, and in data sets of the datasets library."""

import gzip
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lengthwise.core.defaults import DATASET_PREFIX, SOURCE_FORMAT
from lengthwise.core.errors import TextError
from lengthwise.core.json_parsing import MAX_BYTES, parse_json

DEFAULT_COLUMN = "text"
# Suffixes of files that contain one JSON object per line, or a list of JSON objects.
RECORD_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json.gz", ".json")

# Largest size of decompressed records beyond MAX_BYTES, as a multiple of the size of their file; texts have 2 to 30.
MAX_EXPANSION = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSource:
    """Data set or file of records. An empty ``split`` selects all splits; an empty ``config`` selects the default."""

    name: str
    split: str = ""
    config: str = ""
    column: str = DEFAULT_COLUMN


def parse_source(source: str) -> RecordSource:
    """Parse ``NAME[:SPLIT[:CONFIG[:COLUMN]]]``; raise ``TextError`` for more than four parts."""
    if Path(source).exists():
        return RecordSource(name=source)
    name, *parts = source.split(":")
    if len(parts) > 3:
        raise TextError(f"{DATASET_PREFIX}{source} has {len(parts) + 1} parts; use at most 4, as in {SOURCE_FORMAT}")
    split, config, column = parts + [""] * (3 - len(parts))
    return RecordSource(name=name, split=split, config=config, column=column if column else DEFAULT_COLUMN)


def has_records(path: Path) -> bool:
    """Return True if a path ends with one of ``RECORD_SUFFIXES``."""
    return path.name.lower().endswith(RECORD_SUFFIXES)


def read_texts(source: RecordSource, *, is_streamed: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each record, "" for null; ``is_streamed`` streams data sets from the hub."""
    path = Path(source.name)
    is_file = has_records(path) and path.is_file()
    for name, record in _file_records(path) if is_file else _dataset_records(source, is_streamed=is_streamed):
        is_mapping = isinstance(record, Mapping)
        if not is_mapping or source.column not in record:
            description = f"columns {', '.join(map(str, record))}" if is_mapping else type(record).__name__
            raise TextError(
                f"{name} has no column '{source.column}' (it has {description}); set the text column with "
                f"{SOURCE_FORMAT}, such as {DATASET_PREFIX}{source.name}:{source.split}:{source.config}:content"
            )
        text = record[source.column]
        if not isinstance(text, str | None):
            kind = type(text).__name__
            raise TextError(f"column '{source.column}' of {name} has type {kind}; use a column of strings")
        yield name, "" if text is None else text


def _file_records(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
            is_list = file.read(len(BOM_UTF8) + 1).removeprefix(BOM_UTF8).startswith(b"[")
            file.seek(0)
            if is_list:
                records = parse_json(file.read(MAX_BYTES + 1), list)
                yield from ((f"{path}:{number}", record) for number, record in enumerate(records))
                return
            num_bytes, max_bytes = 0, max(MAX_BYTES, MAX_EXPANSION * path.stat().st_size)
            # The size limits memory and time while the file is decompressed.
            for number, line in enumerate(iter(partial(file.readline, MAX_BYTES + 1), b""), start=1):
                num_bytes += len(line)
                if num_bytes > max_bytes:
                    raise ValueError(f"its lines have more than {max_bytes:,} bytes, which is no compressed text")
                if line.strip():
                    yield f"{path}:{number}", parse_json(line, object)
    except (OSError, EOFError, zlib.error) as error:
        raise TextError(f"{path} cannot be read ({error}); use a readable file, or remove it") from None
    except ValueError as error:
        raise TextError(
            f"{path} has invalid JSON ({error}); write one JSON object per line, or rename a plain text file to .txt"
        ) from None


def _dataset_records(source: RecordSource, *, is_streamed: bool) -> Iterator[tuple[str, Any]]:
    for split, records in _load_splits(source, is_streamed=is_streamed).items():
        if getattr(records, "column_names", None) and source.column in records.column_names:
            # Select the column, because other columns may be slow to decode.
            records = records.select_columns([source.column])  # noqa: PLW2901
        for record_index, record in enumerate(records):
            yield f"{source.name}:{split}:{record_index}", record


def _load_splits(source: RecordSource, *, is_streamed: bool) -> Mapping[str, Any]:
    try:
        import datasets  # noqa: PLC0415  (a slow import of an optional dependency)
    except ImportError:
        raise TextError("data sets need the datasets library; run pip install 'lengthwise[hf]'") from None
    name, split = source.name, source.split
    try:
        if Path(name).is_dir():
            dataset = datasets.load_from_disk(name)
        else:
            config = [source.config] if source.config else []
            dataset = datasets.load_dataset(name, *config, **({"streaming": True} if is_streamed else {}))
    except Exception as error:  # The library, the hub and the files can raise any error.
        lines = str(error).splitlines()
        raise TextError(
            f"data set {name} cannot be loaded ({type(error).__name__}: {lines[0] if lines else 'no message'}); "
            f"use the name of a data set on the hub ({SOURCE_FORMAT}), or a folder written by save_to_disk"
        ) from None
    splits = dict(dataset) if isinstance(dataset, Mapping) else {str(dataset.split or "rows"): dataset}
    if split and split not in splits:
        raise TextError(f"data set {name} has no split '{split}'; use one of {', '.join(map(str, splits))}")
    return {split: splits[split]} if split else splits
