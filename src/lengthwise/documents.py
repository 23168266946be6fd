"""Documents: named texts from files, folders and data sets, one in memory at a time."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lengthwise.errors import SettingError, SkippedTextWarning, TextError
from lengthwise.text_rows import DATASET, FORM, ROW_SUFFIXES, RowSource, has_rows, row_source, rows_of

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
# A .json file in a folder may hold anything.
READ = (*SUFFIXES, *(each for each in ROW_SUFFIXES if each != ".json"))
# What was installed into a folder is no text of that folder.
INSTALLED = ("site-packages", "dist-packages", "node_modules")
# A data set as its library saves it has one of these.
SAVED = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text by its name: its path as it was asked for, or data set, split and row."""

    name: str
    text: str


def read_documents(sources: Iterable[str | Path], *, most: int | None = None) -> Iterator[Document]:
    """The texts of each source in turn: a UTF-8 file, a folder, or rows; at most ``most`` of each.

    Rows are the lines of a ``.jsonl`` or ``.json`` file, ``.gz`` or not, or a data set: a folder that its library
    saved, or ``dataset:NAME:SPLIT:CONFIG:COLUMN``, of which all but the name may be left out. Where ``most`` is given,
    data sets of the hub are streamed. A folder is read recursively in the order of its names, files with ``SUFFIXES``
    and of rows alone; what is hidden, empty or installed there is passed over, and so is a file that is no text
    (``SkippedTextWarning``). ``TextError`` for a source that is missing, cannot be read or has no text.
    """
    asked = [str(source) for source in sources]
    if not asked:
        raise TextError("no text is named; give files, folders or dataset:NAME")
    if most is not None and most < 1:
        raise SettingError(f"{most} documents of each source hold no text; use at least 1")
    for source in asked:
        empty = True
        found = (each for each in _documents_of(source, streamed=most is not None) if each.text.strip())
        for document in islice(found, most):
            empty = False
            yield document
        if empty:
            raise TextError(
                f"{source} has no text in it; give a file with some, or a folder of {', '.join(SUFFIXES[:4])}..."
            )


def _documents_of(source: str, *, streamed: bool) -> Iterator[Document]:
    path = Path(source)
    if source.startswith(DATASET):
        yield from _rows(row_source(source.removeprefix(DATASET)), streamed=streamed)
    elif (path.is_file() and has_rows(path)) or any((path / name).is_file() for name in SAVED):
        yield from _rows(RowSource(name=source))
    elif path.is_dir():
        yield from _texts_of(path)
    elif path.exists():
        yield Document(name=source, text=_text_of(path))
    else:
        raise TextError(f"{source} does not exist; give a file, a folder or {FORM}")


def _rows(source: RowSource, *, streamed: bool = False) -> Iterator[Document]:
    for name, text in rows_of(source, streamed=streamed):
        yield Document(name=name, text=text)


def _texts_of(folder: Path) -> Iterator[Document]:
    skipped = []
    for path in _files_of(folder):
        if has_rows(path):
            yield from _rows(RowSource(name=str(path)))
            continue
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
        elif entry.name.lower().endswith(READ) and entry.is_file():
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
