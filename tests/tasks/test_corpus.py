"""Corpora: no text is changed by its tokens, no held-out one is trained on, the same texts give the same files."""

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tests.support.small_runs import tree

from lengthwise.core.errors import (
    LengthwiseError,
    RunFolderError,
    SettingError,
    SkippedTextWarning,
    TextError,
    UnknownNameError,
)
from lengthwise.tasks.text.corpus import HELD_OUT, SPLITS, TRAIN, open_corpus, read_facts, read_tokenizer, with_digest
from lengthwise.tasks.text.prepare import prepare_corpus, token_type
from lengthwise.tasks.text.tokenizer import END, END_TEXT, ByteTokenizer, Tokenizer, _library_tokenizer, format_piece

PROSE = {
    f"tale {place}": f"Once there were {place} hens and a fox, and the fox said nothing.\n" * 9 for place in range(12)
}
CODE = {f"part_{place}": f"def part_{place}(x):\n    return x + {place}\n\n\n" * 9 for place in range(8)}
STRANGE = "naïve café, 東京, \U0001f600; tabs\tand\r\nline ends\n\n  <|end|> end \\ ' \" \x7f \u200b"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve tales, eight modules and one letter."""
    for kind, ending, named in (("prose", "txt", PROSE), ("code", "py", CODE)):
        (tmp_path / kind).mkdir()
        for name, text in named.items():
            (tmp_path / kind / f"{name}.{ending}").write_text(text)
    (tmp_path / "letter").mkdir()
    (tmp_path / "letter" / "only.txt").write_text("".join(f"This is line {line} of a letter.\n" for line in range(40)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepared(sources: Sequence[str] = ("prose", "code"), out: str = "corpus", **given: Any) -> Path:
    prepare_corpus(list(sources), Path(out), **{"vocabulary_size": 300, "held_out": 0.2, **given})
    return Path(out)


def text_of(tokenizer: Tokenizer, tokens: Sequence[int] | np.ndarray) -> str:
    """The text that tokens stand for."""
    return b"".join(tokenizer.pieces[int(token)] for token in tokens).decode()


def split_texts(folder: Path, split: str, kind: str | None = None) -> dict[str, str]:
    corpus = open_corpus(folder)
    return {name: text_of(corpus.tokenizer, tokens) for name, tokens in corpus.texts(split, kind)}


@pytest.mark.parametrize("text", [STRANGE, PROSE["tale 3"], ""], ids=["strange", "prose", "empty"])
def test_tokens_stand_for_exactly_the_text_they_were_made_of(text, texts):
    for tokenizer in (ByteTokenizer(), read_tokenizer(prepared(out=f"corpus{len(text)}"))):
        assert isinstance(tokenizer, Tokenizer)
        tokens = tokenizer.encode(text)
        assert text_of(tokenizer, tokens) == text
        assert END not in tokens


def test_the_tokenizer_is_that_of_the_library_which_decodes_it_alike(texts):
    folder = prepared()
    ours, library = read_tokenizer(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert library.get_vocab_size() == len(ours.pieces) == 300
    assert library.token_to_id(END_TEXT) == END
    tokens = ours.encode(PROSE["tale 7"])
    assert library.decode(list(tokens)) == PROSE["tale 7"]
    assert len(tokens) < len(PROSE["tale 7"]) / 2


def test_every_piece_is_shown_in_its_own_way_and_the_end_as_end(texts):
    pieces = read_tokenizer(prepared()).pieces
    assert len({format_piece(piece) for piece in pieces}) == len(pieces)
    assert format_piece(pieces[END]) == "end"
    assert format_piece(b"end") == "'end'"
    assert format_piece(b"\n") == "'\\n'"
    assert format_piece(b"\xe6") == "b'\\xe6'"


def test_the_splits_hold_every_document_once_and_each_kind_is_held_out_by_whole_documents(texts):
    folder = prepared()
    train, held_out = (split_texts(folder, split) for split in SPLITS)
    assert set(train).isdisjoint(held_out)
    whole = {f"prose/{name}.txt": text for name, text in PROSE.items()} | {
        f"code/{name}.py": text for name, text in CODE.items()
    }
    assert train | held_out == whole
    for kind, named in (("prose", PROSE), ("code", CODE)):
        share = len("".join(split_texts(folder, HELD_OUT, kind).values())) / len("".join(named.values()))
        assert 0.2 <= share <= 0.2 + 1.5 / len(named)


def test_no_copy_of_a_held_out_text_is_trained_on(texts):
    # Each tale four times, and all of them once more as a kind of their own with a new one.
    (texts / "other").mkdir()
    for name, text in PROSE.items():
        for place in range(3):
            (texts / "prose" / f"{name} copy {place}.txt").write_text(text)
        (texts / "other" / f"{name}.txt").write_text(text)
    (texts / "other" / "new.txt").write_text("a new tale\n" * 20)
    with pytest.warns(SkippedTextWarning) as told:
        folder = prepared(["prose", "other"])
    assert [str(each.message).partition(", such")[0] for each in told] == [
        "skipped 36 text(s) that are copies of others",
        "skipped 12 text(s) that are copies of others",
    ]
    splits = [list(split_texts(folder, split).values()) for split in SPLITS]
    assert not set(splits[0]) & set(splits[1])
    assert sum(map(len, splits)) == len(PROSE) + 2


def test_a_split_is_its_documents_in_a_row_each_with_an_end_token_and_a_kind_is_a_part_of_it(texts):
    corpus = open_corpus(prepared(held_out=0.5))
    for split in SPLITS:
        by_kind = [corpus.stream(split, kind) for kind in corpus.kinds]
        for kind, tokens in zip(corpus.kinds, by_kind, strict=True):
            pieces = [piece for _, text in corpus.texts(split, kind) for piece in (*text, END)]
            assert tokens.tolist() == pieces
        assert np.array_equal(np.concatenate(by_kind), corpus.stream(split))
    assert corpus.kinds == ("prose", "code")
    with pytest.raises(
        UnknownNameError, match=r"unknown kind of text 'proes'; did you mean 'prose'\? known: code, prose"
    ):
        corpus.stream(TRAIN, "proes")
    with pytest.raises(UnknownNameError, match=r"unknown kind of text 'x'"):
        corpus.texts(TRAIN, "x")


def test_the_only_document_of_a_kind_is_cut_behind_a_line_and_its_end_held_out(texts):
    folder = prepared(["letter/only.txt", "code"], held_out=0.25)
    ((name, start),) = split_texts(folder, TRAIN, "letter").items()
    ((end_name, end),) = split_texts(folder, HELD_OUT, "letter").items()
    assert start + end == Path("letter/only.txt").read_text()
    assert (name, end_name) == ("letter/only.txt", "letter/only.txt (end)")
    assert start.endswith("\n")
    assert 0.2 < len(end) / len(start + end) <= 0.25


def test_the_tokenizer_learns_nothing_from_what_is_held_out(texts):
    first = prepared(["letter/only.txt"], held_out=0.5)
    text = Path("letter/only.txt").read_text()
    cut = len(split_texts(first, TRAIN)["letter/only.txt"])
    Path("letter/only.txt").write_text(text[:cut] + "q" * (len(text) - cut - 1) + "\n")
    second = prepared(["letter/only.txt"], "other", held_out=0.5)
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    assert split_texts(first, HELD_OUT) != split_texts(second, HELD_OUT)


def test_nothing_is_held_out_when_nothing_is_asked_for(texts):
    corpus = open_corpus(prepared(held_out=0.0))
    assert len(corpus.texts(TRAIN)) == len(PROSE) + len(CODE)
    assert corpus.texts(HELD_OUT) == []
    assert len(corpus.stream(HELD_OUT)) == len(corpus.stream(HELD_OUT, "code")) == 0


def test_a_kind_is_named_or_is_the_name_of_the_folder(texts):
    facts = prepare_corpus(
        ["tales=prose", "code/part_1.py", "code/part_2.py", "a=letter"], Path("c"), vocabulary_size=300
    )
    assert facts["sources"] == {"tales": ["prose"], "code": ["code/part_1.py", "code/part_2.py"], "a": ["letter"]}
    Path("a=b").mkdir()
    Path("a=b/c.txt").write_text("some text\n" * 9)
    assert list(prepare_corpus(["a=b"], Path("d"), vocabulary_size=300)["kinds"]) == ["a=b"]


def test_the_same_texts_give_the_same_files_in_another_process_and_another_seed_other_ones(texts):
    first = prepared()
    script = (
        "from pathlib import Path; from lengthwise.tasks.text.prepare import prepare_corpus; "
        "prepare_corpus(['prose', 'code'], Path('again'), vocabulary_size=300, held_out=0.2)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert tree(Path("again")) == tree(first)
    other = prepared(out="other", seed=1)
    assert split_texts(other, HELD_OUT) != split_texts(first, HELD_OUT)


def test_the_facts_tell_settings_sizes_and_digests(texts):
    folder = prepared()
    facts = read_facts(folder)
    assert facts["settings"] == {"vocabulary_size": 300, "held_out": 0.2, "seed": 0}
    assert facts["vocabulary_size"] == 300
    corpus = open_corpus(folder)
    for split in SPLITS:
        told = facts["splits"][split]
        assert told["documents"] == len(corpus.texts(split))
        assert told["tokens"] == len(corpus.stream(split))
        assert told["bytes"] == len("".join(split_texts(folder, split).values()))
        for number in ("documents", "tokens", "bytes"):
            assert told[number] == sum(facts["kinds"][kind][split][number] for kind in facts["kinds"])
    assert len({facts["splits"][split]["sha256"] for split in SPLITS}) == 2


def test_tokens_are_stored_in_the_narrowest_numbers_and_read_from_wider_ones_alike(texts, monkeypatch):
    assert [token_type(size).itemsize for size in (1 << 16, (1 << 16) + 1)] == [2, 4]
    narrow = open_corpus(prepared()).stream(TRAIN)
    monkeypatch.setattr("lengthwise.tasks.text.prepare.token_type", lambda size: np.dtype("<u4"))
    wide = open_corpus(prepared(out="wide")).stream(TRAIN)
    assert (narrow.dtype, wide.dtype) == (np.uint16, np.uint32)
    assert np.array_equal(narrow, wide)


def test_a_vocabulary_is_no_larger_than_the_text_gives(texts):
    assert prepare_corpus(["letter"], Path("corpus"), vocabulary_size=5000)["vocabulary_size"] < 1000


def test_progress_is_told_stage_by_stage_up_to_the_number_of_documents(texts):
    told: list[tuple[str, int, int | None]] = []
    prepared(report=lambda *step: told.append(step))
    number = len(PROSE) + len(CODE)
    for stage, total in (("reading", None), ("learning tokens", number), ("writing tokens", number)):
        assert [step for step in told if step[0] == stage] == [(stage, done + 1, total) for done in range(number)]


def test_what_is_left_out_is_told_of_once(texts):
    (texts / "prose" / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.warns(SkippedTextWarning) as told:
        prepared()
    assert len(told) == 1


@pytest.mark.parametrize("stage", ["reading", "learning tokens", "writing tokens"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=repr)
def test_an_interrupted_preparation_leaves_nothing(stage, error, texts):
    def report(told: str, done: int, total: int | None) -> None:
        if told == stage and done == 3:
            raise error

    before = tree(texts)
    with pytest.raises((KeyboardInterrupt, OSError, RunFolderError)):
        prepared(report=report)
    assert tree(texts) == before


def test_what_a_killed_preparation_left_is_cleared_away_by_the_next(texts):
    (texts / ".corpus.unfinished").mkdir()
    (texts / ".corpus.unfinished" / "rest").write_text("rest")
    prepared()
    assert not (texts / ".corpus.unfinished").exists()
    assert not (texts / "corpus" / "rest").exists()


def test_of_two_that_prepare_one_folder_one_does_and_the_other_says_why_not(texts):
    def meanwhile(stage: str, done: int, total: int | None) -> None:
        # Between any two documents that the one that came first writes of.
        if stage != "reading":
            with pytest.raises(RunFolderError, match=r"another process is writing into .*corpus.unfinished; wait"):
                prepared(seed=1)

    first = prepared(report=meanwhile)
    assert read_facts(first)["settings"]["seed"] == 0
    assert len(open_corpus(first).stream(TRAIN)) > 0
    with pytest.raises(RunFolderError, match="corpus already exists"):
        prepared(seed=1)
    assert not list(texts.glob(".*"))


def test_a_folder_that_was_made_meanwhile_is_left_as_it_is(texts):
    def meanwhile(stage: str, done: int, total: int | None) -> None:
        Path("corpus").mkdir(exist_ok=True)
        Path("corpus/mine").write_text("mine")

    with pytest.raises(RunFolderError, match="corpus already exists; choose another --out"):
        prepared(report=meanwhile)
    assert [path.name for path in Path("corpus").iterdir()] == ["mine"]
    assert not list(texts.glob(".*"))


def test_processes_at_once_leave_one_whole_corpus(texts):
    command = [
        sys.executable,
        "-m",
        "lengthwise",
        "prepare",
        "prose",
        "code",
        "--vocabulary-size",
        "300",
        "--out",
        "corpus",
    ]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ends = [(each.communicate()[1], each.returncode) for each in started]
    assert sorted(code for _, code in ends) == [0, 2, 2]
    assert all(told.count("error: ") == (code == 2) for told, code in ends)
    for split in SPLITS:
        open_corpus("corpus").stream(split)
    assert not list(texts.glob(".*"))


def test_texts_that_change_while_they_are_read_are_refused(texts):
    def report(stage: str, done: int, total: int | None) -> None:
        if stage == "learning tokens" and done == 1:
            (texts / "code" / "part_3.py").write_text("changed")

    with pytest.raises(TextError, match=r"the texts of code changed while they were read; prepare them again"):
        prepared(report=report)
    assert not (texts / "corpus").exists()


REFUSED: dict[str, tuple[dict[str, Any], type[LengthwiseError], str]] = {
    "no text": ({"sources": []}, TextError, r"no source of text; use files, folders or dataset:NAME"),
    "a kind of nothing": ({"sources": ["prose="]}, TextError, r"prose= does not exist; use a file, a folder"),
    "a missing text": ({"sources": ["nowhere"]}, TextError, r"nowhere does not exist; use a file, a folder"),
    "a small vocabulary": (
        {"vocabulary_size": 256},
        SettingError,
        r"size 256 is too small; use at least 257",
    ),
    "a large share": ({"held_out": 1.0}, SettingError, r"invalid held-out share 1.0; use a number from 0 to below 1"),
    "a negative share": ({"held_out": -0.1}, SettingError, r"invalid held-out share -0.1; use a number from 0"),
    "a folder that is there": ({"out": "prose"}, RunFolderError, r"prose already exists; choose another --out"),
    "a file that is there": (
        {"out": "letter/only.txt"},
        RunFolderError,
        r"only.txt already exists; choose another --out",
    ),
    "a place to write in": (
        {"out": "letter/only.txt/c"},
        RunFolderError,
        r"cannot write .* \(Not a directory\); choose",
    ),
    "a text too short": (
        {"sources": ["short.txt"]},
        TextError,
        r"a text of 1 characters is too short to split; use more",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_prepared_is_refused_in_one_line_and_nothing_is_written(name, texts):
    Path("short.txt").write_text("x")
    given, error, text = REFUSED[name]
    before = tree(texts)
    with pytest.raises(error, match=text) as caught:
        prepared(**given)
    assert "\n" not in str(caught.value)
    assert tree(texts) == before


def test_the_library_tokenizer_tokenizers_is_asked_for_where_it_is_missing(texts, monkeypatch):
    folder = prepared()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    # It keeps what it read.
    _library_tokenizer.cache_clear()
    text = r"text needs the tokenizers library; pip install 'lengthwise\[text\]'"
    with pytest.raises(TextError, match=text):
        prepared(out="other")
    with pytest.raises(TextError, match=text):
        read_tokenizer(folder).encode("text")
    # What is tokenized already is read without it.
    assert len(open_corpus(folder).stream(TRAIN)) > 0


def changed(path: Path, change: Any) -> None:
    path.write_bytes(change(path.read_bytes()))


def signed_again(content: bytes) -> bytes:
    """Facts that were changed by somebody who knows how they are signed."""
    return json.dumps(with_digest(json.loads(content))).encode()


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "facts missing": ("corpus.json", None, r"is not a corpus \(it has no corpus.json\); run lengthwise prepare"),
    "facts cut": (
        "corpus.json",
        lambda content: content[:99],
        r"corpus.json cannot be read .*; prepare the corpus again",
    ),
    "facts of something else": (
        "corpus.json",
        lambda content: signed_again(b"{}"),
        r"corpus corpus is damaged .*; prep",
    ),
    "facts edited": (
        "corpus.json",
        lambda content: re.sub(rb'"bytes": \d', b'"bytes": 9', content),
        r"corpus.json was modified \(its digest differs\); prepare the corpus again",
    ),
    "a list missing": ("train.jsonl", None, r"corpus corpus is damaged .*; prepare it again"),
    "a list cut": ("train.jsonl", lambda content: content[:-9], r"corpus corpus is damaged .*; prepare it again"),
    "a document lost": (
        "held_out.jsonl",
        lambda content: content[: content[:-1].rindex(b"\n") + 1],
        r"held_out.tokens does not match corpus.json and held_out.jsonl; prepare the corpus again",
    ),
    "two tokens with each other's numbers": (
        "tokenizer.json",
        lambda content: content.replace(b'"a":65,"b":66', b'"a":66,"b":65'),
        r"tokenizer.json does not match corpus.json \(its digest differs\); prepare the corpus again",
    ),
    "a document renamed": (
        "train.jsonl",
        lambda content: content.replace(b".txt", b".tst", 1),
        r"train.jsonl does not match corpus.json \(its digest differs\); prepare the corpus again",
    ),
    "tokens missing": ("train.tokens", None, r"train.tokens does not match corpus.json and train.jsonl; prepare"),
    "tokens cut": (
        "train.tokens",
        lambda content: content[:-2],
        r"train.tokens does not match corpus.json and train.jsonl",
    ),
    "a type of objects": (
        "corpus.json",
        lambda content: signed_again(content.replace(b'"<u2"', b'"|O"')),
        r"corpus corpus is damaged \(KeyError\('\|O'\)\); prepare it again",
    ),
    "another type of the same size": (
        "corpus.json",
        lambda content: signed_again(content.replace(b'"<u2"', b'">u2"')),
        r"corpus corpus is damaged \(KeyError\('>u2'\)\); prepare it again",
    ),
    "facts without end": (
        "corpus.json",
        lambda content: b"[" * 100_000,
        r"corpus.json cannot be read .*; prepare the corpus again",
    ),
    "facts of another kind": ("corpus.json", lambda content: b"[]", r"corpus.json cannot be read \(it is a list, "),
    "a negative size": (
        "train.jsonl",
        lambda content: re.sub(rb'"num_tokens": \d+', b'"num_tokens": -1', content, count=1),
        r"corpus corpus is damaged \(ValueError\(.*num_tokens=-1.*prepare it again",
    ),
    "a token flipped": (
        "train.tokens",
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        r"train.tokens does not match corpus.json \(its digest differs\); prepare the corpus again",
    ),
    "tokenizer missing": (
        "tokenizer.json",
        None,
        r"tokenizer.json cannot be read \(No such file or directory\); prepare",
    ),
    "tokenizer cut": (
        "tokenizer.json",
        lambda content: content[:99],
        r"tokenizer.json is damaged .*; prepare the corpus",
    ),
    "another tokenizer": (
        "tokenizer.json",
        lambda content: content.replace(b"<|end|>", b"!!"),
        r"tokenizer.json is not from a prepared corpus \(token 0 is not <\|end\|>\); prepare a corpus",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_corpus_is_refused_by_name_in_one_line(damage, texts):
    name, change, text = DAMAGE[damage]
    folder = prepared()
    if change is None:
        (folder / name).unlink()
    else:
        changed(folder / name, change)
    with pytest.raises(TextError, match=text) as caught:
        open_corpus(folder).stream(TRAIN)
    assert "\n" not in str(caught.value)


def test_tokens_beyond_the_tokenizer_are_refused_whatever_their_digest(texts):
    folder = prepared()
    content = bytearray((folder / "train.tokens").read_bytes())
    content[:2] = b"\xff\xff"
    (folder / "train.tokens").write_bytes(content)
    facts = json.loads((folder / "corpus.json").read_text())
    facts["splits"]["train"]["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "corpus.json").write_text(json.dumps(with_digest(facts)))
    with pytest.raises(TextError, match=r"train.tokens has token 65535 of a vocabulary of \d+; prepare"):
        open_corpus(folder).stream(TRAIN)


def test_tokens_that_change_after_they_were_read_are_checked_again(texts):
    corpus = open_corpus(prepared())
    corpus.stream(TRAIN)
    changed(Path("corpus/train.tokens"), lambda content: content[::-1])
    with pytest.raises(TextError, match="its digest differs"):
        corpus.stream(TRAIN)


def test_documents_are_listed_with_their_kinds_and_sizes(texts):
    lines = [json.loads(line) for line in (prepared() / "train.jsonl").read_text().splitlines()]
    assert all(set(line) == {"name", "kind", "num_tokens"} for line in lines)
