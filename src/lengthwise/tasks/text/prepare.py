"""Preparing a corpus: texts become a tokenizer, two splits of tokens and the facts about them, in one folder."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lengthwise.core.errors import SettingError, SkippedTextWarning, TextError
from lengthwise.core.files import StrPath, atomic_folder, check_output_folder, write_atomically
from lengthwise.core.randomness import stream
from lengthwise.core.type_checks import check_arguments
from lengthwise.tasks.text.corpus import FACTS, HELD_OUT, SPLITS, TOKENIZER, TRAIN, Entry, with_digest
from lengthwise.tasks.text.documents import Document, read_documents
from lengthwise.tasks.text.text_records import DATASET
from lengthwise.tasks.text.tokenizer import END, END_TEXT, BytePairTokenizer, tokenizers_library

# The bytes and the end token.
SMALLEST_VOCABULARY = 257
# The tokenizers library takes memory for all that it is allowed, and ends the process where there is none.
LARGEST_VOCABULARY = 1 << 20

Report = Callable[[str, int, int | None], None]
Part = tuple[str, str, Document]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """One kind of text: its sources, its documents' sizes in bytes, and the numbers of those that are held out.

    ``cut`` is where the only document of a kind is cut in two, in characters.
    """

    sources: tuple[str, ...]
    sizes: tuple[int, ...]
    held_out: frozenset[int]
    cut: int | None


@check_arguments
def prepare_corpus(
    sources: Sequence[str],
    out: StrPath,
    *,
    vocabulary_size: int = 2048,
    held_out: float = 0.1,
    seed: int = 0,
    report: Report = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Write a corpus into ``out`` and return the facts about it; interrupted, nothing is written.

    A source is what ``read_documents`` takes, or ``KIND=`` and that. Without, its kind is the name of its folder or
    data set. Of each kind, about a share ``held_out`` of the bytes is kept from training: whole documents drawn by the
    seed, or the end of the only one. The tokenizer, byte pair encoding with at most ``vocabulary_size`` tokens, learns
    from the training split alone. Copies of a text are left out, so that none is held out and trained on. Sources are
    read three times. The same texts give the same files. Stages, documents done and their number, None while it is not
    known, are what ``report`` is told.
    """
    out = Path(out)
    if vocabulary_size < SMALLEST_VOCABULARY:
        raise SettingError(
            f"vocabulary size {vocabulary_size} has no room for every byte; use at least {SMALLEST_VOCABULARY}"
        )
    if vocabulary_size > LARGEST_VOCABULARY:
        raise SettingError(f"vocabulary size {vocabulary_size} is too large; use at most {LARGEST_VOCABULARY}")
    if not 0 <= held_out < 1:
        raise SettingError(f"held-out share {held_out} leaves nothing to train on; use 0.1, or another number below 1")
    check_output_folder(out)
    kinds = _survey(_by_kind(sources), held_out, seed, report)
    total = sum(len(kind.sizes) for kind in kinds.values())
    with atomic_folder(out) as folder, warnings.catch_warnings():
        # Told by the survey.
        warnings.simplefilter("ignore", SkippedTextWarning)
        tokenizer = _train_tokenizer(_told(_parts(kinds), "learning tokens", total, report), vocabulary_size)
        write_atomically(folder / TOKENIZER, tokenizer.content)
        facts = with_digest(
            {
                "settings": {"vocabulary_size": vocabulary_size, "held_out": held_out, "seed": seed},
                "sources": {kind: list(planned.sources) for kind, planned in kinds.items()},
                "vocabulary_size": len(tokenizer.pieces),
                "tokenizers": str(tokenizers_library().__version__),
                **_write_tokens(_told(_parts(kinds), "writing tokens", total, report), tokenizer, folder),
            }
        )
        write_atomically(folder / FACTS, json.dumps(facts, indent=2).encode() + b"\n")
    return facts


