"""Documents: named texts from files, folders and data sets, one in memory at a time."""

import hashlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from lengthwise.core.errors import SettingError, SkippedTextWarning, TextError
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.text.text_records import DATASET, FORM, ROW_SUFFIXES, RowSource, has_rows, row_source, rows_of

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


@check_arguments
def read_documents(
    sources: Iterable[str | Path], *, most: int | None = None, known: dict[bytes, str] | None = None
) -> Iterator[Document]:
    """The texts of each source in turn: a UTF-8 file, a folder, or rows; at most ``most`` of each.

    Rows are the lines of a ``.jsonl`` or ``.json`` file, ``.gz`` or not, or a data set: a folder that its library
    saved, or ``dataset:NAME:SPLIT:CONFIG:COLUMN``, of which all but the name may be left out. Where ``most`` is given,
    data sets of the hub are streamed. A folder is read recursively in the order of its names, files with ``SUFFIXES``
    and of rows alone; what is hidden, empty or installed there is passed over, and so is a file that is no text
    (``SkippedTextWarning``). A text that another one before it had is passed over and told of likewise: it would be
    trained on and tested with, or counted twice. ``known`` has the texts of earlier calls, and gets those of this one.
    ``TextError`` for a source that is missing, cannot be read or has no text of its own.
    """
    asked = [str(source) for source in sources]
    if not asked:
        raise TextError("no text is named; give files, folders or dataset:NAME")
    if most is not None and most < 1:
        raise SettingError(f"{most} documents of each source hold no text; use at least 1")
    seen = _Seen({} if known is None else known)
    for source in asked:
        found = (each for each in _documents_of(source, streamed=most is not None) if each.text.strip())
        yield from seen.new_of(source, islice(found, most))
    seen.tell()


class _Seen:
    """Tells new texts from copies of earlier ones, by a digest of each."""

    def __init__(self, first_of: dict[bytes, str]) -> None:
        self.first_of, self.copies = first_of, list[tuple[str, str]]()

    def new_of(self, source: str, documents: Iterable[Document]) -> Iterator[Document]:
        """The documents of a source that are no copies; ``TextError`` where there are none."""
        new, copies = 0, len(self.copies)
        for document in documents:
            digest = hashlib.sha256(document.text.encode()).digest()
            if digest in self.first_of:
                self.copies.append((document.name, self.first_of[digest]))
                continue
            self.first_of[digest] = document.name
            new += 1
            yield document
        if new:
            return
        if len(self.copies) > copies:
            raise TextError(f"{source} has copies of other texts alone, such as of {self.copies[-1][1]}; leave it out")
        raise TextError(
            f"{source} has no text in it; give a file with some, or a folder of {', '.join(SUFFIXES[:4])}..."
        )

    def tell(self) -> None:
        if not self.copies:
            return
        name, first = self.copies[0]
        warnings.warn(
            f"{len(self.copies)} text(s) are copies of others and were left out, such as {name} of {first}",
            SkippedTextWarning,
            stacklevel=3,
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
