"""Text task: predict each token of a corpus from the preceding tokens."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int

from lengthwise.core.errors import PromptError, SettingError, TextSourceError
from lengthwise.core.files import read_file
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, TokenizedDocument, check_length_and_size
from lengthwise.tasks.text.corpus import (
    HELD_OUT,
    METADATA_FILE,
    SPLITS,
    TOKENIZER_FILE,
    TRAIN,
    Corpus,
    build_byte_corpus,
    built_in_texts,
    open_corpus,
    read_tokenizer,
)
from lengthwise.tasks.text.tokenizer import END, ByteTokenizer, Tokenizer, format_piece

# Number of tokens after a prompt that are reserved for the continuation.
CONTINUATION_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class Text(Task):
    """Layout ``t_0 t_1 .. t_n``, where n is the length and every token except the first is an answer.

    A sequence starts at a random token; end tokens separate documents. ``corpus`` is a folder from ``prepare_corpus``;
    the default is a few built-in pages with one token per byte. Sequences are sampled from ``split``, and only from
    ``kind`` if it is set. There are several valid answers, so evaluation measures the loss on held-out documents.
    With ``structure``, the coupling has two levels: the place of each token in its line, and the number of its line. A
    line ends after a token that contains a newline, or after an end token, so the coupling follows from the tokens.
    ``run_folder`` is the folder of a run whose tokenizer the task uses; this field is never saved.
    """

    corpus: str | None = None
    split: str = TRAIN
    kind: str | None = None
    structure: bool = False
    run_folder: str | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "text"
    summary: ClassVar[str] = "predict each token of a text from the preceding tokens; graded by loss"
    paper: ClassVar[str] = "Bengio et al. 2003, A Neural Probabilistic Language Model"
    separators: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_types(self)
        if self.split not in SPLITS:
            raise SettingError(f"unknown split '{self.split}' of text; use one of {', '.join(SPLITS)}")

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """End token, then the quoted text of each token."""
        return tuple(map(format_piece, self.tokenizer.pieces))

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample sequences of ``length + 1`` consecutive tokens from uniform start indexes."""
        check_length_and_size(self.name, length, size)
        stream = self._corpus.token_stream(self.split, self.kind)
        if len(stream) <= length:
            raise SettingError(
                f"length {length} needs {length + 1} tokens, but this {self.split} text has {len(stream)}; "
                f"use a length of at most {max(0, len(stream) - 1)}, or a larger corpus"
            )
        start_indexes = rng.integers(0, len(stream) - length, size=size)
        return self.tokens_to_examples(stream[start_indexes[:, None] + np.arange(length + 1)].astype(np.int64))

    def example_from_prompt(self, prompt: str) -> Examples:
        """Tokenize the start of a text and append placeholders for a continuation.

        The example has no answers and no coupling, because the lines of the continuation are unknown.
        """
        tokens = np.array(self.tokenizer.encode(prompt), dtype=np.int64)
        if not len(tokens):
            raise PromptError("the prompt is empty; write some words to continue")
        padded = np.concatenate([tokens, np.full(CONTINUATION_TOKENS, END)])[None]
        return Examples.from_unanswered_prompt(padded, len(tokens))

    def variants(self) -> Mapping[str, Task]:
        """Return one variant per kind of text, if there are several kinds."""
        kinds = () if self.corpus is None or self.kind is not None else self._corpus.kinds
        return {kind: replace(self, kind=kind) for kind in kinds} if len(kinds) > 1 else {}

    def tokens_to_examples(self, tokens: Int[np.ndarray, "batch seq"]) -> Examples:
        """Return sequences of consecutive tokens as examples."""
        is_answer = np.ones(tokens.shape, dtype=bool)
        is_answer[:, 0] = False
        return Examples(
            tokens=tokens,
            prompt_length=np.ones(len(tokens), dtype=np.int64),
            is_answer=is_answer,
            coupling=compute_line_coupling(self._ends_line[tokens]) if self.structure else None,
        )

    def held_out(self) -> list[TokenizedDocument]:
        """Return the held-out documents of ``kind``, or of all kinds."""
        return [
            TokenizedDocument(name=name, tokens=ids) for name, ids in self._corpus.document_tokens(HELD_OUT, self.kind)
        ]

    def count_token_bytes(self) -> Int[np.ndarray, " vocab"]:
        """Return the number of text bytes of each token ID."""
        return np.array([len(piece) for piece in self.tokenizer.pieces])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the corpus, or tokenizer of the run if the task is loaded from a run."""
        if self.corpus is None:
            return ByteTokenizer()
        return read_tokenizer(Path(self.corpus if self.run_folder is None else self.run_folder))

    def files_to_save(self) -> Mapping[str, bytes]:
        """Return the tokenizer and the metadata of the corpus, or an empty mapping for the built-in texts."""
        if self.corpus is None:
            return {}
        open_corpus(Path(self.corpus))
        return {name: read_file(Path(self.corpus) / name) for name in (TOKENIZER_FILE, METADATA_FILE)}

    def data_source(self) -> Mapping[str, str]:
        """Return the folder of the corpus and the SHA-256 of its metadata, which include the digests of its tokens."""
        if self.corpus is None:
            return {}
        metadata = _read_metadata_file(self.corpus if self.run_folder is None else self.run_folder)
        return {"corpus": self.corpus, "corpus_sha256": hashlib.sha256(metadata).hexdigest()}

    def from_run_folder(self, folder: Path) -> "Text":
        """Return a copy of the task with the tokenizer of a run."""
        return self if self.corpus is None else replace(self, run_folder=str(folder))

    def placeholder_example(self) -> Examples:
        """Return one example that consists of two tokens."""
        return self.tokens_to_examples(np.zeros((1, 2), dtype=np.int64))

    @cached_property
    def _ends_line(self) -> Bool[np.ndarray, " vocab"]:
        return np.array([b"\n" in piece or not piece for piece in self.tokenizer.pieces])

    @cached_property
    def _corpus(self) -> Corpus:
        if self.corpus is None:
            return build_byte_corpus(built_in_texts())
        corpus = open_corpus(Path(self.corpus))
        if self.run_folder is not None and _read_metadata_file(self.run_folder) != _read_metadata_file(self.corpus):
            # Another corpus can have another tokenizer, or held-out documents from the training split of the run.
            raise TextSourceError(
                f"corpus {self.corpus} is not the corpus of {self.run_folder} (its {METADATA_FILE} differs); "
                "set --corpus to the corpus of the run"
            )
        return corpus


def _read_metadata_file(folder: str) -> bytes:
    return read_file(Path(folder) / METADATA_FILE)


def compute_line_coupling(ends_line: Bool[np.ndarray, "batch seq"]) -> Int[np.ndarray, "level batch seq"]:
    """Return the place of each token in its line (level 0) and the number of its line in the sequence (level 1).

    ``ends_line`` is True for the last token of each line. Both levels count from 0, and the first line starts with the
    first token. The numbers of a token depend only on earlier tokens, so a continuation can be numbered as it grows.
    """
    starts_line = np.ones_like(ends_line)
    starts_line[:, 1:] = ends_line[:, :-1]
    indexes = np.arange(ends_line.shape[1])
    line_starts = np.maximum.accumulate(np.where(starts_line, indexes, 0), axis=1)
    return np.stack([indexes - line_starts, starts_line.cumsum(axis=1) - 1])
