"""Preparation of a corpus folder from texts: a tokenizer, the tokens of two splits, and the metadata of the corpus."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.core.defaults import DATASET_PREFIX
from lengthwise.core.errors import SettingError, SkippedTextWarning, TextError
from lengthwise.core.files import StrPath, atomic_folder, check_output_folder, write_atomically
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.text.corpus import HELD_OUT, METADATA_FILE, SPLITS, TOKENIZER_FILE, TRAIN, Entry, with_digest
from lengthwise.tasks.text.documents import Document, read_documents
from lengthwise.tasks.text.tokenizer import END, END_TOKEN_TEXT, BytePairTokenizer, split_text, tokenizers_library

# Minimum vocabulary: all bytes and the end token.
MIN_VOCABULARY = 257
# The tokenizers library allocates memory for the whole vocabulary, and ends the process if memory is insufficient.
MAX_VOCABULARY = 1 << 20
# Longer words count as several words in the training of the tokenizer.
MAX_WORD_BYTES = 256

ProgressCallback = Callable[[str, int, int | None], None]
CorpusPart = tuple[str, str, Document]


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
    with atomic_folder(out) as folder, warnings.catch_warnings():
        # The first pass over the sources has already raised these warnings.
        warnings.simplefilter("ignore", SkippedTextWarning)
        parts = _report_progress(_iterate_parts(kinds), "learning tokens", num_documents, report)
        tokenizer = _train_tokenizer(parts, vocabulary_size)
        write_atomically(folder / TOKENIZER_FILE, tokenizer.content)
        parts = _report_progress(_iterate_parts(kinds), "writing tokens", num_documents, report)
        metadata = with_digest(
            {
                "settings": {"vocabulary_size": vocabulary_size, "held_out": held_out, "seed": seed},
                "sources": {name: list(kind.sources) for name, kind in kinds.items()},
                "vocabulary_size": len(tokenizer.pieces),
                "tokenizers": str(tokenizers_library().__version__),
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
        raise TextError("no text sources; pass at least one file, folder or dataset:NAME")
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
        rng = stream(seed, "held out", kind)
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
        raise TextError(f"a text of {len(text)} characters is too short to split; use more text, or --held-out 0")
    return split_index


def _iterate_parts(kinds: Mapping[str, _Kind]) -> Iterator[CorpusPart]:
    """Yield the split, kind and document of each corpus part in order; raise ``TextError`` if texts have changed."""
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
            raise TextError(f"the texts of {', '.join(kind.sources)} changed while they were read; prepare them again")


def _report_progress(
    corpus_parts: Iterator[CorpusPart], stage: str, num_documents: int, report: ProgressCallback
) -> Iterator[CorpusPart]:
    for num_finished, corpus_part in enumerate(corpus_parts, start=1):
        yield corpus_part
        report(stage, min(num_finished, num_documents), num_documents)


def _train_tokenizer(corpus_parts: Iterator[CorpusPart], vocabulary_size: int) -> BytePairTokenizer:
    library = tokenizers_library()
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


def token_type(vocabulary_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned integer type that can represent all token IDs."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def _write_tokens(corpus_parts: Iterator[CorpusPart], tokenizer: BytePairTokenizer, folder: Path) -> dict[str, Any]:
    dtype = token_type(len(tokenizer.pieces))
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
            entry = Entry(name=document.name, kind=kind, num_tokens=len(tokens) - 1)
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
