"""Text: tokens in a row from anywhere in a corpus, each to be predicted from those before it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import PromptError, SettingError, TextError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.task import Task, TokenizedDocument, check_sizes
from lengthwise.tasks.text.built_in_texts import HELD_OUT as HELD_OUT_WORDS
from lengthwise.tasks.text.built_in_texts import SEEN
from lengthwise.tasks.text.corpus import (
    FACTS,
    HELD_OUT,
    SPLITS,
    TOKENIZER,
    TRAIN,
    Corpus,
    byte_corpus,
    open_corpus,
    read_tokenizer,
)
from lengthwise.tasks.text.tokenizer import END, ByteTokenizer, Tokenizer, shown

# Room behind a prompt: as many tokens can be written.
ROOM = 64


@dataclass(frozen=True, kw_only=True)
class Text:
    """Layout ``t_0 t_1 .. t_n`` with n the length; every token but the first is an answer.

    A sequence starts anywhere, and an end token stands where one document ends and the next begins. ``corpus`` is a
    folder that ``prepare_corpus`` made; without one it is a few pages of our own, a token per byte. ``split`` is what
    sequences are drawn from, ``kind`` one kind of text in it. There is no one right answer: what is measured is the
    loss on held-out documents. ``kept``, never saved, is the folder of the run that keeps the tokenizer.
    """

    corpus: str | None = None
    split: str = TRAIN
    kind: str | None = None
    kept: str | None = field(default=None, compare=False, repr=False)

    name: ClassVar[str] = "text"
    summary: ClassVar[str] = "running text, every token predicted from those before it; graded by loss"
    paper: ClassVar[str] = "Bengio et al. 2003, A Neural Probabilistic Language Model"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if self.split not in SPLITS:
            raise SettingError(f"split '{self.split}' is unknown to text; choose one of {', '.join(SPLITS)}")

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        """The end token, then every piece of text in quotes."""
        return tuple(map(shown, self.tokenizer.pieces))

    @property
    def separators(self) -> tuple[str, ...]:
        """None: text has no prompt to be told from a response."""
        return ()

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw places of the text uniformly."""
        check_sizes(self.name, length, size)
        stream = self._texts.stream(self.split, self.kind)
        if len(stream) <= length:
            raise SettingError(
                f"length {length} takes {length + 1} tokens and this {self.split} text has {len(stream)}; "
                f"use at most {max(0, len(stream) - 1)}, or a corpus with more text"
            )
        starts = rng.integers(0, len(stream) - length, size=size)
        return self.lay_out(stream[starts[:, None] + np.arange(length + 1)].astype(np.int64))

    def from_prompt(self, prompt: str) -> Examples:
        """Read the beginning of a text; what follows is room to write in, no answer is known."""
        tokens = np.array(self.tokenizer.encode(prompt), dtype=np.int64)
        if not len(tokens):
            raise PromptError("the prompt is empty; text takes some words to go on from")
        filled = np.concatenate([tokens, np.full(ROOM, END)])[None]
        return Examples(
            tokens=filled, prompt_length=np.array([len(tokens)]), is_answer=np.zeros(filled.shape, dtype=bool)
        )

    def variants(self) -> Mapping[str, Task]:
        """One for each kind of text, where there are several."""
        kinds = () if self.corpus is None or self.kind is not None else self._texts.kinds
        return {kind: replace(self, kind=kind) for kind in kinds} if len(kinds) > 1 else {}

    def lay_out(self, tokens: Int[np.ndarray, "batch seq"]) -> Examples:
        """Tokens in a row as examples."""
        is_answer = np.ones(tokens.shape, dtype=bool)
        is_answer[:, 0] = False
        return Examples(tokens=tokens, prompt_length=np.ones(len(tokens), dtype=np.int64), is_answer=is_answer)

    def held_out(self) -> list[TokenizedDocument]:
        """The documents that training never shows, of the kind that is asked for."""
        named = self._texts.texts(HELD_OUT, self.kind)
        return [TokenizedDocument(name=name, tokens=tokens) for name, tokens in named]

    def token_bytes(self) -> Int[np.ndarray, " vocab"]:
        """How many bytes of text each token stands for."""
        return np.array([len(piece) for piece in self.tokenizer.pieces])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of text: that of the run, where one keeps it, or of the corpus."""
        if self.corpus is None:
            return ByteTokenizer()
        return read_tokenizer(Path(self.corpus if self.kept is None else self.kept))

    def run_files(self) -> Mapping[str, bytes]:
        """The corpus's tokenizer, and the facts that it is known again by."""
        if self.corpus is None:
            return {}
        open_corpus(Path(self.corpus))
        return {name: (Path(self.corpus) / name).read_bytes() for name in (TOKENIZER, FACTS)}

    def source(self) -> Mapping[str, str]:
        """Return the folder of the corpus and the SHA-256 of its facts, which hold those of its tokens."""
        if self.corpus is None:
            return {}
        facts = _facts(self.corpus if self.kept is None else self.kept)
        return {"corpus": self.corpus, "corpus_sha256": hashlib.sha256(facts).hexdigest()}

    def from_run_folder(self, folder: Path) -> "Text":
        """The same text, with the tokenizer that a run keeps."""
        return self if self.corpus is None else replace(self, kept=str(folder))

    def placeholder_example(self) -> Examples:
        """Any two tokens."""
        return self.lay_out(np.zeros((1, 2), dtype=np.int64))

    @cached_property
    def _texts(self) -> Corpus:
        if self.corpus is None:
            return byte_corpus({TRAIN: SEEN, HELD_OUT: HELD_OUT_WORDS})
        opened = open_corpus(Path(self.corpus))
        if self.kept is not None and _facts(self.kept) != _facts(self.corpus):
            # Its tokens would be others, or its held-out documents among those that were trained on.
            raise TextError(
                f"corpus {self.corpus} is not the one that {self.kept} was trained on (its {FACTS} differs); "
                "name that one with --corpus"
            )
        return opened


def _facts(folder: str) -> bytes:
    return (Path(folder) / FACTS).read_bytes()
