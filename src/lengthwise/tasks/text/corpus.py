"""Corpora: tokenized documents in a training split and a held-out split, prepared in a folder or made from strings."""

import hashlib
import json
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt

from lengthwise.core.defaults import DATASET_PREFIX
from lengthwise.core.errors import SettingError, SkippedTextWarning, TextSourceError, unknown_name_error
from lengthwise.core.files import StrPath, check_output_folder, read_file, write_atomically, write_folder_atomically
from lengthwise.core.json_parsing import parse_json
from lengthwise.core.randomness import random_stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.text.documents import Document, read_documents
from lengthwise.tasks.text.tokenizer import (
    END,
    END_TOKEN_TEXT,
    BytePairTokenizer,
    ByteTokenizer,
    Tokenizer,
    import_tokenizers_library,
    split_text,
)

METADATA_FILE, TOKENIZER_FILE = "corpus.json", "tokenizer.json"
TRAIN, HELD_OUT = SPLITS = ("train", "held_out")

Tokens = UInt[np.ndarray, " tokens"]
# Allowed types of a token file. An object type would be unsafe, because it reads pointers from the file.
TOKEN_TYPES = {name: np.dtype(name) for name in ("<u2", "<u4")}
DIGEST_KEY = "sha256"
# Number of tokens that the content check reads at once.
CHECK_BLOCK_SIZE = 1 << 22
# Minimum vocabulary: all bytes and the end token.
MIN_VOCABULARY = 257
# The tokenizers library allocates memory for the whole vocabulary, and ends the process if memory is insufficient.
MAX_VOCABULARY = 1 << 20
# Longer words count as several words in the training of the tokenizer.
MAX_WORD_BYTES = 256

