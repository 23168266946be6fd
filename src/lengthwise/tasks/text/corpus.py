"""A corpus: tokenized documents in two splits, as a prepared folder holds them or as made from a few texts."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt

from lengthwise.core.errors import TextError, unknown_name
from lengthwise.core.files import StrPath
from lengthwise.core.json_parsing import parse_json
from lengthwise.tasks.text.tokenizer import END, BytePairTokenizer, ByteTokenizer, Tokenizer

FACTS, TOKENIZER = "corpus.json", "tokenizer.json"
TRAIN, HELD_OUT = SPLITS = ("train", "held_out")

Tokens = UInt[np.ndarray, " tokens"]
# A file says which of these its numbers are, and nothing else: a type of objects would be pointers out of a file.
TOKEN_TYPES = {name: np.dtype(name) for name in ("<u2", "<u4")}
# The digest of corpus.json within it.
SIGNATURE = "sha256"
# Tokens that are checked at a time.
CHECKED_AT_ONCE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A document of a corpus: its name, which kind of text it is, and its number of tokens without the end token."""

    name: str
    kind: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """The documents of each split, kind after kind; ``tokens`` gives a split's, with an end token after each."""

    tokenizer: Tokenizer
    documents: Mapping[str, tuple[Entry, ...]]
    tokens: Mapping[str, Callable[[], Tokens]]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of text, in the order of their documents."""
        return tuple(dict.fromkeys(entry.kind for split in SPLITS for entry in self.documents[split]))

    def stream(self, split: str, kind: str | None = None) -> Tokens:
        """All tokens of a split, or those of one kind in it; ``UnknownNameError`` for a kind that there is none of."""
        tokens = self.tokens[split]()
        if kind is None:
            return tokens
        ends = self._ends(split)
        starts, kinds = np.concatenate([[0], ends[:-1]]), np.array([entry.kind for entry in self.documents[split]])
        (of_kind,) = np.nonzero(kinds == self._known(kind))
        return tokens[starts[of_kind[0]] : ends[of_kind[-1]]] if len(of_kind) else tokens[:0]

    def texts(self, split: str, kind: str | None = None) -> list[tuple[str, Tokens]]:
        """The documents of a split, or those of one kind in it, by name; without their end tokens."""
        tokens, wanted = self.tokens[split](), None if kind is None else self._known(kind)
        return [
            (entry.name, tokens[end - 1 - entry.num_tokens : end - 1])
            for entry, end in zip(self.documents[split], self._ends(split).tolist(), strict=True)
            if wanted in (None, entry.kind)
        ]

    def _known(self, kind: str) -> str:
        if kind not in self.kinds:
            raise unknown_name("kind of text", kind, self.kinds)
        return kind

    def _ends(self, split: str) -> Int[np.ndarray, " documents"]:
        return np.cumsum([entry.num_tokens + 1 for entry in self.documents[split]], dtype=np.int64)


def byte_corpus(texts: Mapping[str, Mapping[str, str]]) -> Corpus:
    """A corpus of bytes, from texts by split and name; all are of the kind that is called ``text``."""
    tokenizer = ByteTokenizer()
    encoded = {split: {name: tokenizer.encode(text) for name, text in texts[split].items()} for split in SPLITS}
    streams = {
        split: np.array([token for tokens in named.values() for token in (*tokens, END)], dtype=np.uint16)
        for split, named in encoded.items()
    }
    return Corpus(
        tokenizer=tokenizer,
        documents={
            split: tuple(Entry(name=name, kind="text", num_tokens=len(tokens)) for name, tokens in named.items())
            for split, named in encoded.items()
        },
        tokens={split: partial(np.asarray, stream) for split, stream in streams.items()},
    )


def open_corpus(folder: StrPath) -> Corpus:
    """What ``prepare_corpus`` wrote, its tokens read as they are asked for; ``TextError`` for what is damaged."""
    folder = Path(folder)
    facts = read_facts(folder)
    try:
        documents = {split: tuple(_entries(folder / f"{split}.jsonl")) for split in SPLITS}
        dtype = TOKEN_TYPES[facts["token_type"]]
        sizes = {split: int(facts["splits"][split]["tokens"]) for split in SPLITS}
        digests = {split: str(facts["splits"][split]["sha256"]) for split in SPLITS}
        listed = {name: str(facts["files"][name]) for name in (TOKENIZER, *(f"{split}.jsonl" for split in SPLITS))}
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise TextError(f"corpus {folder} is damaged ({error!r}); prepare it again") from None
    for split, size in sizes.items():
        path, expected = folder / f"{split}.tokens", sum(entry.num_tokens + 1 for entry in documents[split])
        if expected != size or not path.is_file() or path.stat().st_size != size * dtype.itemsize:
            raise TextError(f"{path} is not what {FACTS} and {split}.jsonl say; prepare the corpus again")
    tokenizer = read_tokenizer(folder)
    for name, digest in listed.items():
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            raise TextError(f"{folder / name} is not what {FACTS} says (its digest differs); prepare the corpus again")
    vocabulary_size = len(tokenizer.pieces)
    return Corpus(
        tokenizer=tokenizer,
        documents=documents,
        tokens={
            split: partial(_mapped, folder / f"{split}.tokens", dtype, digests[split], vocabulary_size)
            for split in SPLITS
        },
    )


def read_tokenizer(folder: Path) -> BytePairTokenizer:
    """The tokenizer of a prepared corpus, or of a run that was trained on one."""
    path = folder / TOKENIZER
    try:
        return BytePairTokenizer(path.read_bytes(), str(path))
    except OSError as error:
        raise TextError(f"{path} cannot be read ({error.strerror}); prepare the corpus again") from None


def read_facts(folder: Path) -> dict[str, Any]:
    """What ``corpus.json`` says about a corpus."""
    path = folder / FACTS
    if not path.is_file():
        raise TextError(
            f"{folder} is no corpus (it has no {FACTS}); make one with lengthwise prepare TEXT --out {folder}"
        )
    try:
        facts: dict[str, Any] = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TextError(f"{path} cannot be read ({error}); prepare the corpus again") from None
    if facts.get(SIGNATURE) != with_digest(facts)[SIGNATURE]:
        raise TextError(f"{path} is not what prepare wrote (its digest differs); prepare the corpus again")
    return facts


def with_digest(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a corpus, and their digest with them."""
    bare = {name: value for name, value in facts.items() if name != SIGNATURE}
    return {**bare, SIGNATURE: hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()}


