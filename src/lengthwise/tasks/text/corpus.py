"""Corpora: tokenized documents in a training split and a held-out split, from a prepared folder or from strings."""

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt

from lengthwise.core.errors import TextError, unknown_name
from lengthwise.core.files import StrPath, read_file
from lengthwise.core.json_parsing import parse_json
from lengthwise.tasks.text.tokenizer import END, BytePairTokenizer, ByteTokenizer, Tokenizer

METADATA_FILE, TOKENIZER_FILE = "corpus.json", "tokenizer.json"
TRAIN, HELD_OUT = SPLITS = ("train", "held_out")

Tokens = UInt[np.ndarray, " tokens"]
# Allowed types of a token file. An object type would be unsafe, because it reads pointers from the file.
TOKEN_TYPES = {name: np.dtype(name) for name in ("<u2", "<u4")}
DIGEST_KEY = "sha256"
# Number of tokens that the content check reads at once.
CHECK_BLOCK_SIZE = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Name and kind of a document, and its number of tokens without the end token."""

    name: str
    kind: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents of each split, sorted by kind; ``tokens[split]()`` loads the tokens, with an end token per document."""

    tokenizer: Tokenizer
    documents: Mapping[str, tuple[Entry, ...]]
    tokens: Mapping[str, Callable[[], Tokens]]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of text in the order of the documents."""
        return tuple(dict.fromkeys(entry.kind for split in SPLITS for entry in self.documents[split]))

    def stream(self, split: str, kind: str | None = None) -> Tokens:
        """Return the tokens of a split, or of one kind in it; raise ``UnknownNameError`` for an unknown kind."""
        tokens = self.tokens[split]()
        if kind is None:
            return tokens
        self._check_kind(kind)
        bounds = np.concatenate([[0], self._document_ends(split)])
        indexes = [index for index, entry in enumerate(self.documents[split]) if entry.kind == kind]
        return tokens[bounds[indexes[0]] : bounds[indexes[-1] + 1]] if indexes else tokens[:0]

    def texts(self, split: str, kind: str | None = None) -> list[tuple[str, Tokens]]:
        """Return the name and the tokens, without end token, of each document of a split, or of one kind in it."""
        if kind is not None:
            self._check_kind(kind)
        tokens = self.tokens[split]()
        return [
            (entry.name, tokens[end - 1 - entry.num_tokens : end - 1])
            for entry, end in zip(self.documents[split], self._document_ends(split).tolist(), strict=True)
            if kind in (None, entry.kind)
        ]

    def _check_kind(self, kind: str) -> None:
        if kind not in self.kinds:
            raise unknown_name("kind of text", kind, self.kinds)

    def _document_ends(self, split: str) -> Int[np.ndarray, " documents"]:
        return np.cumsum([entry.num_tokens + 1 for entry in self.documents[split]], dtype=np.int64)


def byte_corpus(texts: Mapping[str, Mapping[str, str]]) -> Corpus:
    """Return a byte-level corpus from ``texts[split][name]``; all texts have the kind ``text``."""
    tokenizer = ByteTokenizer()
    entries, streams = {}, {}
    for split in SPLITS:
        token_ids = {name: tokenizer.encode(text) for name, text in texts[split].items()}
        entries[split] = tuple(Entry(name=name, kind="text", num_tokens=len(ids)) for name, ids in token_ids.items())
        stream = np.array([token for ids in token_ids.values() for token in (*ids, END)], dtype=np.uint16)
        streams[split] = partial(np.asarray, stream)
    return Corpus(tokenizer=tokenizer, documents=entries, tokens=streams)


@cache
def built_in_texts() -> dict[str, dict[str, str]]:
    """Return the name and content of each built-in text by split."""
    return tomllib.loads(Path(__file__).with_name("built_in_texts.toml").read_text(encoding="utf-8"))


def open_corpus(folder: StrPath) -> Corpus:
    """Open a prepared corpus, whose tokens are read on access; raise ``TextError`` for a damaged corpus."""
    folder = Path(folder)
    metadata = read_metadata(folder)
    try:
        documents = {split: tuple(_read_entries(folder / f"{split}.jsonl")) for split in SPLITS}
        dtype = TOKEN_TYPES[metadata["token_type"]]
        token_counts = {split: int(metadata["splits"][split]["tokens"]) for split in SPLITS}
        digests = {split: str(metadata["splits"][split]["sha256"]) for split in SPLITS}
        files = (TOKENIZER_FILE, *(f"{split}.jsonl" for split in SPLITS))
        file_digests = {name: str(metadata["files"][name]) for name in files}
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise TextError(f"corpus {folder} is damaged ({error!r}); prepare it again") from None
    for split, token_count in token_counts.items():
        path, num_tokens = folder / f"{split}.tokens", sum(entry.num_tokens + 1 for entry in documents[split])
        if num_tokens != token_count or not path.is_file() or path.stat().st_size != token_count * dtype.itemsize:
            raise TextError(f"{path} does not match {METADATA_FILE} and {split}.jsonl; prepare the corpus again")
    tokenizer = read_tokenizer(folder)
    for name, digest in file_digests.items():
        path = folder / name
        if hashlib.sha256(read_file(path)).hexdigest() != digest:
            raise TextError(f"{path} does not match {METADATA_FILE} (its digest differs); prepare the corpus again")
    read_split = partial(_read_tokens, dtype=dtype, vocabulary_size=len(tokenizer.pieces))
    return Corpus(
        tokenizer=tokenizer,
        documents=documents,
        tokens={split: partial(read_split, folder / f"{split}.tokens", digests[split]) for split in SPLITS},
    )


def read_tokenizer(folder: Path) -> BytePairTokenizer:
    """Return the tokenizer of a prepared corpus, or of a run that was trained on a prepared corpus."""
    path = folder / TOKENIZER_FILE
    try:
        return BytePairTokenizer(read_file(path), str(path))
    except OSError as error:
        raise TextError(f"{path} cannot be read ({error.strerror}); prepare the corpus again") from None


def read_metadata(folder: Path) -> dict[str, Any]:
    """Return the content of ``corpus.json``; raise ``TextError`` if it is missing or modified."""
    path = folder / METADATA_FILE
    if not path.is_file():
        raise TextError(
            f"{folder} is not a corpus (it has no {METADATA_FILE}); run lengthwise prepare TEXT --out {folder}"
        )
    try:
        metadata: dict[str, Any] = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise TextError(f"{path} cannot be read ({error}); prepare the corpus again") from None
    if metadata.get(DIGEST_KEY) != with_digest(metadata)[DIGEST_KEY]:
        raise TextError(f"{path} was modified (its digest differs); prepare the corpus again")
    return metadata


def with_digest(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a corpus together with its digest."""
    content = {name: value for name, value in metadata.items() if name != DIGEST_KEY}
    return {**content, DIGEST_KEY: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def _read_entries(path: Path) -> list[Entry]:
    entries = [Entry(**parse_json(line)) for line in read_file(path).splitlines()]
    for entry in entries:
        has_valid_size = type(entry.num_tokens) is int and entry.num_tokens >= 0
        if not (has_valid_size and isinstance(entry.name, str) and isinstance(entry.kind, str)):
            raise ValueError(f"{path.name} has the invalid entry {entry}")
    return entries


def _read_tokens(path: Path, digest: str, *, dtype: np.dtype[Any], vocabulary_size: int) -> Tokens:
    """Map the tokens of a file into memory; check them on the first read and after each change of the file."""
    try:
        status = path.stat()
        # NumPy cannot map an empty file.
        tokens = np.memmap(path, dtype=dtype, mode="r") if status.st_size else np.empty(0, dtype)
    except (OSError, ValueError) as error:
        raise TextError(f"{path} cannot be read ({error}); prepare the corpus again") from None
    identity = (str(path), status.st_ino, status.st_mtime_ns, status.st_size, digest, vocabulary_size)
    if identity not in _VERIFIED_FILES:
        _verify_tokens(path, tokens, digest, vocabulary_size)
        _VERIFIED_FILES.add(identity)
    return tokens


# Identities of files with valid content, together with their digest and vocabulary size.
_VERIFIED_FILES: set[tuple[str, int, int, int, str, int]] = set()


def _verify_tokens(path: Path, tokens: Tokens, digest: str, vocabulary_size: int) -> None:
    content_digest, largest_token = hashlib.sha256(), -1
    for start in range(0, len(tokens), CHECK_BLOCK_SIZE):
        block = tokens[start : start + CHECK_BLOCK_SIZE]
        content_digest.update(block.tobytes())
        largest_token = max(largest_token, int(block.max()))
    if content_digest.hexdigest() != digest:
        raise TextError(f"{path} does not match {METADATA_FILE} (its digest differs); prepare the corpus again")
    if largest_token >= vocabulary_size:
        raise TextError(
            f"{path} has token {largest_token} but only {vocabulary_size} tokens exist; prepare the corpus again"
        )