ProgressCallback = Callable[[str, int, int | None], None]
CorpusPart = tuple[str, str, Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentEntry:
    """Name and kind of a document, and its number of tokens without the end token."""

    name: str
    kind: str
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """Documents of each split, sorted by kind; ``tokens[split]()`` loads the tokens, with an end token per document."""

    tokenizer: Tokenizer
    documents: Mapping[str, tuple[DocumentEntry, ...]]
    tokens: Mapping[str, Callable[[], Tokens]]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of text in the order of the documents."""
        return tuple(dict.fromkeys(entry.kind for split in SPLITS for entry in self.documents[split]))

    def token_stream(self, split: str, kind: str | None = None) -> Tokens:
        """Return the tokens of a split, or of one kind in it; raise ``UnknownNameError`` for an unknown kind."""
        tokens = self.tokens[split]()
        if kind is None:
            return tokens
        self._check_kind(kind)
        bounds = np.concatenate([[0], self._document_ends(split)])
        indexes = [index for index, entry in enumerate(self.documents[split]) if entry.kind == kind]
        return tokens[bounds[indexes[0]] : bounds[indexes[-1] + 1]] if indexes else tokens[:0]

    def document_tokens(self, split: str, kind: str | None = None) -> list[tuple[str, Tokens]]:
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
            raise unknown_name_error("kind of text", kind, self.kinds)

    def _document_ends(self, split: str) -> Int[np.ndarray, " documents"]:
        return np.cumsum([entry.num_tokens + 1 for entry in self.documents[split]], dtype=np.int64)


def build_byte_corpus(texts: Mapping[str, Mapping[str, str]]) -> Corpus:
    """Return a byte-level corpus from ``texts[split][name]``; all texts have the kind ``text``."""
    tokenizer = ByteTokenizer()
    entries, streams = {}, {}
    for split in SPLITS:
        token_ids = {name: tokenizer.encode(text) for name, text in texts[split].items()}
        entries[split] = tuple(
            DocumentEntry(name=name, kind="text", num_tokens=len(ids)) for name, ids in token_ids.items()
        )
        tokens = np.array([token for ids in token_ids.values() for token in (*ids, END)], dtype=np.uint16)
        streams[split] = partial(np.asarray, tokens)
    return Corpus(tokenizer=tokenizer, documents=entries, tokens=streams)


@cache
def built_in_texts() -> dict[str, dict[str, str]]:
    """Return the name and content of each built-in text by split."""
    return tomllib.loads(Path(__file__).with_name("built_in_texts.toml").read_text(encoding="utf-8"))


def open_corpus(folder: StrPath) -> Corpus:
    """Open a prepared corpus, whose tokens are read on access; raise ``TextSourceError`` for a damaged corpus."""
    folder = Path(folder)
    metadata = read_corpus_metadata(folder)
    try:
        documents = {split: tuple(_read_entries(folder / f"{split}.jsonl")) for split in SPLITS}
        dtype = TOKEN_TYPES[metadata["token_type"]]
        token_counts = {split: int(metadata["splits"][split]["tokens"]) for split in SPLITS}
        digests = {split: str(metadata["splits"][split]["sha256"]) for split in SPLITS}
        files = (TOKENIZER_FILE, *(f"{split}.jsonl" for split in SPLITS))
        file_digests = {name: str(metadata["files"][name]) for name in files}
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise TextSourceError(f"corpus {folder} is damaged ({error!r}); prepare it again") from None
    for split, token_count in token_counts.items():
        path, num_tokens = folder / f"{split}.tokens", sum(entry.num_tokens + 1 for entry in documents[split])
        if num_tokens != token_count or not path.is_file() or path.stat().st_size != token_count * dtype.itemsize:
            raise TextSourceError(f"{path} does not match {METADATA_FILE} and {split}.jsonl; prepare the corpus again")
    tokenizer = read_tokenizer(folder)
    for name, digest in file_digests.items():
        path = folder / name
        if hashlib.sha256(read_file(path)).hexdigest() != digest:
            raise TextSourceError(
                f"{path} does not match {METADATA_FILE} (its digest differs); prepare the corpus again"
            )
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
        raise TextSourceError(f"{path} cannot be read ({error.strerror}); prepare the corpus again") from None


def read_corpus_metadata(folder: Path) -> dict[str, Any]:
    """Return the content of ``corpus.json``; raise ``TextSourceError`` if it is missing or modified."""
    path = folder / METADATA_FILE
    if not path.is_file():
        raise TextSourceError(
            f"{folder} is not a corpus (it has no {METADATA_FILE}); run lengthwise prepare TEXT --out {folder}"
        )
    try:
        metadata: dict[str, Any] = parse_json(read_file(path))
    except (OSError, ValueError) as error:
        raise TextSourceError(f"{path} cannot be read ({error}); prepare the corpus again") from None
    if metadata.get(DIGEST_KEY) != add_metadata_digest(metadata)[DIGEST_KEY]:
        raise TextSourceError(f"{path} was modified (its digest differs); prepare the corpus again")
    return metadata


def add_metadata_digest(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata of a corpus together with its digest."""
    content = {name: value for name, value in metadata.items() if name != DIGEST_KEY}
    return {**content, DIGEST_KEY: hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def _read_entries(path: Path) -> list[DocumentEntry]:
    entries = [DocumentEntry(**parse_json(line)) for line in read_file(path).splitlines()]
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
        raise TextSourceError(f"{path} cannot be read ({error}); prepare the corpus again") from None
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
        raise TextSourceError(f"{path} does not match {METADATA_FILE} (its digest differs); prepare the corpus again")
    if largest_token >= vocabulary_size:
        raise TextSourceError(
            f"{path} has token {largest_token} but only {vocabulary_size} tokens exist; prepare the corpus again"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Kind of text with its sources, the sizes of its documents in bytes, and the indexes of held-out documents.

    If a kind has a single document, ``num_train_characters`` is the number of characters before the held-out part.
    """

    sources: tuple[str, ...]
    sizes: tuple[int, ...]
    held_out: frozenset[int]
    num_train_characters: int | None


@check_arguments
def prepare_corpus(
    sources: Sequence[str],
    out: StrPath,
    *,
    vocabulary_size: int = 2048,
    held_out: float = 0.1,
    seed: int = 0,
    report: ProgressCallback = lambda stage, num_finished, total: None,
) -> dict[str, Any]:
    """Write a corpus to the folder ``out`` and return its metadata; after an error, write nothing.

    Each source is a file, folder or data set (see ``read_documents``), with an optional prefix ``KIND=``. The default
    kind is the name of the folder or data set. ``held_out`` is the approximate share of the bytes of each kind to hold
    out: random complete documents, or the end of a single document. The tokenizer is a byte pair encoding with at
    most ``vocabulary_size`` tokens, trained only on the training split. Copies of a text are skipped, so that training
    does not include held-out texts. Sources are read three times. The same texts and settings give the same files.
    ``report`` is called with the stage, the number of finished documents, and the total number of documents or None.
    """
    out = Path(out)
    if vocabulary_size < MIN_VOCABULARY:
        raise SettingError(f"vocabulary size {vocabulary_size} is too small; use at least {MIN_VOCABULARY}")
    if vocabulary_size > MAX_VOCABULARY:
        raise SettingError(f"vocabulary size {vocabulary_size} is too large; use at most {MAX_VOCABULARY}")
    if not 0 <= held_out < 1:
        raise SettingError(f"invalid held-out share {held_out}; use 0 or more and less than 1, such as 0.1")
    check_output_folder(out)
    kinds = _select_held_out(_group_by_kind(sources), held_out, seed, report)
    num_documents = sum(len(kind.sizes) for kind in kinds.values())
    with write_folder_atomically(out) as folder, warnings.catch_warnings():
        # The first pass over the sources has already raised these warnings.
        warnings.simplefilter("ignore", SkippedTextWarning)
        parts = _report_progress(_iterate_parts(kinds), "learning tokens", num_documents, report)
        tokenizer = _train_tokenizer(parts, vocabulary_size)
        write_atomically(folder / TOKENIZER_FILE, tokenizer.content)
        parts = _report_progress(_iterate_parts(kinds), "writing tokens", num_documents, report)
        metadata = add_metadata_digest(
            {
                "settings": {"vocabulary_size": vocabulary_size, "held_out": held_out, "seed": seed},
                "sources": {name: list(kind.sources) for name, kind in kinds.items()},
                "vocabulary_size": len(tokenizer.pieces),
                "tokenizers": str(import_tokenizers_library().__version__),
                **_write_tokens(parts, tokenizer, folder),
            }
        )
        write_atomically(folder / METADATA_FILE, json.dumps(metadata, indent=2).encode() + b"\n")
    return metadata


def corpus_table(metadata: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows of a table with one row per kind of text."""
    return ["kind", "documents", "bytes", "bytes per token", "train tokens", "held-out documents", "held-out tokens"], [
        [
            kind,
            *(f"{sum(counts[split][unit] for split in SPLITS):,}" for unit in ("documents", "bytes")),
            f"{counts[TRAIN]['bytes'] / max(1, counts[TRAIN]['tokens']):.2f}",
            f"{counts[TRAIN]['tokens']:,}",
            *(f"{counts[HELD_OUT][unit]:,}" for unit in ("documents", "tokens")),
        ]
        for kind, counts in metadata["kinds"].items()
    ]


def _group_by_kind(sources: Sequence[str]) -> dict[str, list[str]]:
    by_kind: dict[str, list[str]] = {}
    for source in sources:
        kind, _, name = source.partition("=")
        path = Path(source)
        if kind and name and not path.exists():
            by_kind.setdefault(kind, []).append(name)
        elif source.startswith(DATASET_PREFIX):
            by_kind.setdefault(source.removeprefix(DATASET_PREFIX).partition(":")[0], []).append(source)
        else:
            folder = path.absolute() if path.is_dir() else path.absolute().parent
            by_kind.setdefault(folder.resolve().name, []).append(source)
    if not by_kind:
        raise TextSourceError("no text sources; pass at least one file, folder or dataset:NAME")
    return by_kind


def _select_held_out(
    by_kind: Mapping[str, Sequence[str]], share: float, seed: int, report: ProgressCallback
) -> dict[str, _Kind]:
    kinds, num_finished = {}, 0
    digests: dict[bytes, str] = {}
    for kind, sources in by_kind.items():
        sizes: list[int] = []
        for document in read_documents(sources, digests=digests):
            sizes.append(len(document.text.encode()))
            num_finished += 1
            report("reading", num_finished, None)
        is_single = len(sizes) == 1 and share > 0
        rng = random_stream(seed, "held out", kind)
        held_out = frozenset[int]() if is_single or share == 0 else _sample_held_out(sizes, share, rng)
        split_index = _find_split_index(document.text, share) if is_single else None
        kinds[kind] = _Kind(
            sources=tuple(sources), sizes=tuple(sizes), held_out=held_out, num_train_characters=split_index
        )
    return kinds


def _sample_held_out(sizes: Sequence[int], share: float, rng: np.random.Generator) -> frozenset[int]:
    """Sample documents until they have this share of all bytes, but at least one document and never all documents."""
    order = rng.permutation(len(sizes))[:-1]
    sums_before = np.cumsum(np.array(sizes)[order]) - np.array(sizes)[order]
    return frozenset(order[sums_before < share * sum(sizes)].tolist())


def _find_split_index(text: str, share: float) -> int:
    """Return the index of the first held-out character, at the start of a line if possible."""
    target_index = max(1, round(len(text) * (1 - share)))
    line_start = text.find("\n", target_index) + 1
    split_index = line_start if 0 < line_start < len(text) else target_index
    if split_index >= len(text):
        raise TextSourceError(f"a text of {len(text)} characters is too short to split; use more text, or --held-out 0")
    return split_index


def _iterate_parts(kinds: Mapping[str, _Kind]) -> Iterator[CorpusPart]:
    """Yield the split, kind and document of each part in order; raise ``TextSourceError`` if texts have changed."""
    digests: dict[bytes, str] = {}
    for kind_name, kind in kinds.items():
        sizes, split_index = [], kind.num_train_characters
        for document_index, document in enumerate(read_documents(kind.sources, digests=digests)):
            name, text = document.name, document.text
            sizes.append(len(text.encode()))
            if split_index is None:
                yield (HELD_OUT if document_index in kind.held_out else TRAIN), kind_name, document
                continue
            yield TRAIN, kind_name, Document(name=name, text=text[:split_index])
            yield HELD_OUT, kind_name, Document(name=f"{name} (end)", text=text[split_index:])
        if tuple(sizes) != kind.sizes:
            raise TextSourceError(
                f"the texts of {', '.join(kind.sources)} changed while they were read; prepare them again"
            )


def _report_progress(
    corpus_parts: Iterator[CorpusPart], stage: str, num_documents: int, report: ProgressCallback
) -> Iterator[CorpusPart]:
    for num_finished, corpus_part in enumerate(corpus_parts, start=1):
        yield corpus_part
        report(stage, min(num_finished, num_documents), num_documents)


def _train_tokenizer(corpus_parts: Iterator[CorpusPart], vocabulary_size: int) -> BytePairTokenizer:
    library = import_tokenizers_library()
    tokenizer = library.Tokenizer(library.models.BPE())
    byte_level = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    # The time of training grows with the square of the length of a word.
    short_words = library.pre_tokenizers.FixedLength(length=MAX_WORD_BYTES)
    tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([byte_level, short_words])
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_TOKEN_TEXT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (part for split, _, document in corpus_parts if split == TRAIN for part in split_text(document.text))
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.pre_tokenizer = byte_level
    return BytePairTokenizer(tokenizer.to_str().encode(), TOKENIZER_FILE)


def smallest_token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned integer type that can represent all token IDs."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def _write_tokens(corpus_parts: Iterator[CorpusPart], tokenizer: BytePairTokenizer, folder: Path) -> dict[str, Any]:
    dtype = smallest_token_dtype(len(tokenizer.pieces))
    split_totals = {split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}
    by_kind: dict[str, dict[str, dict[str, int]]] = {}
    digests, list_digests = ({split: hashlib.sha256() for split in SPLITS} for _ in range(2))
    with ExitStack() as stack:
        files = {split: stack.enter_context((folder / f"{split}.tokens").open("wb")) for split in SPLITS}
        document_lists = {split: stack.enter_context((folder / f"{split}.jsonl").open("wb")) for split in SPLITS}
        for split, kind, document in corpus_parts:
            encoded = [np.array(tokenizer.encode(part), dtype=dtype) for part in split_text(document.text)]
            tokens = np.concatenate([*encoded, np.array([END], dtype=dtype)])
            files[split].write(tokens.tobytes())
            digests[split].update(tokens.tobytes())
            entry = DocumentEntry(name=document.name, kind=kind, num_tokens=len(tokens) - 1)
            json_line = json.dumps(asdict(entry)).encode() + b"\n"
            document_lists[split].write(json_line)
            list_digests[split].update(json_line)
            kind_totals = by_kind.setdefault(kind, {split: dict.fromkeys(split_totals[TRAIN], 0) for split in SPLITS})
            counts = {"documents": 1, "tokens": len(tokens), "bytes": len(document.text.encode())}
            for totals in (split_totals[split], kind_totals[split]):
                totals.update({unit: totals[unit] + count for unit, count in counts.items()})
    return {
        "token_type": dtype.str,
        "splits": {split: {**split_totals[split], "sha256": digests[split].hexdigest()} for split in SPLITS},
        "kinds": by_kind,
        "files": {
            TOKENIZER_FILE: hashlib.sha256(tokenizer.content).hexdigest(),
            **{f"{split}.jsonl": list_digests[split].hexdigest() for split in SPLITS},
        },
    }
