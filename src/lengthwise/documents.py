"""Documents: named texts from files, folders and data sets, one in memory at a time."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lengthwise.errors import SkippedTextWarning, TextError

# What is read of a folder; a file that is named itself may be called anything.
SUFFIXES = (
    *(".txt", ".md", ".rst", ".tex", ".org", ".html"),
    *(
        ".py",
        ".pyi",
        ".c",
        ".h",
        ".cc",
        ".cpp",
        ".hpp",
        ".rs",
        ".go",
        ".java",
        ".js",
        ".ts",
        ".rb",
        ".sh",
        ".el",
        ".lua",
    ),
)
# What was installed into a folder is no text of that folder.
INSTALLED = ("site-packages", "dist-packages", "node_modules")
DATASET = "dataset:"
# A data set as its library saves it has one of these.
SAVED = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text by its name: its path as it was asked for, or data set, split and row."""

    name: str
    text: str


def read_documents(sources: Iterable[str | Path]) -> Iterator[Document]:
    """The texts of each source in turn: a UTF-8 file, a folder, or a data set with a ``text`` column.

    A folder is read recursively in the order of its names, files with ``SUFFIXES`` alone; what is hidden, empty or
    installed there is passed over, and so is a file that is no text (``SkippedTextWarning``). A data set is a folder
    that its library saved, ``dataset:NAME`` or ``dataset:NAME:SPLIT``. ``TextError`` for a source that is missing,
    cannot be read or has no text.
    """
    asked = [str(source) for source in sources]
    if not asked:
        raise TextError("no text is named; give files, folders or dataset:NAME")
    for source in asked:
        empty = True
        for document in _documents_of(source):
            if document.text.strip():
                empty = False
                yield document
        if empty:
            raise TextError(
                f"{source} has no text in it; give a file with some, or a folder of {', '.join(SUFFIXES[:4])}..."
            )


def _documents_of(source: str) -> Iterator[Document]:
    path = Path(source)
    if source.startswith(DATASET):
        yield from _rows_of(source.removeprefix(DATASET))
    elif path.is_dir() and any((path / name).is_file() for name in SAVED):
        yield from _rows_of(source)
    elif path.is_dir():
        yield from _texts_of(path)
    elif path.exists():
        yield Document(name=source, text=_text_of(path))
    else:
        raise TextError(f"{source} does not exist; give a file, a folder or dataset:NAME")


def _texts_of(folder: Path) -> Iterator[Document]:
    skipped = []
    for path in _files_of(folder):
        try:
            text = _text_of(path)
        except TextError:
            skipped.append(path)
            continue
        yield Document(name=str(path), text=text)
    if skipped:
        warnings.warn(
            f"{len(skipped)} file(s) of {folder} cannot be read as UTF-8 text and were left out, such as {skipped[0]}",
            SkippedTextWarning,
            stacklevel=2,
        )


def _files_of(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise TextError(f"{folder} cannot be read ({error.strerror}); give one that can, or leave it out") from None
    for entry in entries:
        if entry.name.startswith(".") or entry.name in INSTALLED:
            continue
        if entry.is_dir():
            # A link may lead back to where it is.
            if not entry.is_symlink():
                yield from _files_of(entry)
        elif entry.suffix.lower() in SUFFIXES and entry.is_file():
            yield entry


def _text_of(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TextError(f"{path} cannot be read ({error.strerror}); give one that can, or leave it out") from None
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path} is no UTF-8 text (byte {error.object[error.start]:#04x} at {error.start}); "
            "convert it, such as with iconv -t utf-8, or leave it out"
        ) from None
    if "\0" in text:
        raise TextError(f"{path} is no text (it has a zero byte at {text.index(chr(0))}); leave it out")
    return text


def _rows_of(source: str) -> Iterator[Document]:
    name, splits = _dataset(source)
    for split, rows in splits.items():
        if "text" not in rows.column_names:
            columns = ", ".join(rows.column_names)
            raise TextError(f"data set {name} has no column 'text' but {columns}; give one that has")
        for number, row in enumerate(rows.select_columns(["text"])):
            text = row["text"]
            if not isinstance(text, str | None):
                raise TextError(
                    f"row {number} of data set {name} holds {type(text).__name__}, no text; give one of texts"
                )
            yield Document(name=f"{name}:{split}:{number}", text="" if text is None else text)


def _dataset(source: str) -> tuple[str, Mapping[str, Any]]:
    """The name of a data set and its splits, all or the one that is asked for."""
    try:
        import datasets  # noqa: PLC0415  (it takes a second, and few need it)
    except ImportError:
        raise TextError("data sets need the datasets library; pip install 'lengthwise[hf]'") from None
    name, _, split = (source, "", "") if Path(source).exists() else source.partition(":")
    try:
        found = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
    except Exception as error:  # whatever the library, the hub or the data set's own files say
        lines = str(error).splitlines()
        raise TextError(
            f"data set {name} cannot be loaded ({type(error).__name__}: {lines[0] if lines else 'no message'}); "
            "give the name of one on the hub, or a folder that save_to_disk made"
        ) from None
    splits = dict(found) if isinstance(found, Mapping) else {str(found.split or "rows"): found}
    if split and split not in splits:
        raise TextError(f"data set {name} has no split '{split}'; give one of {', '.join(map(str, splits))}")
    return name, {split: splits[split]} if split else splits
