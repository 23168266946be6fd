"""Documents: named texts from files, folders, records and data sets, which are read one at a time."""

import gzip
import hashlib
import warnings
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from lengthwise.core.defaults import DATASET_PREFIX, SOURCE_FORMAT
from lengthwise.core.errors import SettingError, SkippedTextWarning, TextSourceError
from lengthwise.core.json_parsing import MAX_BYTES, parse_json
from lengthwise.core.type_checks import check_arguments

# Suffixes of text files that are read from a folder. A file that is passed directly may have any suffix.
TEXT_SUFFIXES = (
    *(".txt", ".md", ".rst", ".tex", ".org", ".html", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs"),
    *(".go", ".java", ".js", ".ts", ".rb", ".sh", ".el", ".lua"),
)
# Suffixes of files that contain one JSON object per line, or a list of JSON objects.
RECORD_SUFFIXES = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json.gz", ".json")
# Suffixes of all files that are read from a folder. A .json file may contain other data, so it is excluded.
FOLDER_SUFFIXES = (*TEXT_SUFFIXES, *(suffix for suffix in RECORD_SUFFIXES if suffix != ".json"))
# Names of skipped folders, which contain installed packages.
PACKAGE_FOLDERS = ("site-packages", "dist-packages", "node_modules")
# Files that identify a data set saved by the datasets library; one of them is always present.
DATASET_FILES = ("dataset_dict.json", "dataset_info.json")
# Column with the text of a record.
DEFAULT_COLUMN = "text"
# Largest size of decompressed records beyond MAX_BYTES, as a multiple of the size of their file; texts have 2 to 30.
MAX_EXPANSION = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Text with a name: the path of its file, or the data set, split and index of its record."""

    name: str
    text: str

    def __post_init__(self) -> None:
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise TextSourceError(f"the file name {self.name!r} is not UTF-8; rename the file and its folder") from None


@check_arguments
def read_documents(
    sources: Iterable[str | Path], *, max_documents: int | None = None, digests: dict[bytes, str] | None = None
) -> Iterator[Document]:
    """Yield the documents of each source in order, at most ``max_documents`` per source.

    A source is a UTF-8 file, a folder, a file of records (``.jsonl`` or ``.json``, also with ``.gz``), or a data set: a
    folder that the datasets library saved, or ``dataset:NAME:SPLIT:CONFIG:COLUMN``, where only the name is required.
    With ``max_documents``, data sets of the hub are streamed. Folders are read recursively, sorted by name; only files
    with ``TEXT_SUFFIXES`` and files of records are read. Hidden files, empty files and installed packages are skipped
    silently. Files that are not text are skipped with a ``SkippedTextWarning``. So are copies of earlier texts, because
    a copy of a held-out text could be in the training split. ``digests`` maps the digest of each text of earlier calls
    to its name; this call adds its texts.

    Raises ``TextSourceError`` for a source that is missing, cannot be read or has no new text.
    """
    names = [str(source) for source in sources]
    if not names:
        raise TextSourceError("no text sources; pass at least one file, folder or dataset:NAME")
    if max_documents is not None and max_documents < 1:
        raise SettingError(f"max_documents {max_documents} is too small; use at least 1")
    names_by_digest: dict[bytes, str] = {} if digests is None else digests
    copies: list[tuple[str, str]] = []
    for name in names:
        all_documents = _read_source(name, is_streamed=max_documents is not None)
        documents = (document for document in all_documents if document.text.strip())
        num_new, num_earlier_copies = 0, len(copies)
        for document in islice(documents, max_documents):
            digest = hashlib.sha256(document.text.encode()).digest()
            if digest in names_by_digest:
                copies.append((document.name, names_by_digest[digest]))
                continue
            names_by_digest[digest] = document.name
            num_new += 1
            yield document
        if len(copies) > num_earlier_copies and not num_new:
            raise TextSourceError(f"{name} has only copies of other texts, such as {copies[-1][1]}; remove this source")
        if not num_new:
            raise TextSourceError(
                f"{name} has no text; use a file with text, or a folder with files such as *{TEXT_SUFFIXES[0]}"
            )
    if copies:
        name, original = copies[0]
        message = f"skipped {len(copies)} text(s) that are copies of other texts, such as {name}, a copy of {original}"
        warnings.warn(message, SkippedTextWarning, stacklevel=2)


def _read_source(source: str, *, is_streamed: bool) -> Iterator[Document]:
    path = Path(source)
    if source.startswith(DATASET_PREFIX):
        yield from _read_dataset(source.removeprefix(DATASET_PREFIX), is_streamed=is_streamed)
    elif path.is_file() and _has_records(path):
        yield from _record_documents(_file_records(path), source)
    elif any((path / name).is_file() for name in DATASET_FILES):
        yield from _read_dataset(source, is_streamed=False)
    elif path.is_dir():
        yield from _folder_documents(path)
    elif path.is_file():
        yield Document(name=source, text=_read_text(path))
    else:
        raise TextSourceError(f"{source} does not exist or is no regular file; use a file, a folder or {SOURCE_FORMAT}")


def _folder_documents(folder: Path) -> Iterator[Document]:
    skipped = []
    for path in _list_files(folder):
        if _has_records(path):
            yield from _record_documents(_file_records(path), str(path))
            continue
        try:
            text = _read_text(path)
        except TextSourceError:
            skipped.append(path)
            continue
        yield Document(name=str(path), text=text)
    if skipped:
        message = (
            f"skipped {len(skipped)} file(s) of {folder} that are too large or not UTF-8 text, such as {skipped[0]}"
        )
        warnings.warn(message, SkippedTextWarning, stacklevel=2)


def _list_files(folder: Path) -> Iterator[Path]:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise TextSourceError(
            f"{folder} cannot be read ({error.strerror}); use a readable folder, or remove it"
        ) from None
    for path in paths:
        if path.name.startswith(".") or path.name in PACKAGE_FOLDERS:
            continue
        if path.is_dir():
            # Do not follow links, because a link could point to a parent folder.
            if not path.is_symlink():
                yield from _list_files(path)
        elif path.name.lower().endswith(FOLDER_SUFFIXES) and path.is_file():
            yield path


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TextSourceError(f"{path} has more than {MAX_BYTES:,} bytes; split the file into several files")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TextSourceError(f"{path} cannot be read ({error.strerror}); use a readable file, or remove it") from None
    except UnicodeDecodeError as error:
        raise TextSourceError(
            f"{path} is not UTF-8 text (byte {error.object[error.start]:#04x} at index {error.start}); "
            "convert the file, for example with iconv -t utf-8, or remove it"
        ) from None
    if "\0" in text:
        raise TextSourceError(f"{path} is not text (it has a zero byte at index {text.index(chr(0))}); remove the file")
    return text


def _has_records(path: Path) -> bool:
    return path.name.lower().endswith(RECORD_SUFFIXES)


def _record_documents(
    records: Iterable[tuple[str, Any]], source: str, column: str = DEFAULT_COLUMN, split: str = "", config: str = ""
) -> Iterator[Document]:
    """Yield the text in a column of each named record of a source, "" for null."""
    for name, record in records:
        is_mapping = isinstance(record, Mapping)
        if not is_mapping or column not in record:
            description = f"columns {', '.join(map(str, record))}" if is_mapping else type(record).__name__
            raise TextSourceError(
                f"{name} has no column '{column}' (it has {description}); set the text column with "
                f"{SOURCE_FORMAT}, such as {DATASET_PREFIX}{source}:{split}:{config}:content"
            )
        text = record[column]
        if not isinstance(text, str | None):
            raise TextSourceError(
                f"column '{column}' of {name} has type {type(text).__name__}; use a column of strings"
            )
        yield Document(name=name, text="" if text is None else text)


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
        raise TextSourceError(f"{path} cannot be read ({error}); use a readable file, or remove it") from None
    except ValueError as error:
        raise TextSourceError(
            f"{path} has invalid JSON ({error}); write one JSON object per line, or rename a plain text file to .txt"
        ) from None


def _read_dataset(source: str, *, is_streamed: bool) -> Iterator[Document]:
    """Yield the documents of ``NAME[:SPLIT[:CONFIG[:COLUMN]]]``, or of a path; by default of all splits."""
    name, *parts = [source] if Path(source).exists() else source.split(":")
    if len(parts) > 3:
        raise TextSourceError(
            f"{DATASET_PREFIX}{source} has {len(parts) + 1} parts; use at most 4, as in {SOURCE_FORMAT}"
        )
    split, config, column = parts + [""] * (3 - len(parts))
    column = column if column else DEFAULT_COLUMN
    path = Path(name)
    is_file = _has_records(path) and path.is_file()
    records = _file_records(path) if is_file else _dataset_records(name, split, config, column, is_streamed=is_streamed)
    yield from _record_documents(records, name, column, split, config)


def _dataset_records(
    name: str, split: str, config: str, column: str, *, is_streamed: bool
) -> Iterator[tuple[str, Any]]:
    try:
        import datasets  # noqa: PLC0415  (a slow import of an optional dependency)
    except ImportError:
        raise TextSourceError("data sets need the datasets library; run pip install 'lengthwise[hf]'") from None
    try:
        if Path(name).is_dir():
            dataset = datasets.load_from_disk(name)
        else:
            options = {"streaming": True} if is_streamed else {}
            dataset = datasets.load_dataset(name, *filter(None, [config]), **options)
    except Exception as error:  # The library, the hub and the files can raise any error.
        lines = str(error).splitlines()
        raise TextSourceError(
            f"data set {name} cannot be loaded ({type(error).__name__}: {lines[0] if lines else 'no message'}); "
            f"use the name of a data set on the hub ({SOURCE_FORMAT}), or a folder written by save_to_disk"
        ) from None
    splits = dict(dataset) if isinstance(dataset, Mapping) else {str(dataset.split or "rows"): dataset}
    if split and split not in splits:
        raise TextSourceError(f"data set {name} has no split '{split}'; use one of {', '.join(map(str, splits))}")
    for split_name, rows in ({split: splits[split]} if split else splits).items():
        has_column = getattr(rows, "column_names", None) and column in rows.column_names
        # Other columns may be slow to decode.
        for index, record in enumerate(rows.select_columns([column]) if has_column else rows):
            yield f"{name}:{split_name}:{index}", record