def _entries(path: Path) -> list[Entry]:
    entries = [Entry(**parse_json(line)) for line in path.read_bytes().splitlines()]
    for entry in entries:
        numbered = type(entry.num_tokens) is int and entry.num_tokens >= 0
        if not (numbered and isinstance(entry.name, str) and isinstance(entry.kind, str)):
            raise ValueError(f"{path.name} has the entry {entry}")
    return entries


def _mapped(path: Path, dtype: np.dtype[Any], digest: str, vocabulary_size: int) -> Tokens:
    """The tokens of a file, checked when they are first read, and again when the file has changed."""
    try:
        found = path.stat()
        # An empty file cannot be mapped.
        tokens = np.memmap(path, dtype=dtype, mode="r") if found.st_size else np.empty(0, dtype)
    except (OSError, ValueError) as error:
        raise TextError(f"{path} cannot be read ({error}); prepare the corpus again") from None
    key = _Checked(str(path), found.st_ino, found.st_mtime_ns, found.st_size, digest, vocabulary_size)
    if key not in _CHECKED:
        _check(path, tokens, digest, vocabulary_size)
        _CHECKED.add(key)
    return tokens


def _check(path: Path, tokens: Tokens, digest: str, vocabulary_size: int) -> None:
    found, largest = hashlib.sha256(), -1
    for first in range(0, len(tokens), CHECKED_AT_ONCE):
        some = tokens[first : first + CHECKED_AT_ONCE]
        found.update(some.tobytes())
        largest = max(largest, int(some.max()))
    if found.hexdigest() != digest:
        raise TextError(f"{path} is not what {FACTS} says (its digest differs); prepare the corpus again")
    if largest >= vocabulary_size:
        raise TextError(
            f"{path} has token {largest} and its tokenizer {vocabulary_size} tokens; prepare the corpus again"
        )


class _Checked(NamedTuple):
    """A file as it was when it was checked, and what it was checked against."""

    path: str
    inode: int
    changed: int
    size: int
    digest: str
    vocabulary_size: int


_CHECKED: set[_Checked] = set()
