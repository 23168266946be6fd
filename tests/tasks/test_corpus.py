"""Corpora: lossless tokens, disjoint splits, reproducible files, and errors for damaged folders."""

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
from tests.support.small_runs import folder_contents

from lengthwise.core.errors import (
    LengthwiseError,
    RunFolderError,
    SettingError,
    SkippedTextWarning,
    TextSourceError,
    UnknownNameError,
)
from lengthwise.tasks.text.corpus import (
    HELD_OUT,
    SPLITS,
    TRAIN,
    _sample_held_out,
    add_metadata_digest,
    open_corpus,
    prepare_corpus,
    read_corpus_metadata,
    read_tokenizer,
    smallest_token_dtype,
)
from lengthwise.tasks.text.tokenizer import (
    END,
    END_TOKEN_TEXT,
    ByteTokenizer,
    Tokenizer,
    _library_tokenizer,
    format_piece,
    split_text,
)

PROSE = {
    f"tale {place}": f"Once there were {place} hens and a fox, and the fox said nothing.\n" * 9 for place in range(12)
}
CODE = {f"part_{place}": f"def part_{place}(x):\n    return x + {place}\n\n\n" * 9 for place in range(8)}
STRANGE = "naïve café, 東京, \U0001f600; tabs\tand\r\nline ends\n\n  <|end|> end \\ ' \" \x7f \u200b"


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with twelve tales, eight modules and one letter."""
    for kind, ending, named_texts in (("prose", "txt", PROSE), ("code", "py", CODE)):
        (tmp_path / kind).mkdir()
        for name, text in named_texts.items():
            (tmp_path / kind / f"{name}.{ending}").write_text(text)
    (tmp_path / "letter").mkdir()
    (tmp_path / "letter" / "only.txt").write_text("".join(f"This is line {line} of a letter.\n" for line in range(40)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(sources: Sequence[str] = ("prose", "code"), out: str = "corpus", **settings: Any) -> Path:
    prepare_corpus(list(sources), Path(out), **{"vocabulary_size": 300, "held_out": 0.2, **settings})
    return Path(out)


def decode(tokenizer: Tokenizer, tokens: Sequence[int] | np.ndarray) -> str:
    """Return the text of the tokens."""
    return b"".join(tokenizer.pieces[int(token)] for token in tokens).decode()


def split_texts(folder: Path, split: str, kind: str | None = None) -> dict[str, str]:
    corpus = open_corpus(folder)
    return {name: decode(corpus.tokenizer, tokens) for name, tokens in corpus.document_tokens(split, kind)}


@pytest.mark.parametrize("text", [STRANGE, PROSE["tale 3"], ""], ids=["strange", "prose", "empty"])
def test_decoding_the_tokens_of_a_text_gives_the_same_text(text, texts):
    for tokenizer in (ByteTokenizer(), read_tokenizer(prepare(out=f"corpus{len(text)}"))):
        assert isinstance(tokenizer, Tokenizer)
        tokens = tokenizer.encode(text)
        assert decode(tokenizer, tokens) == text
        assert END not in tokens


def test_the_tokenizers_library_reads_and_decodes_the_tokenizer_file(texts):
    folder = prepare()
    ours, library = read_tokenizer(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert library.get_vocab_size() == len(ours.pieces) == 300
    assert library.token_to_id(END_TOKEN_TEXT) == END
    tokens = ours.encode(PROSE["tale 7"])
    assert library.decode(list(tokens)) == PROSE["tale 7"]
    assert len(tokens) < len(PROSE["tale 7"]) / 2


def test_every_token_has_a_different_printed_form_and_the_end_token_is_end(texts):
    pieces = read_tokenizer(prepare()).pieces
    assert len({format_piece(piece) for piece in pieces}) == len(pieces)
    assert format_piece(pieces[END]) == "end"
    assert format_piece(b"end") == "'end'"
    assert format_piece(b"\n") == "'\\n'"
    assert format_piece(b"\xe6") == "b'\\xe6'"


def test_each_document_is_in_one_split_and_the_held_out_share_of_each_kind_is_as_set(texts):
    folder = prepare()
    train, held_out = (split_texts(folder, split) for split in SPLITS)
    assert set(train).isdisjoint(held_out)
    whole = {f"prose/{name}.txt": text for name, text in PROSE.items()} | {
        f"code/{name}.py": text for name, text in CODE.items()
    }
    assert train | held_out == whole
    for kind, named_texts in (("prose", PROSE), ("code", CODE)):
        share = len("".join(split_texts(folder, HELD_OUT, kind).values())) / len("".join(named_texts.values()))
        assert 0.2 <= share <= 0.2 + 1.5 / len(named_texts)


def test_copies_of_held_out_texts_are_not_in_the_training_split(texts):
    # Each tale four times, and once more in another kind together with a new text.
    (texts / "other").mkdir()
    for name, text in PROSE.items():
        for place in range(3):
            (texts / "prose" / f"{name} copy {place}.txt").write_text(text)
        (texts / "other" / f"{name}.txt").write_text(text)
    (texts / "other" / "new.txt").write_text("a new tale\n" * 20)
    with pytest.warns(SkippedTextWarning) as warned:
        folder = prepare(["prose", "other"])
    assert [str(each.message).partition(", such")[0] for each in warned] == [
        "skipped 36 text(s) that are copies of other texts",
        "skipped 12 text(s) that are copies of other texts",
    ]
    splits = [list(split_texts(folder, split).values()) for split in SPLITS]
    assert not set(splits[0]) & set(splits[1])
    assert sum(map(len, splits)) == len(PROSE) + 2


def test_a_split_is_the_concatenation_of_its_kinds_and_each_document_ends_with_the_end_token(texts):
    corpus = open_corpus(prepare(held_out=0.5))
    for split in SPLITS:
        by_kind = [corpus.token_stream(split, kind) for kind in corpus.kinds]
        for kind, tokens in zip(corpus.kinds, by_kind, strict=True):
            pieces = [piece for _, text in corpus.document_tokens(split, kind) for piece in (*text, END)]
            assert tokens.tolist() == pieces
        assert np.array_equal(np.concatenate(by_kind), corpus.token_stream(split))
    assert corpus.kinds == ("prose", "code")
    with pytest.raises(
        UnknownNameError, match=r"unknown kind of text 'proes'; did you mean 'prose'\? known: code, prose"
    ):
        corpus.token_stream(TRAIN, "proes")
    with pytest.raises(UnknownNameError, match=r"unknown kind of text 'x'"):
        corpus.document_tokens(TRAIN, "x")


def test_the_only_document_of_a_kind_is_split_after_a_line_and_its_end_is_held_out(texts):
    folder = prepare(["letter/only.txt", "code"], held_out=0.25)
    ((name, start),) = split_texts(folder, TRAIN, "letter").items()
    ((end_name, end),) = split_texts(folder, HELD_OUT, "letter").items()
    assert start + end == Path("letter/only.txt").read_text(encoding="utf-8")
    assert (name, end_name) == ("letter/only.txt", "letter/only.txt (end)")
    assert start.endswith("\n")
    assert 0.2 < len(end) / len(start + end) <= 0.25


def test_the_tokenizer_does_not_depend_on_held_out_text(texts):
    first = prepare(["letter/only.txt"], held_out=0.5)
    text = Path("letter/only.txt").read_text(encoding="utf-8")
    cut = len(split_texts(first, TRAIN)["letter/only.txt"])
    Path("letter/only.txt").write_text(text[:cut] + "q" * (len(text) - cut - 1) + "\n", encoding="utf-8")
    second = prepare(["letter/only.txt"], "other", held_out=0.5)
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    assert split_texts(first, HELD_OUT) != split_texts(second, HELD_OUT)


def test_a_held_out_share_of_zero_leaves_the_held_out_split_empty(texts):
    corpus = open_corpus(prepare(held_out=0.0))
    assert len(corpus.document_tokens(TRAIN)) == len(PROSE) + len(CODE)
    assert corpus.document_tokens(HELD_OUT) == []
    assert len(corpus.token_stream(HELD_OUT)) == len(corpus.token_stream(HELD_OUT, "code")) == 0


def test_the_kind_of_a_source_is_its_prefix_or_the_name_of_its_folder(texts):
    facts = prepare_corpus(
        ["tales=prose", "code/part_1.py", "code/part_2.py", "a=letter"], Path("c"), vocabulary_size=300
    )
    assert facts["sources"] == {"tales": ["prose"], "code": ["code/part_1.py", "code/part_2.py"], "a": ["letter"]}
    Path("a=b").mkdir()
    Path("a=b/c.txt").write_text("some text\n" * 9, encoding="utf-8")
    assert list(prepare_corpus(["a=b"], Path("d"), vocabulary_size=300)["kinds"]) == ["a=b"]


@pytest.mark.slow
def test_another_process_writes_the_same_files_and_another_seed_another_split(texts):
    first = prepare()
    script = (
        "from pathlib import Path; from lengthwise.tasks.text.corpus import prepare_corpus; "
        "prepare_corpus(['prose', 'code'], Path('again'), vocabulary_size=300, held_out=0.2)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert folder_contents(Path("again")) == folder_contents(first)
    other = prepare(out="other", seed=1)
    assert split_texts(other, HELD_OUT) != split_texts(first, HELD_OUT)


def test_the_facts_contain_the_settings_sizes_and_digests(texts):
    folder = prepare()
    facts = read_corpus_metadata(folder)
    assert facts["settings"] == {"vocabulary_size": 300, "held_out": 0.2, "seed": 0}
    assert facts["vocabulary_size"] == 300
    corpus = open_corpus(folder)
    for split in SPLITS:
        counts = facts["splits"][split]
        assert counts["documents"] == len(corpus.document_tokens(split))
        assert counts["tokens"] == len(corpus.token_stream(split))
        assert counts["bytes"] == len("".join(split_texts(folder, split).values()))
        for number in ("documents", "tokens", "bytes"):
            assert counts[number] == sum(facts["kinds"][kind][split][number] for kind in facts["kinds"])
    assert len({facts["splits"][split]["sha256"] for split in SPLITS}) == 2


def test_tokens_are_stored_in_the_smallest_type_and_a_larger_type_gives_the_same_tokens(texts, monkeypatch):
    assert [smallest_token_dtype(size).itemsize for size in (1 << 16, (1 << 16) + 1)] == [2, 4]
    narrow = open_corpus(prepare()).token_stream(TRAIN)
    monkeypatch.setattr("lengthwise.tasks.text.corpus.smallest_token_dtype", lambda size: np.dtype("<u4"))
    wide = open_corpus(prepare(out="wide")).token_stream(TRAIN)
    assert (narrow.dtype, wide.dtype) == (np.uint16, np.uint32)
    assert np.array_equal(narrow, wide)


def test_a_short_text_gives_a_smaller_vocabulary_than_allowed(texts):
    assert prepare_corpus(["letter"], Path("corpus"), vocabulary_size=5000)["vocabulary_size"] < 1000


def test_progress_of_each_stage_counts_to_the_number_of_documents(texts):
    steps: list[tuple[str, int, int | None]] = []
    prepare(report=lambda *step: steps.append(step))
    number = len(PROSE) + len(CODE)
    for stage, total in (("reading", None), ("learning tokens", number), ("writing tokens", number)):
        assert [step for step in steps if step[0] == stage] == [(stage, done + 1, total) for done in range(number)]


def test_a_skipped_file_gives_one_warning(texts):
    (texts / "prose" / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.warns(SkippedTextWarning) as warned:
        prepare()
    assert len(warned) == 1


@pytest.mark.parametrize("stage", ["reading", "learning tokens", "writing tokens"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")], ids=repr)
def test_an_interrupted_preparation_writes_nothing(stage, error, texts):
    def report(current: str, done: int, total: int | None) -> None:
        if current == stage and done == 3:
            raise error

    before = folder_contents(texts)
    with pytest.raises((KeyboardInterrupt, OSError, RunFolderError)):
        prepare(report=report)
    assert folder_contents(texts) == before


def test_preparation_deletes_the_leftovers_of_a_killed_one(texts):
    (texts / ".corpus.unfinished").mkdir()
    (texts / ".corpus.unfinished" / "rest").write_text("rest")
    prepare()
    assert not (texts / ".corpus.unfinished").exists()
    assert not (texts / "corpus" / "rest").exists()


def test_a_second_preparation_into_the_same_folder_raises_an_error(texts):
    def meanwhile(stage: str, done: int, total: int | None) -> None:
        # Between any two documents of the first preparation.
        if stage != "reading":
            with pytest.raises(RunFolderError, match=r"another process is writing into .*corpus; wait"):
                prepare(seed=1)

    first = prepare(report=meanwhile)
    assert read_corpus_metadata(first)["settings"]["seed"] == 0
    assert len(open_corpus(first).token_stream(TRAIN)) > 0
    with pytest.raises(RunFolderError, match="corpus already exists"):
        prepare(seed=1)
    assert not list(texts.glob(".*"))


def test_a_folder_that_appears_during_preparation_is_not_changed(texts):
    def meanwhile(stage: str, done: int, total: int | None) -> None:
        Path("corpus").mkdir(exist_ok=True)
        Path("corpus/mine").write_text("mine", encoding="utf-8")

    with pytest.raises(RunFolderError, match="corpus already exists and is not an empty folder; choose another --out"):
        prepare(report=meanwhile)
    assert [path.name for path in Path("corpus").iterdir()] == ["mine"]
    assert not list(texts.glob(".*"))


@pytest.mark.slow
def test_concurrent_preparations_leave_one_complete_corpus(texts):
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
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    results = [(each.communicate()[1], each.returncode) for each in processes]
    assert sorted(code for _, code in results) == [0, 2, 2]
    assert all(output.count("error: ") == (code == 2) for output, code in results)
    for split in SPLITS:
        open_corpus("corpus").token_stream(split)
    assert not list(texts.glob(".*"))


def test_texts_that_change_during_preparation_raise_an_error(texts):
    def report(stage: str, done: int, total: int | None) -> None:
        if stage == "learning tokens" and done == 1:
            (texts / "code" / "part_3.py").write_text("changed")

    with pytest.raises(TextSourceError, match=r"the texts of code changed while they were read; prepare them again"):
        prepare(report=report)
    assert not (texts / "corpus").exists()


INVALID: dict[str, tuple[dict[str, Any], type[LengthwiseError], str]] = {
    "no text": ({"sources": []}, TextSourceError, r"no text sources; pass at least one file, folder or dataset"),
    "a kind without a source": ({"sources": ["prose="]}, TextSourceError, r"prose= does not exist"),
    "a missing text": ({"sources": ["nowhere"]}, TextSourceError, r"nowhere does not exist"),
    "a small vocabulary": (
        {"vocabulary_size": 256},
        SettingError,
        r"size 256 is too small; use at least 257",
    ),
    "a large share": ({"held_out": 1.0}, SettingError, r"invalid held-out share 1.0; use 0 or more and less than 1"),
    "a negative share": ({"held_out": -0.1}, SettingError, r"invalid held-out share -0.1; use 0 or more"),
    "an existing folder": (
        {"out": "prose"},
        RunFolderError,
        r"prose already exists and is not an empty folder; choose another --out",
    ),
    "an existing file": (
        {"out": "letter/only.txt"},
        RunFolderError,
        r"only.txt already exists and is not an empty folder; choose another --out",
    ),
    "an output below a file": (
        {"out": "letter/only.txt/c"},
        RunFolderError,
        r"cannot write .* \(Not a directory\); choose",
    ),
    "a text too short": (
        {"sources": ["short.txt"]},
        TextSourceError,
        r"a text of 1 characters is too short to split; use more",
    ),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_settings_raise_a_one_line_error_and_write_nothing(name, texts):
    Path("short.txt").write_text("x", encoding="utf-8")
    settings, error, text = INVALID[name]
    before = folder_contents(texts)
    with pytest.raises(error, match=text) as caught:
        prepare(**settings)
    assert "\n" not in str(caught.value)
    assert folder_contents(texts) == before


def test_encoding_without_the_tokenizers_library_raises_an_error_and_reading_tokens_does_not(texts, monkeypatch):
    folder = prepare()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    # Tokenizers of the library are cached.
    _library_tokenizer.cache_clear()
    text = r"text needs the tokenizers library; run pip install 'lengthwise\[text\]'"
    with pytest.raises(TextSourceError, match=text):
        prepare(out="other")
    with pytest.raises(TextSourceError, match=text):
        read_tokenizer(folder).encode("text")
    # Reading tokens does not need the library.
    assert len(open_corpus(folder).token_stream(TRAIN)) > 0


def modify(path: Path, change: Any) -> None:
    path.write_bytes(change(path.read_bytes()))


def with_new_digest(content: bytes) -> bytes:
    """Return modified facts with a valid digest."""
    return json.dumps(add_metadata_digest(json.loads(content))).encode()


DAMAGE: dict[str, tuple[str, Any, str]] = {
    "facts missing": ("corpus.json", None, r"is not a corpus \(it has no corpus.json\); run lengthwise prepare"),
    "facts truncated": (
        "corpus.json",
        lambda content: content[:99],
        r"corpus.json cannot be read .*; prepare the corpus again",
    ),
    "facts without keys": (
        "corpus.json",
        lambda content: with_new_digest(b"{}"),
        r"corpus corpus is damaged .*; prep",
    ),
    "facts edited": (
        "corpus.json",
        lambda content: re.sub(rb'"bytes": \d', b'"bytes": 9', content),
        r"corpus.json was modified \(its digest differs\); prepare the corpus again",
    ),
    "a list missing": ("train.jsonl", None, r"corpus corpus is damaged .*; prepare it again"),
    "a list truncated": ("train.jsonl", lambda content: content[:-9], r"corpus corpus is damaged .*; prepare it again"),
    "a document missing": (
        "held_out.jsonl",
        lambda content: content[: content[:-1].rindex(b"\n") + 1],
        r"held_out.tokens does not match corpus.json and held_out.jsonl; prepare the corpus again",
    ),
    "two tokens with swapped IDs": (
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
    "tokens truncated": (
        "train.tokens",
        lambda content: content[:-2],
        r"train.tokens does not match corpus.json and train.jsonl",
    ),
    "an object type": (
        "corpus.json",
        lambda content: with_new_digest(content.replace(b'"<u2"', b'"|O"')),
        r"corpus corpus is damaged \(KeyError\('\|O'\)\); prepare it again",
    ),
    "another type of the same size": (
        "corpus.json",
        lambda content: with_new_digest(content.replace(b'"<u2"', b'">u2"')),
        r"corpus corpus is damaged \(KeyError\('>u2'\)\); prepare it again",
    ),
    "facts that are nested too deeply": (
        "corpus.json",
        lambda content: b"[" * 100_000,
        r"corpus.json cannot be read .*; prepare the corpus again",
    ),
    "facts of another type": ("corpus.json", lambda content: b"[]", r"corpus.json cannot be read \(it is a list, "),
    "a negative size": (
        "train.jsonl",
        lambda content: re.sub(rb'"num_tokens": \d+', b'"num_tokens": -1', content, count=1),
        r"corpus corpus is damaged \(ValueError\(.*num_tokens=-1.*prepare it again",
    ),
    "a token modified": (
        "train.tokens",
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        r"train.tokens does not match corpus.json \(its digest differs\); prepare the corpus again",
    ),
    "tokenizer missing": (
        "tokenizer.json",
        None,
        r"tokenizer.json cannot be read \(No such file or directory\); prepare",
    ),
    "tokenizer truncated": (
        "tokenizer.json",
        lambda content: content[:99],
        r"tokenizer.json is damaged .*; prepare the corpus",
    ),
    "another tokenizer": (
        "tokenizer.json",
        lambda content: content.replace(b"<|end|>", b"!!"),
        r"tokenizer.json is not from a prepared corpus \(token 0 is not <\|end\|>\); run lengthwise prepare",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_corpus_raises_a_one_line_error_with_the_file_name(damage, texts):
    name, change, text = DAMAGE[damage]
    folder = prepare()
    if change is None:
        (folder / name).unlink()
    else:
        modify(folder / name, change)
    with pytest.raises(TextSourceError, match=text) as caught:
        open_corpus(folder).token_stream(TRAIN)
    assert "\n" not in str(caught.value)


def test_tokens_outside_the_vocabulary_raise_an_error_even_with_a_valid_digest(texts):
    folder = prepare()
    content = bytearray((folder / "train.tokens").read_bytes())
    content[:2] = b"\xff\xff"
    (folder / "train.tokens").write_bytes(content)
    facts = json.loads((folder / "corpus.json").read_text())
    facts["splits"]["train"]["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "corpus.json").write_text(json.dumps(add_metadata_digest(facts)))
    with pytest.raises(TextSourceError, match=r"train.tokens has token 65535 but only \d+ tokens exist; prepare"):
        open_corpus(folder).token_stream(TRAIN)


def test_tokens_that_change_after_the_first_read_are_checked_again(texts):
    corpus = open_corpus(prepare())
    corpus.token_stream(TRAIN)
    modify(Path("corpus/train.tokens"), lambda content: content[::-1])
    with pytest.raises(TextSourceError, match="its digest differs"):
        corpus.token_stream(TRAIN)


def test_the_list_of_documents_has_names_kinds_and_sizes(texts):
    lines = [json.loads(line) for line in (prepare() / "train.jsonl").read_text().splitlines()]
    assert all(set(line) == {"name", "kind", "num_tokens"} for line in lines)


def test_a_long_text_has_the_tokens_of_its_parts(texts, monkeypatch):
    tokenizer = read_tokenizer(prepare(["prose", "code"]))
    text = "".join([*PROSE.values(), *CODE.values()])
    whole = tokenizer.encode(text)
    monkeypatch.setattr("lengthwise.tasks.text.tokenizer.PART_SIZE", 100)
    parts = list(split_text(text))
    assert len(parts) > 20
    assert "".join(parts) == text
    assert tokenizer.encode(text) == whole
    assert max(map(len, split_text("x" * 1001))) == 200


@pytest.mark.slow
def test_a_long_word_does_not_take_quadratic_time(texts):
    # One second; as one word, over a minute.
    Path("word.txt").write_text("ab" * (1 << 21), encoding="utf-8")
    corpus = open_corpus(prepare(["word.txt"], out="word"))
    assert sum(len(corpus.token_stream(split)) for split in SPLITS) < 1 << 17


def test_selecting_held_out_documents_reads_each_size_a_few_times():
    class Sizes(list):
        num_reads = 0

        def __getitem__(self, index):
            Sizes.num_reads += 1
            return super().__getitem__(index)

        def __iter__(self):
            Sizes.num_reads += len(self)
            return super().__iter__()

    sizes = Sizes(np.random.default_rng(0).integers(1, 100, size=500).tolist())
    selected = _sample_held_out(sizes, 0.5, np.random.default_rng(1))
    assert Sizes.num_reads < 10 * len(sizes)
    held_out, total = sum(sizes[index] for index in selected), sum(sizes)
    assert 0.5 * total <= held_out < 0.5 * total + max(sizes)
    order = np.random.default_rng(1).permutation(500).tolist()
    assert selected == set(order[: len(selected)])
