"""Texts in rows: files of JSON lines, compressed or not, and data sets of the datasets library."""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthwise.core.errors import TextError
from lengthwise.core.json_parsing import parse_json

DATASET, TEXT = "dataset:", "text"
FORM = f"{DATASET}NAME:SPLIT:CONFIG:COLUMN"
# Files of one JSON object per line, or of a list of them. In a folder the last is no text: it may hold anything.
ROW_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json.gz", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """A data set or a file of rows; what is empty is the only split, the only configuration, and ``TEXT``."""

    name: str
    split: str = ""
    config: str = ""
    column: str = TEXT

    @property
    def is_file(self) -> bool:
        """Whether rows are lines of a file."""
        return has_rows(Path(self.name)) and Path(self.name).is_file()


def row_source(source: str) -> RowSource:
    """Read ``NAME[:SPLIT[:CONFIG[:COLUMN]]]``; ``TextError`` for more parts than these."""
    if Path(source).exists():
        return RowSource(name=source)
    name, *parts = source.split(":")
    if len(parts) > 3:
        raise TextError(f"{DATASET}{source} has {len(parts) + 1} parts; give {FORM}, of which parts may be empty")
    split, config, column = parts + [""] * (3 - len(parts))
    return RowSource(name=name, split=split, config=config, column=column if column else TEXT)


def has_rows(path: Path) -> bool:
    """Whether a file of this name holds rows and not one text."""
    return path.name.lower().endswith(ROW_SUFFIXES)


def rows_of(source: RowSource, *, streamed: bool = False) -> Iterator[tuple[str, str]]:
    """The name and the text of each row, "" for null; ``streamed``: a data set of the hub is not downloaded first."""
    rows = _lines(source) if source.is_file else _dataset_rows(source, streamed=streamed)
    for name, row in rows:
        if not isinstance(row, Mapping) or source.column not in row:
            found = f"the columns {', '.join(map(str, row))}" if isinstance(row, Mapping) else type(row).__name__
            raise TextError(
                f"{name} has no column '{source.column}' but {found}; name the one with the text as {FORM}, such as "
                f"{DATASET}{source.name}:{source.split}:{source.config}:content"
            )
        text = row[source.column]
        if not isinstance(text, str | None):
            raise TextError(f"column '{source.column}' of {name} holds {type(text).__name__}, no text; name another")
        yield name, "" if text is None else text


def _lines(source: RowSource) -> Iterator[tuple[str, Any]]:
    path = Path(source.name)
    try:
        with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            listed = file.read(1) == "["
            file.seek(0)
            if listed:
                yield from ((f"{path}:{number}", row) for number, row in enumerate(parse_json(file.read(), list)))
                return
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", parse_json(line, object)
    except (OSError, EOFError, zlib.error) as error:
        raise TextError(f"{path} cannot be read ({error}); give one that can, or leave it out") from None
    except ValueError as error:
        raise TextError(
            f"{path} holds no JSON rows ({error}); give one object per line, or rename a file of plain text to .txt"
        ) from None


def _dataset_rows(source: RowSource, *, streamed: bool) -> Iterator[tuple[str, Any]]:
    for split, rows in _splits(source, streamed=streamed).items():
        if getattr(rows, "column_names", None) and source.column in rows.column_names:
            # Other columns may hold what is slow to decode.
            rows = rows.select_columns([source.column])  # noqa: PLW2901
        for number, row in enumerate(rows):
            yield f"{source.name}:{split}:{number}", row


def _splits(source: RowSource, *, streamed: bool) -> Mapping[str, Any]:
    """The splits of a data set, all or the one that is asked for."""
    try:
        import datasets  # noqa: PLC0415  (it takes a second, and few need it)
    except ImportError:
        raise TextError("data sets need the datasets library; pip install 'lengthwise[hf]'") from None
    name, split = source.name, source.split
    try:
        if Path(name).is_dir():
            found = datasets.load_from_disk(name)
        else:
            config = [source.config] if source.config else []
            found = datasets.load_dataset(name, *config, **({"streaming": True} if streamed else {}))
    except Exception as error:  # whatever the library, the hub or the data set's own files say
        lines = str(error).splitlines()
        raise TextError(
            f"data set {name} cannot be loaded ({type(error).__name__}: {lines[0] if lines else 'no message'}); "
            f"give the name of one on the hub ({FORM}), or a folder that save_to_disk made"
        ) from None
    splits = dict(found) if isinstance(found, Mapping) else {str(found.split or "rows"): found}
    if split and split not in splits:
        raise TextError(f"data set {name} has no split '{split}'; give one of {', '.join(map(str, splits))}")
    return {split: splits[split]} if split else splits
