"""A corpus: tokenized documents in two splits, as a prepared folder holds them or as made from a few texts."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt

from lengthwise.errors import TextError, unknown_name
from lengthwise.paths import StrPath
from lengthwise.tokenizer import END, BytePairTokenizer, ByteTokenizer, Tokenizer

FACTS, TOKENIZER = "corpus.json", "tokenizer.json"
TRAIN, HELD_OUT = SPLITS = ("train", "held_out")

Tokens = UInt[np.ndarray, " tokens"]


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


def corpus_of(texts: Mapping[str, Mapping[str, str]]) -> Corpus:
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
        dtype = np.dtype(facts["token_type"])
        sizes = {split: int(facts["splits"][split]["tokens"]) for split in SPLITS}
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise TextError(f"corpus {folder} is damaged ({error!r}); prepare it again") from None
    for split, size in sizes.items():
        path, expected = folder / f"{split}.tokens", sum(entry.num_tokens + 1 for entry in documents[split])
        if expected != size or not path.is_file() or path.stat().st_size != size * dtype.itemsize:
            raise TextError(f"{path} is not what {FACTS} and {split}.jsonl say; prepare the corpus again")
    return Corpus(
        tokenizer=read_tokenizer(folder),
        documents=documents,
        tokens={split: partial(_mapped, folder / f"{split}.tokens", dtype) for split in SPLITS},
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
        facts: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TextError(f"{path} cannot be read ({error}); prepare the corpus again") from None
    return facts


def _entries(path: Path) -> list[Entry]:
    return [Entry(**json.loads(line)) for line in path.read_text().splitlines()]


def _mapped(path: Path, dtype: np.dtype[Any]) -> Tokens:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype=dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
