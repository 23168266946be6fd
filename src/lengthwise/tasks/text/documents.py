"""Documents: named texts from files, folders and data sets, which are read one at a time."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lengthwise.core.defaults import DATASET_PREFIX, SOURCE_FORMAT
from lengthwise.core.errors import SettingError, SkippedTextWarning, TextError
from lengthwise.core.json_parsing import MAX_BYTES
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.text.text_records import (
    RECORD_SUFFIXES,
    RecordSource,
    has_records,
    parse_source,
    read_texts,
)

# Suffixes of text files that are read from a folder. A file that is passed directly may have any suffix.
TEXT_SUFFIXES = (
    *(".txt", ".md", ".rst", ".tex", ".org", ".html", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".rs"),
    *(".go", ".java", ".js", ".ts", ".rb", ".sh", ".el", ".lua"),
)
# Suffixes of all files that are read from a folder. A .json file may contain other data, so it is excluded.
FOLDER_SUFFIXES = (*TEXT_SUFFIXES, *(suffix for suffix in RECORD_SUFFIXES if suffix != ".json"))
# Names of skipped folders, which contain installed packages.
PACKAGE_FOLDERS = ("site-packages", "dist-packages", "node_modules")
# Files that identify a data set saved by the datasets library; one of them is always present.
DATASET_FILES = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Text with a name: the path of its file, or the data set, split and index of its record."""

    name: str
    text: str

    def __post_init__(self) -> None:
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise TextError(f"the file name {self.name!r} is not UTF-8; rename the file and its folder") from None


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

    Raises ``TextError`` for a source that is missing, cannot be read or has no new text.
    """
    names = [str(source) for source in sources]
    if not names:
        raise TextError("no text sources; pass at least one file, folder or dataset:NAME")
    if max_documents is not None and max_documents < 1:
        raise SettingError(f"max_documents {max_documents} is too small; use at least 1")
    copy_filter = _CopyFilter({} if digests is None else digests)
    for name in names:
        all_documents = _read_source(name, is_streamed=max_documents is not None)
        documents = (document for document in all_documents if document.text.strip())
        yield from copy_filter.remove_copies(name, islice(documents, max_documents))
    copy_filter.warn_about_copies()


class _CopyFilter:
    def __init__(self, names_by_digest: dict[bytes, str]) -> None:
        self.names_by_digest, self.copies = names_by_digest, list[tuple[str, str]]()

    def remove_copies(self, source: str, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield the documents of a source that are not copies; raise ``TextError`` if all documents are copies."""
        num_new, num_earlier_copies = 0, len(self.copies)
        for document in documents:
            digest = hashlib.sha256(document.text.encode()).digest()
            if digest in self.names_by_digest:
                self.copies.append((document.name, self.names_by_digest[digest]))
                continue
            self.names_by_digest[digest] = document.name
            num_new += 1
            yield document
        if num_new:
            return
        if len(self.copies) > num_earlier_copies:
            original_name = self.copies[-1][1]
            raise TextError(f"{source} has only copies of other texts, such as {original_name}; remove this source")
        raise TextError(
            f"{source} has no text; use a file with text, or a folder with files such as *{TEXT_SUFFIXES[0]}"
        )

    def warn_about_copies(self) -> None:
        if not self.copies:
            return
        name, original = self.copies[0]
        message = (
            f"skipped {len(self.copies)} text(s) that are copies of other texts, such as {name}, a copy of {original}"
        )
        warnings.warn(message, SkippedTextWarning, stacklevel=3)


def _read_source(source: str, *, is_streamed: bool) -> Iterator[Document]:
    path = Path(source)
    if source.startswith(DATASET_PREFIX):
        yield from _record_documents(parse_source(source.removeprefix(DATASET_PREFIX)), is_streamed=is_streamed)
    elif (path.is_file() and has_records(path)) or any((path / name).is_file() for name in DATASET_FILES):
        yield from _record_documents(RecordSource(name=source))
    elif path.is_dir():
        yield from _folder_documents(path)
    elif path.is_file():
        yield Document(name=source, text=_read_text(path))
    else:
        raise TextError(f"{source} does not exist or is no regular file; use a file, a folder or {SOURCE_FORMAT}")


def _record_documents(source: RecordSource, *, is_streamed: bool = False) -> Iterator[Document]:
    for name, text in read_texts(source, is_streamed=is_streamed):
        yield Document(name=name, text=text)


def _folder_documents(folder: Path) -> Iterator[Document]:
    skipped = []
    for path in _list_files(folder):
        if has_records(path):
            yield from _record_documents(RecordSource(name=str(path)))
            continue
        try:
            text = _read_text(path)
        except TextError:
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
        raise TextError(f"{folder} cannot be read ({error.strerror}); use a readable folder, or remove it") from None
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
            raise TextError(f"{path} has more than {MAX_BYTES:,} bytes; split the file into several files")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise TextError(f"{path} cannot be read ({error.strerror}); use a readable file, or remove it") from None
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path} is not UTF-8 text (byte {error.object[error.start]:#04x} at index {error.start}); "
            "convert the file, for example with iconv -t utf-8, or remove it"
        ) from None
    if "\0" in text:
        raise TextError(f"{path} is not text (it has a zero byte at index {text.index(chr(0))}); remove the file")
    return text
