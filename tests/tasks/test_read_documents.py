"""Documents from files, folders and data sets: their order, and errors for invalid sources."""

import gzip
import json
import os
import sys
import tracemalloc
import warnings
from collections.abc import Iterable
from pathlib import Path

import pytest

from lengthwise.core.errors import SettingError, SkippedTextWarning, TaskFileError, TextSourceError
from lengthwise.core.json_parsing import MAX_BYTES
from lengthwise.tasks import JSONLTask
from lengthwise.tasks.text.documents import Document, read_documents

FILES = {
    "b.txt": "second",
    "a.md": "first",
    "part/z.py": "fourth = 4\n",
    "part/B.TXT": "third",
    ".hidden/secret.txt": "no",
    ".secret.txt": "no",
    "part/site-packages/other.py": "no",
    "table.csv": "no",
    "empty.txt": "",
    "blank.txt": " \n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder with texts and other files."""
    for name, text in FILES.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "texts"


def names(folder: Path, documents: list[Document]) -> list[str]:
    return [os.path.relpath(document.name, folder) for document in documents]


def test_a_folder_gives_its_texts_sorted_by_name_without_hidden_empty_or_installed_files(folder):
    documents = list(read_documents([folder]))
    assert names(folder, documents) == ["a.md", "b.txt", "part/B.TXT", "part/z.py"]
    assert [document.text for document in documents] == ["first", "second", "third", "fourth = 4\n"]


def test_sources_are_read_in_order_and_a_named_file_may_have_any_suffix(folder):
    documents = list(read_documents([folder / "table.csv", str(folder / "part")]))
    assert names(folder, documents) == ["table.csv", "part/B.TXT", "part/z.py"]


def test_links_to_folders_are_not_followed(folder):
    (folder / "part" / "again").symlink_to(folder, target_is_directory=True)
    assert len(list(read_documents([folder]))) == 4


def test_reading_keeps_line_ends_and_removes_the_byte_order_mark(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (document,) = read_documents([tmp_path])
    assert document.text == "one\r\ntwo\r\n"


@pytest.mark.parametrize("content", [b"caf\xe9", b"zero\0byte"])
def test_files_of_a_folder_that_are_not_text_are_skipped_with_one_warning(content, folder):
    for name in ("no_text.txt", "part/no_text.txt"):
        (folder / name).write_bytes(content)
    with pytest.warns(
        SkippedTextWarning, match=r"^skipped 2 file\(s\) of .*texts that are too large or not UTF-8 text, .*no_text"
    ):
        assert len(list(read_documents([folder]))) == 4


def test_copies_of_texts_are_skipped_with_one_warning(folder):
    (folder / "part" / "copy.txt").write_text((folder / "b.txt").read_text())
    digests = {}
    with pytest.warns(
        SkippedTextWarning,
        match=r"^skipped 1 text\(s\) that are copies of other texts, such as .*copy\.txt, a copy of .*b",
    ):
        first = list(read_documents([folder], digests=digests))
    assert len({each.text for each in first}) == len(first) == len(digests) == 4
    (folder / "new.txt").write_text("new")
    with pytest.warns(SkippedTextWarning, match=r"^skipped 5 text\(s\) that are copies"):
        assert [each.text for each in read_documents([folder], digests=digests)] == ["new"]


def test_documents_are_read_one_at_a_time(folder):
    documents = read_documents([folder])
    assert next(documents).text == "first"
    (folder / "b.txt").write_text("changed")
    assert next(documents).text == "changed"


INVALID: dict[str, tuple[list[str], str]] = {
    "no sources": ([], r"^no text sources; pass at least one file, folder or dataset:NAME$"),
    "a missing path": (
        ["texts/nowhere.txt"],
        r"^texts/nowhere.txt does not exist or is no regular file; use a file, a folder or dataset:NAME",
    ),
    "a folder without texts": (
        ["texts/.hidden/none"],
        r"none has no text; use a file with text, or a folder with",
    ),
    "an empty file": (["texts/empty.txt"], r"empty.txt has no text; use a file with text"),
    "an undecodable file": (
        ["latin.txt"],
        r"latin.txt is not UTF-8 text \(byte 0xe9 at index 3\); convert the file, for example with iconv",
    ),
    "the same source twice": (
        ["texts/a.md", "texts/./a.md"],
        r"^texts/./a.md has only copies of other texts, such as texts/a.md; remove this source$",
    ),
    "a binary file": (["binary.txt"], r"binary.txt is not text \(it has a zero byte at index 2\); remove the file"),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_source_raises_a_one_line_error_with_its_name(name, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    (folder / ".hidden" / "none").mkdir()
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("binary.txt").write_bytes(b"ab\0c")
    sources, text = INVALID[name]
    with pytest.raises(TextSourceError, match=text) as caught:
        list(read_documents(sources))
    assert "\n" not in str(caught.value)


@pytest.mark.linux
@pytest.mark.skipif(getattr(os, "getuid", int)() == 0, reason="root reads everything")
def test_a_file_without_read_permission_raises_an_error_with_its_name(folder):
    (folder / "a.md").chmod(0)
    with pytest.raises(TextSourceError, match=r"a.md cannot be read \(Permission denied\)"):
        list(read_documents([folder / "a.md"]))


# Warnings at the import of the library do not matter here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    datasets = pytest.importorskip("datasets")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Folder with data sets that the datasets library saved."""
    splits = {
        "train": datasets.Dataset.from_dict({"text": ["one", "", "three"], "label": [0, 1, 2]}),
        "test": datasets.Dataset.from_dict({"text": ["four", None]}),
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    splits["train"].save_to_disk(tmp_path / "single")
    splits["train"].remove_columns("text").save_to_disk(tmp_path / "textless")
    datasets.Dataset.from_dict({"text": [1, 2]}).save_to_disk(tmp_path / "numbers")
    return tmp_path


def test_a_saved_data_set_gives_the_texts_of_all_its_splits(saved):
    documents = list(read_documents([saved / "saved"]))
    assert [document.text for document in documents] == ["one", "three", "four"]
    assert [document.name for document in documents] == [
        f"{saved / 'saved'}:train:0",
        f"{saved / 'saved'}:train:2",
        f"{saved / 'saved'}:test:0",
    ]
    assert [document.text for document in read_documents([saved / "single"])] == ["one", "three"]


def test_a_source_can_name_one_split_of_a_data_set(saved):
    (document,) = read_documents([f"dataset:{saved / 'saved'}:test"])
    assert document.text == "four"
    with pytest.raises(TextSourceError, match=r"saved has no split 'tset'; use one of train, test"):
        list(read_documents([f"dataset:{saved / 'saved'}:tset"]))


def test_a_data_set_of_the_hub_is_loaded_by_its_name(saved, monkeypatch):
    calls = []

    def load(name: str) -> object:
        calls.append(name)
        return datasets.load_from_disk(saved / "saved")

    monkeypatch.setattr(datasets, "load_dataset", load)
    (document,) = read_documents(["dataset:someone/something:test"])
    assert (document.name, calls) == ("someone/something:test:0", ["someone/something"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "textless",
            r"textless:rows:0 has no column 'text' \(it has columns label\); set the text column with dataset:NAME",
        ),
        ("numbers", r"column 'text' of .*numbers:\w+:0 has type int; use a column of strings"),
    ],
)
def test_a_data_set_without_texts_raises_an_error(name, text, saved):
    with pytest.raises(TextSourceError, match=text):
        list(read_documents([saved / name]))


def test_a_data_set_that_cannot_be_loaded_raises_a_one_line_error(saved, monkeypatch):
    def load(name: str) -> object:
        raise ConnectionError("no way to the hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load)
    text = r"^data set no/such cannot be loaded \(ConnectionError: no way to the hub\); use the name of a data set"
    with pytest.raises(TextSourceError, match=text):
        list(read_documents(["dataset:no/such"]))


def test_a_data_set_without_the_datasets_library_raises_an_error(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        TextSourceError, match=r"data sets need the datasets library; run pip install 'lengthwise\[hf\]'"
    ):
        list(read_documents(["dataset:someone/something"]))


RECORDS = [{"text": "one"}, {"text": ""}, {"text": "three", "url": "x"}, {"text": None}]
LINES = "\n".join(json.dumps(row) for row in RECORDS) + "\n\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl", LINES.encode()),
        ("rows.JSONL", b"\xef\xbb\xbf" + LINES.encode()),
        ("rows.json", LINES.encode()),
        ("list.json", json.dumps(RECORDS).encode()),
        ("c4.json.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("rows.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("rows.ndjson", LINES.encode()),
    ],
)
def test_each_record_of_a_file_is_a_document(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    documents = list(read_documents([tmp_path / name]))
    assert [document.text for document in documents] == ["one", "three"]
    first = 0 if name == "list.json" else 1
    assert [document.name for document in documents] == [f"{tmp_path / name}:{first + at}" for at in (0, 2)]


def test_a_folder_gives_the_records_of_jsonl_files_and_skips_json_files(tmp_path):
    (tmp_path / "rows.jsonl").write_text(LINES)
    (tmp_path / "settings.json").write_text('{"a": 1}')
    assert [document.text for document in read_documents([tmp_path])] == ["one", "three"]


def test_a_source_can_name_the_text_column_of_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"body": "one"}\n')
    with pytest.raises(
        TextSourceError, match=r"rows.jsonl:1 has no column 'text' \(it has columns body\); set the text"
    ):
        list(read_documents([path]))
    assert [document.text for document in read_documents([f"dataset:{path}:::body"])] == ["one"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"plain text\n",
            r"rows.json has invalid JSON \(Expecting value.*\); write one JSON object per line, or rename",
        ),
        (b'{"text": "one"}\n{"text"', r"has invalid JSON"),
        (b"[1]", r"rows.json:0 has no column 'text' \(it has int"),
        (b"\xff\xfe", r"has invalid JSON \("),
        (b"", r"rows.json has no text"),
    ],
)
def test_invalid_records_raise_a_one_line_error(content, message, tmp_path):
    (tmp_path / "rows.json").write_bytes(content)
    with pytest.raises(TextSourceError, match=message) as caught:
        list(read_documents([tmp_path / "rows.json"]))
    assert "\n" not in str(caught.value)


def test_a_truncated_archive_raises_an_error(tmp_path):
    (tmp_path / "rows.json.gz").write_bytes(gzip.compress(LINES.encode() * 100, mtime=0)[:40])
    with pytest.raises(TextSourceError, match=r"rows.json.gz cannot be read \(Compressed file ended"):
        list(read_documents([tmp_path / "rows.json.gz"]))


def test_a_source_can_name_configuration_and_column_and_the_first_documents_are_streamed(saved, monkeypatch):
    calls = []

    def load(name: str, *config: str, **options: object) -> object:
        calls.append((name, config, options))
        whole = datasets.load_from_disk(saved / "saved").rename_column("text", "body")
        return datasets.IterableDatasetDict({split: rows.to_iterable_dataset() for split, rows in whole.items()})

    monkeypatch.setattr(datasets, "load_dataset", load)
    documents = list(read_documents(["dataset:allenai/c4:train:en:body"], max_documents=1))
    assert [(each.name, each.text) for each in documents] == [("allenai/c4:train:0", "one")]
    assert [each.text for each in read_documents(["dataset:allenai/c4:::body"], max_documents=2)] == ["one", "three"]
    assert calls == [("allenai/c4", ("en",), {"streaming": True}), ("allenai/c4", (), {"streaming": True})]
    with pytest.raises(
        TextSourceError, match=r"^dataset:a:b:c:d:e has 5 parts; use at most 4, as in dataset:NAME:SPLIT:CONFIG:COLUMN"
    ):
        list(read_documents(["dataset:a:b:c:d:e"]))
    with pytest.raises(SettingError, match=r"^max_documents 0 is too small; use at least 1$"):
        list(read_documents(["dataset:a"], max_documents=0))


def compressed_lines(path: Path, lines: Iterable[bytes]) -> Path:
    with gzip.open(path, "wb") as file:
        file.writelines(lines)
    return path


ZEROS = b"0" * (1 << 16)
BOMBS = {
    "one line": [b'{"text": "', *[ZEROS] * 160, b'"}\n'],
    "a list": [b'[{"text": "', *[ZEROS] * 160, b'"}]'],
    "many lines": [b'{"text": "' + ZEROS + b'"}\n'] * 160,
    "empty lines": [b"\n" * (1 << 16)] * 160,
}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_archive_does_not_fill_the_memory(name, tmp_path, monkeypatch):
    limit = 1 << 20
    for module in ("core.json_parsing", "tasks.text.documents"):
        monkeypatch.setattr(f"lengthwise.{module}.MAX_BYTES", limit)
    monkeypatch.setattr("lengthwise.tasks.text.documents.MAX_EXPANSION", 20)
    path = compressed_lines(tmp_path / "rows.jsonl.gz", BOMBS[name])
    assert path.stat().st_size < limit / 20
    tracemalloc.start()
    with pytest.raises(TextSourceError, match=rf"{path.name} .* bytes"):
        list(read_documents([path]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * limit


@pytest.mark.parametrize("name", ["text.txt", "rows.jsonl"])
def test_a_text_that_is_too_large_raises_an_error(name, tmp_path):
    with (tmp_path / name).open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(TextSourceError, match=f"{MAX_BYTES:,} bytes"):
        list(read_documents([tmp_path / name]))
    (tmp_path / "small.txt").write_text("small")
    if name == "text.txt":
        with pytest.warns(SkippedTextWarning, match="too large .*text.txt"):
            assert [each.text for each in read_documents([tmp_path])] == ["small"]


def test_a_pipe_is_no_text(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(TextSourceError, match="no regular file"):
        list(read_documents([tmp_path / "pipe.txt"]))
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(TaskFileError, match="not a regular file"):
        JSONLTask(file=str(tmp_path / "pipe.jsonl"))