def corpus_table(facts: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and body: a row per kind of text."""
    return ["kind", "documents", "bytes", "bytes per token", "train tokens", "held-out documents", "held-out tokens"], [
        [
            kind,
            f"{sum(parts[split]['documents'] for split in SPLITS):,}",
            f"{sum(parts[split]['bytes'] for split in SPLITS):,}",
            f"{parts[TRAIN]['bytes'] / max(1, parts[TRAIN]['tokens']):.2f}",
            f"{parts[TRAIN]['tokens']:,}",
            f"{parts[HELD_OUT]['documents']:,}",
            f"{parts[HELD_OUT]['tokens']:,}",
        ]
        for kind, parts in facts["kinds"].items()
    ]


def _by_kind(sources: Sequence[str]) -> dict[str, list[str]]:
    by_kind: dict[str, list[str]] = {}
    for source in sources:
        kind, sign, named = source.partition("=")
        path = Path(source)
        if sign and kind and named and not path.exists():
            by_kind.setdefault(kind, []).append(named)
        elif source.startswith(DATASET):
            by_kind.setdefault(source.removeprefix(DATASET).partition(":")[0], []).append(source)
        else:
            folder = path.absolute() if path.is_dir() else path.absolute().parent
            by_kind.setdefault(folder.resolve().name, []).append(source)
    if not by_kind:
        raise TextError("no text is named; give files, folders or dataset:NAME")
    return by_kind


def _survey(by_kind: Mapping[str, Sequence[str]], held_out: float, seed: int, report: Report) -> dict[str, _Kind]:
    """Read everything once, and decide what is held out."""
    kinds, done = {}, 0
    known: dict[bytes, str] = {}
    for kind, sources in by_kind.items():
        sizes: list[int] = []
        for document in read_documents(sources, known=known):
            sizes.append(len(document.text.encode()))
            done += 1
            report("reading", done, None)
        only = len(sizes) == 1 and held_out > 0
        kinds[kind] = _Kind(
            sources=tuple(sources),
            sizes=tuple(sizes),
            held_out=frozenset() if only or held_out == 0 else _drawn(sizes, held_out, stream(seed, "held out", kind)),
            cut=_cut(document.text, held_out) if only else None,
        )
    return kinds


def _drawn(sizes: Sequence[int], share: float, rng: np.random.Generator) -> frozenset[int]:
    """Documents in a random order until they make up the share; one at least, and one is left."""
    chosen: list[int] = []
    for place in rng.permutation(len(sizes))[:-1].tolist():
        if sum(sizes[other] for other in chosen) >= share * sum(sizes):
            break
        chosen.append(place)
    return frozenset(chosen)


def _cut(text: str, share: float) -> int:
    """Where the held-out end of a text begins: behind a line, where there is one."""
    place = max(1, round(len(text) * (1 - share)))
    line = text.find("\n", place) + 1
    cut = line if 0 < line < len(text) else place
    if cut >= len(text):
        raise TextError(f"a text of {len(text)} characters cannot be cut in two; give more text, or --held-out 0")
    return cut


def _parts(kinds: Mapping[str, _Kind]) -> Iterator[Part]:
    """Split, kind and text of each document, in the survey's order; ``TextError`` when texts have changed since."""
    known: dict[bytes, str] = {}
    for kind, planned in kinds.items():
        sizes = []
        for number, document in enumerate(read_documents(planned.sources, known=known)):
            sizes.append(len(document.text.encode()))
            if planned.cut is None:
                yield (HELD_OUT if number in planned.held_out else TRAIN), kind, document
                continue
            yield TRAIN, kind, Document(name=document.name, text=document.text[: planned.cut])
            yield HELD_OUT, kind, Document(name=f"{document.name} (end)", text=document.text[planned.cut :])
        if tuple(sizes) != planned.sizes:
            raise TextError(
                f"the texts of {', '.join(planned.sources)} changed while they were read; prepare them again"
            )


def _told(parts: Iterator[Part], stage: str, total: int, report: Report) -> Iterator[Part]:
    for done, part in enumerate(parts):
        yield part
        report(stage, min(done + 1, total), total)


def _train_tokenizer(parts: Iterator[Part], vocabulary_size: int) -> BytePairTokenizer:
    library = tokenizers_library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END_TEXT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (document.text for split, _, document in parts if split == TRAIN)
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return BytePairTokenizer(tokenizer.to_str().encode(), TOKENIZER)


def token_type(vocabulary_size: int) -> np.dtype[Any]:
    """The narrowest numbers that hold every token."""
    return np.dtype("<u2" if vocabulary_size <= 1 << 16 else "<u4")


def _write_tokens(parts: Iterator[Part], tokenizer: BytePairTokenizer, folder: Path) -> dict[str, Any]:
    """Write both splits, a kind after the other, and return what is to be known of them."""
    dtype = token_type(len(tokenizer.pieces))
    counted = {split: {"documents": 0, "tokens": 0, "bytes": 0} for split in SPLITS}
    by_kind: dict[str, dict[str, dict[str, int]]] = {}
    digests = {split: hashlib.sha256() for split in SPLITS}
    listed = {split: hashlib.sha256() for split in SPLITS}
    with ExitStack() as stack:
        files = {split: stack.enter_context((folder / f"{split}.tokens").open("wb")) for split in SPLITS}
        lists = {split: stack.enter_context((folder / f"{split}.jsonl").open("wb")) for split in SPLITS}
        for split, kind, document in parts:
            tokens = np.array([*tokenizer.encode(document.text), END], dtype=dtype)
            files[split].write(tokens.tobytes())
            digests[split].update(tokens.tobytes())
            entry = Entry(name=document.name, kind=kind, num_tokens=len(tokens) - 1)
            line = json.dumps(asdict(entry)).encode() + b"\n"
            lists[split].write(line)
            listed[split].update(line)
            of_kind = by_kind.setdefault(kind, {split: dict.fromkeys(counted[TRAIN], 0) for split in SPLITS})
            for counts in (counted[split], of_kind[split]):
                counts["documents"] += 1
                counts["tokens"] += len(tokens)
                counts["bytes"] += len(document.text.encode())
    return {
        "token_type": dtype.str,
        "splits": {split: {**counted[split], "sha256": digests[split].hexdigest()} for split in SPLITS},
        "kinds": by_kind,
        "files": {
            TOKENIZER: hashlib.sha256(tokenizer.content).hexdigest(),
            **{f"{split}.jsonl": listed[split].hexdigest() for split in SPLITS},
        },
    }
