"""Documents: named texts from files, folders and data sets, read one at a time."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lengthwise.core.errors import SettingError, SkippedTextWarning, TextError
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.text.text_records import (
    DATASET,
    FORM,
    RECORD_SUFFIXES,
    RecordSource,
    has_records,
    parse_source,
    read_texts,
)

# Suffixes of text files within a folder. A file that is passed directly may have any suffix.
SUFFIXES = (
    *(".txt", ".md", ".rst", ".tex", ".org", ".html", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs"),
    *(".go", ".java", ".js", ".ts", ".rb", ".sh", ".el", ".lua"),
)
# Suffixes of files of records within a folder, without .json, which may contain other data.
FOLDER_SUFFIXES = (*SUFFIXES, *(suffix for suffix in RECORD_SUFFIXES if suffix != ".json"))
# Names of skipped folders, which contain installed packages.
PACKAGE_FOLDERS = ("site-packages", "dist-packages", "node_modules")
# Files that identify a data set saved by the datasets library; one of them is always present.
DATASET_FILES = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Text with a name: the path as passed, or the data set, split and index."""

    name: str
    text: str


@check_arguments
def read_documents(
    sources: Iterable[str | Path], *, max_documents: int | None = None, digests: dict[bytes, str] | None = None
) -> Iterator[Document]:
    """Yield the texts of each source in order, at most ``max_documents`` per source.

    A source is a UTF-8 file, a folder, a file of records (``.jsonl`` or ``.json``, also with ``.gz``), or a data set: a
    folder that the datasets library saved, or ``dataset:NAME:SPLIT:CONFIG:COLUMN``, where only the name is required.
    With ``max_documents``, data sets of the hub are streamed. Folders are read recursively, sorted by name; only files
    with ``SUFFIXES`` and files of records are read. Hidden, empty and installed files are skipped silently. Files that
    are not text and copies of earlier texts are skipped with a ``SkippedTextWarning``; copies could be in both training
    and test texts. ``digests`` maps the digests of the texts of earlier calls to names, and is updated.
    Raises ``TextError`` for a source that is missing, cannot be read or has no new text.
    """
    names = [str(source) for source in sources]
    if not names:
        raise TextError("no source of text; use files, folders or dataset:NAME")
    if max_documents is not None and max_documents < 1:
        raise SettingError(f"{max_documents} documents per source is too small; use at least 1")
    copies = _CopyFilter({} if digests is None else digests)
    for name in names:
        documents = (each for each in _documents(name, is_streamed=max_documents is not None) if each.text.strip())
        yield from copies.filter(name, islice(documents, max_documents))
    copies.warn()


class _CopyFilter:
    """Filter that removes copies of earlier texts by their digests."""

    def __init__(self, first_names: dict[bytes, str]) -> None:
        self.first_names, self.copies = first_names, list[tuple[str, str]]()

    def filter(self, source: str, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents of a source that are not copies; raise ``TextError`` if all documents are copies."""
        num_new, num_copies = 0, len(self.copies)
        for document in documents:
            digest = hashlib.sha256(document.text.encode()).digest()
            if digest in self.first_names:
                self.copies.append((document.name, self.first_names[digest]))
                continue
            self.first_names[digest] = document.name
            num_new += 1
            yield document
        if num_new:
            return
        if len(self.copies) > num_copies:
            raise TextError(f"{source} has only copies of other texts, such as {self.copies[-1][1]}; remove it")
        raise TextError(f"{source} has no text; use a file with text, or a folder of {', '.join(SUFFIXES[:4])}...")

    def warn(self) -> None:
        if not self.copies:
            return
        name, first = self.copies[0]
        warnings.warn(
            f"skipped {len(self.copies)} text(s) that are copies of other texts, such as {name} of {first}",
            SkippedTextWarning,
            stacklevel=3,
        )


def _documents(source: str, *, is_streamed: bool) -> Iterator[Document]:
    path = Path(source)
    if source.startswith(DATASET):
        yield from _records(parse_source(source.removeprefix(DATASET)), is_streamed=is_streamed)
    elif (path.is_file() and has_records(path)) or any((path / name).is_file() for name in DATASET_FILES):
        yield from _records(RecordSource(name=source))
    elif path.is_dir():
        yield from _folder_documents(path)
    elif path.exists():
        yield Document(name=source, text=_read_text(path))
    else:
        raise TextError(f"{source} does not exist; use a file, a folder or {FORM}")


def _records(source: RecordSource, *, is_streamed: bool = False) -> Iterator[Document]:
    for name, text in read_texts(source, is_streamed=is_streamed):
        yield Document(name=name, text=text)


def _folder_documents(folder: Path) -> Iterator[Document]:
    skipped = []
    for path in _files(folder):
        if has_records(path):
            yield from _records(RecordSource(name=str(path)))
            continue
        try:
            text = _read_text(path)
        except TextError:
            skipped.append(path)
            continue
        yield Document(name=str(path), text=text)
    if skipped:
        warnings.warn(
            f"skipped {len(skipped)} file(s) of {folder} that are not UTF-8 text, such as {skipped[0]}",
            SkippedTextWarning,
            stacklevel=2,
        )


def _files(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise TextError(f"{folder} cannot be read ({error.strerror}); use a readable folder, or remove it") from None
    for entry in entries:
        if entry.name.startswith(".") or entry.name in PACKAGE_FOLDERS:
            continue
        if entry.is_dir():
            # Links are not followed, because a link could point to a parent folder.
            if not entry.is_symlink():
                yield from _files(entry)
        elif entry.name.lower().endswith(FOLDER_SUFFIXES) and entry.is_file():
            yield entry


def _read_text(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TextError(f"{path} cannot be read ({error.strerror}); use a readable file, or remove it") from None
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path} is not UTF-8 text (byte {error.object[error.start]:#04x} at {error.start}); "
            "convert it, for example with iconv -t utf-8, or remove it"
        ) from None
    if "\0" in text:
        raise TextError(f"{path} is not text (it has a zero byte at {text.index(chr(0))}); remove it")
    return text
