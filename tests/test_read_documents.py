"""Reading texts: files, folders and data sets, in one order, and what is no text by name."""

import os
import sys
import warnings
from pathlib import Path

import pytest

from lengthwise.documents import Document, read_documents
from lengthwise.errors import SkippedTextWarning, TextError

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
    """Texts, and files that are none."""
    for name, text in FILES.items():
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "texts"


def names(folder: Path, documents: list[Document]) -> list[str]:
    return [os.path.relpath(document.name, folder) for document in documents]


def test_a_folder_gives_its_texts_in_the_order_of_their_names_and_nothing_hidden_empty_or_installed(folder):
    found = list(read_documents([folder]))
    assert names(folder, found) == ["a.md", "b.txt", "part/B.TXT", "part/z.py"]
    assert [document.text for document in found] == ["first", "second", "third", "fourth = 4\n"]


def test_sources_are_read_in_the_order_they_are_named_and_a_named_file_whatever_it_is_called(folder):
    found = list(read_documents([folder / "table.csv", str(folder / "part")]))
    assert names(folder, found) == ["table.csv", "part/B.TXT", "part/z.py"]


def test_a_link_to_where_it_is_is_not_followed(folder):
    (folder / "part" / "again").symlink_to(folder, target_is_directory=True)
    assert len(list(read_documents([folder]))) == 4


def test_line_ends_are_kept_and_a_mark_of_the_byte_order_is_not(tmp_path):
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (document,) = read_documents([tmp_path])
    assert document.text == "one\r\ntwo\r\n"


@pytest.mark.parametrize("content", [b"caf\xe9", b"zero\0byte"])
def test_a_file_of_a_folder_that_is_no_text_is_left_out_and_told_of_once(content, folder):
    for name in ("no_text.txt", "part/no_text.txt"):
        (folder / name).write_bytes(content)
    with pytest.warns(SkippedTextWarning, match=r"^2 file\(s\) of .*texts cannot be read as UTF-8 text .* .*no_text"):
        assert len(list(read_documents([folder]))) == 4


def test_documents_are_read_one_at_a_time(folder):
    documents = read_documents([folder])
    assert next(documents).text == "first"
    (folder / "b.txt").write_text("changed")
    assert next(documents).text == "changed"


REFUSED: dict[str, tuple[list[str], str]] = {
    "nothing named": ([], r"^no text is named; give files, folders or dataset:NAME$"),
    "a missing path": (
        ["texts/nowhere.txt"],
        r"^texts/nowhere.txt does not exist; give a file, a folder or dataset:NAME$",
    ),
    "a folder without texts": (
        ["texts/.hidden/none"],
        r"none has no text in it; give a file with some, or a folder of",
    ),
    "an empty file": (["texts/empty.txt"], r"empty.txt has no text in it; give a file with some"),
    "an undecodable file": (
        ["latin.txt"],
        r"latin.txt is no UTF-8 text \(byte 0xe9 at 3\); convert it, such as with iconv",
    ),
    "a binary file": (["binary.txt"], r"binary.txt is no text \(it has a zero byte at 2\); leave it out"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_text_is_refused_in_one_line_that_names_it(name, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    (folder / ".hidden" / "none").mkdir()
    Path("latin.txt").write_bytes(b"caf\xe9")
    Path("binary.txt").write_bytes(b"ab\0c")
    sources, text = REFUSED[name]
    with pytest.raises(TextError, match=text) as caught:
        list(read_documents(sources))
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_refused_by_name(folder):
    (folder / "a.md").chmod(0)
    with pytest.raises(TextError, match=r"a.md cannot be read \(Permission denied\)"):
        list(read_documents([folder / "a.md"]))


# What a library warns of while it is imported is no matter here.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    datasets = pytest.importorskip("datasets")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A data set of two splits, as its library saves it."""
    splits = {
        "train": datasets.Dataset.from_dict({"text": ["one", "", "three"], "label": [0, 1, 2]}),
        "test": datasets.Dataset.from_dict({"text": ["four", None]}),
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    splits["train"].save_to_disk(tmp_path / "single")
    splits["train"].remove_columns("text").save_to_disk(tmp_path / "textless")
    datasets.Dataset.from_dict({"text": [1, 2]}).save_to_disk(tmp_path / "numbers")
    return tmp_path


def test_a_saved_data_set_gives_the_rows_of_all_its_splits(saved):
    found = list(read_documents([saved / "saved"]))
    assert [document.text for document in found] == ["one", "three", "four"]
    assert [document.name for document in found] == [
        f"{saved / 'saved'}:train:0",
        f"{saved / 'saved'}:train:2",
        f"{saved / 'saved'}:test:0",
    ]
    assert [document.text for document in read_documents([saved / "single"])] == ["one", "three"]


def test_one_split_of_a_data_set_can_be_named(saved):
    (document,) = read_documents([f"dataset:{saved / 'saved'}:test"])
    assert document.text == "four"
    with pytest.raises(TextError, match=r"saved has no split 'tset'; give one of train, test"):
        list(read_documents([f"dataset:{saved / 'saved'}:tset"]))


def test_a_data_set_of_the_hub_is_asked_for_by_its_name(saved, monkeypatch):
    asked = []

    def load(name: str) -> object:
        asked.append(name)
        return datasets.load_from_disk(saved / "saved")

    monkeypatch.setattr(datasets, "load_dataset", load)
    (document,) = read_documents(["dataset:someone/something:test"])
    assert (document.name, asked) == ("someone/something:test:0", ["someone/something"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("textless", r"textless has no column 'text' but label; give one that has"),
        ("numbers", r"row 0 of data set .*numbers holds int, no text; give one of texts"),
    ],
)
def test_a_data_set_without_texts_is_refused(name, text, saved):
    with pytest.raises(TextError, match=text):
        list(read_documents([saved / name]))


def test_a_data_set_that_cannot_be_loaded_is_refused_in_one_line(saved, monkeypatch):
    def load(name: str) -> object:
        raise ConnectionError("no way to the hub\nat all")

    monkeypatch.setattr(datasets, "load_dataset", load)
    text = r"^data set no/such cannot be loaded \(ConnectionError: no way to the hub\); give the name of one on the hub"
    with pytest.raises(TextError, match=text):
        list(read_documents(["dataset:no/such"]))


def test_a_data_set_needs_its_library(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TextError, match=r"data sets need the datasets library; pip install 'lengthwise\[hf\]'"):
        list(read_documents(["dataset:someone/something"]))
