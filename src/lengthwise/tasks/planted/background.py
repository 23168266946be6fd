"""Backgrounds of planted tasks: dependent tokens (a Markov chain or a natural text), and exact probabilities."""

import hashlib
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError, TextSourceError
from lengthwise.core.files import read_file
from lengthwise.core.type_checks import check_at_least, check_types
from lengthwise.tasks.planted.placement import check_distribution
from lengthwise.tasks.text.corpus import (
    HELD_OUT,
    METADATA_FILE,
    SPLITS,
    TRAIN,
    Corpus,
    build_byte_corpus,
    built_in_texts,
    open_corpus,
)

# A text file is divided into a training part and a held-out part of this share.
HELD_OUT_SHARE = 0.2
# Prefix of the path of a file in Python's standard library.
STANDARD_LIBRARY = "stdlib:"

Tokens = Int[np.ndarray, "batch length"]
Sets = Int[np.ndarray, "sets k"]


@runtime_checkable
class Background(Protocol):
    """Distribution of the background tokens, which planted tokens then replace."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @property
    def num_background(self) -> int:
        """Number of different tokens that the background contains; they are numbered from 0."""

    @property
    def num_tokens(self) -> int:
        """Number of different tokens, including those that occur only as planted tokens."""

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size length"]:
        """Sample sequences of background tokens."""

    def held_out(self) -> "Background":
        """Return the background of the tests: a natural text has parts that training never uses."""


@dataclass(frozen=True, kw_only=True)
class MarkovChain:
    """Markov chain of order 1 that starts in its stationary distribution.

    ``transitions[a][b]`` is the probability that token b follows token a. Planted tokens replace tokens of the chain
    and do not change the other tokens. The ``num_marks`` tokens after those of the matrix occur only as planted tokens.
    """

    transitions: tuple[tuple[float, ...], ...] = ((0.9, 0.1), (0.1, 0.9))
    num_marks: int = 0

    name: ClassVar[str] = "markov"
    summary: ClassVar[str] = "a Markov chain of order 1 with a stationary start"

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_marks < 0:
            raise SettingError(f"invalid num_marks {self.num_marks}; use 0 or more")
        size = len(self.transitions)
        for token, row in enumerate(self.transitions):
            if len(row) != size:
                raise SettingError(f"row {token} of transitions has {len(row)} numbers; use {size}, one per token")
            check_distribution(row, [f"transition {token} to {other}" for other in range(size)], f"row {token}")
        # The eigenvalue 1 has as many dimensions as there are stationary distributions.
        num_stationary = size - int(np.linalg.matrix_rank(np.eye(size) - np.array(self.transitions), tol=1e-9))
        if num_stationary != 1:
            raise SettingError(
                f"transitions have {num_stationary} stationary distributions instead of 1; "
                "use a matrix in which one group of tokens can be reached from every token"
            )

    @property
    def num_background(self) -> int:
        """Number of rows of the matrix."""
        return len(self.transitions)

    @property
    def num_tokens(self) -> int:
        """Number of rows of the matrix, plus the marks."""
        return len(self.transitions) + self.num_marks

    @property
    def stationary_distribution(self) -> Float[np.ndarray, " tokens"]:
        """Stationary distribution over all tokens; marks have probability 0."""
        size = self.num_background
        equations = np.vstack([np.eye(size) - np.array(self.transitions).T, np.ones(size)])
        solution = np.linalg.lstsq(equations, np.append(np.zeros(size), 1.0), rcond=None)[0].clip(0.0)
        # Rounding leaves tiny probabilities of tokens that the chain leaves forever.
        solution[solution < 1e-12] = 0.0
        return np.append(solution / solution.sum(), np.zeros(self.num_marks))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size length"]:
        """Sample the first token from the stationary distribution, then each token from the row of the one before."""
        cumulative = np.cumsum(np.array(self.transitions), axis=1)
        uniform, tokens = rng.random((size, length)), np.zeros((size, length), dtype=np.int64)
        last_token = self.num_background - 1
        start = np.searchsorted(np.cumsum(self.stationary_distribution)[: last_token + 1], uniform[:, 0], side="right")
        tokens[:, 0] = start.clip(max=last_token)
        for index in range(1, length):
            rows = cumulative[tokens[:, index - 1], :-1]
            tokens[:, index] = (uniform[:, index, None] >= rows).sum(axis=1)
        return tokens

    def held_out(self) -> "MarkovChain":
        """Return the same chain, because a chain has no held-out part."""
        return self

    def log_transition_ratios(self, max_gap: int) -> Float[np.ndarray, "gaps tokens tokens"]:
        """Return ``log(P_g(a, b) / pi(b))`` for gaps g of 1 to ``max_gap`` tokens; -inf if it is impossible.

        ``P_g`` is the probability that b is g tokens after a, and pi is the stationary distribution.
        """
        stationary = self.stationary_distribution[: self.num_background]
        ratios = np.full((max_gap, self.num_tokens, self.num_tokens), -np.inf)
        power = np.eye(self.num_background)
        for gap in range(max_gap):
            power = power @ np.array(self.transitions)
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.where(stationary > 0, np.log(power) - np.log(stationary), -np.inf)
            ratios[gap, : self.num_background, : self.num_background] = values
        return ratios

    def reference_probability(self, tokens: Tokens) -> Float[np.ndarray, " batch"]:
        """Return ``c(x)``: ``pi(x_i)`` of all tokens times ``P(a, b) / pi(b)`` of all adjacent tokens a and b.

        An impossible factor is replaced by 1, here and in ``background_probability_ratios``.
        """
        stationary, steps = self.stationary_distribution, self._steps(tokens)
        return np.asarray(np.where(stationary == 0, 1.0, stationary)[tokens].prod(axis=1) * np.exp(steps))

    def background_probability_ratios(self, tokens: Tokens, sets: Sets) -> Float[np.ndarray, "batch sets"]:
        """Return the probability of all tokens outside of each set, divided by ``c(x)``. Derived here.

        It is ``pi(x_i)`` of the first one times ``P_(j - i)(x_i, x_j)`` of all neighbors i and j among them. The
        logarithm of the ratio is a sum of terms near the planted tokens.
        """
        length, k = tokens.shape[1], sets.shape[1]
        is_other = np.ones((len(sets), length), dtype=bool)
        np.put_along_axis(is_other, sets, False, axis=1)
        others = np.nonzero(is_other)[1].reshape(len(sets), length - k)
        log_ratios, stationary = self.log_transition_ratios(k + 1), self.stationary_distribution
        log_stationary = np.log(np.where(stationary == 0, 1.0, stationary))
        gaps, steps, ratios = np.diff(others, axis=1) - 1, self._steps(tokens), np.zeros((len(tokens), len(sets)))
        # One sequence at a time, because there can be many sets.
        for row, sequence in enumerate(tokens):
            other_tokens = sequence[others]
            logs = log_ratios[gaps, other_tokens[:, :-1], other_tokens[:, 1:]].sum(axis=1)
            is_possible = (stationary[other_tokens] > 0).all(axis=1)
            planted = log_stationary[sequence[sets]].sum(axis=1)
            ratios[row] = np.where(is_possible, np.exp(logs - steps[row] - planted), 0.0)
        return ratios

    def _steps(self, tokens: Tokens) -> Float[np.ndarray, " batch"]:
        """Return the sum of ``log(P(a, b) / pi(b))`` over adjacent tokens, without impossible pairs."""
        ratios = self.log_transition_ratios(1)[0]
        return np.asarray(np.where(np.isfinite(ratios), ratios, 0.0)[tokens[:, :-1], tokens[:, 1:]].sum(axis=1))


@dataclass(frozen=True, kw_only=True)
class NaturalText:
    """Consecutive tokens of a natural text; each sequence starts at a uniform token.

    ``corpus`` is a folder of ``lengthwise prepare`` or a text file, whose tokens are its bytes; ``stdlib:PATH`` is a
    file of Python's standard library. The default is a few built-in pages. The ``num_frequent - 1`` most frequent
    tokens of the training split are tokens 0, 1, ..., and all other tokens of the text are token ``num_frequent - 1``.
    The ``num_marks`` tokens after it occur only as planted tokens. Sequences are sampled from ``split``, and only from
    ``kind`` if it is set. ``corpus_sha256`` is the digest of the file, or of the metadata of the folder; by default it
    is computed. A run saves it, so that sampling raises ``TextSourceError`` if the text has changed.
    """

    num_frequent: int = 26
    num_marks: int = 0
    corpus: str | None = None
    kind: str | None = None
    split: str = TRAIN
    corpus_sha256: str | None = None

    name: ClassVar[str] = "natural"
    summary: ClassVar[str] = "consecutive tokens of a corpus or a text file"

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_marks < 0:
            raise SettingError(f"invalid num_marks {self.num_marks}; use 0 or more")
        check_at_least(self, 2, "num_frequent")
        if self.split not in SPLITS:
            raise SettingError(f"unknown split '{self.split}' of the background; use one of {', '.join(SPLITS)}")
        if self.corpus is not None and self.corpus_sha256 is None:
            object.__setattr__(self, "corpus_sha256", _digest(self.corpus))

    @property
    def num_background(self) -> int:
        """Number of frequent tokens, including the one for all other tokens of the text."""
        return self.num_frequent

    @property
    def num_tokens(self) -> int:
        """Number of frequent tokens, plus the marks."""
        return self.num_frequent + self.num_marks

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size length"]:
        """Sample windows of consecutive tokens; raise ``TextSourceError`` if the text is shorter than ``length``."""
        text = self.tokens()
        if len(text) < length:
            raise TextSourceError(
                f"the {self.split} split of the background has only {len(text):,} tokens, fewer than the length "
                f"{length:,}; use a longer text or shorter lengths"
            )
        starts = rng.integers(0, len(text) - length + 1, size=size)
        return text[starts[:, None] + np.arange(length)]

    def held_out(self) -> "NaturalText":
        """Return the background with the held-out split."""
        return replace(self, split=HELD_OUT)

    def tokens(self) -> Int[np.ndarray, " tokens"]:
        """Return all tokens of the split, by rank of frequency; raise ``TextSourceError`` if the text has changed."""
        if self.corpus is not None and _digest(self.corpus) != self.corpus_sha256:
            raise TextSourceError(
                f"the background {self.corpus} has changed since the task was defined (its digest differs); restore "
                "it, or train a new run"
            )
        return _ranked_tokens(self.corpus, self.corpus_sha256, self.kind, self.split, self.num_frequent)

    def data_source(self) -> Mapping[str, str]:
        """Return the path and the digest of the text; an empty mapping for the built-in pages."""
        if self.corpus is None or self.corpus_sha256 is None:
            return {}
        return {"corpus": self.corpus, "corpus_sha256": self.corpus_sha256}


BACKGROUNDS: dict[str, type[Background]] = {kind.name: kind for kind in (MarkovChain, NaturalText)}


def background_data_source(background: object) -> Mapping[str, str]:
    """Return the source of a natural text; an empty mapping for other backgrounds."""
    return background.data_source() if isinstance(background, NaturalText) else {}


@lru_cache(maxsize=8)
def _ranked_tokens(
    corpus: str | None, digest: str | None, kind: str | None, split: str, num_frequent: int
) -> Int[np.ndarray, " tokens"]:
    """Return the tokens of a split; token r is the one with rank r in the training split, and the last is the rest."""
    texts = _open(corpus)
    counts = np.bincount(np.asarray(texts.token_stream(TRAIN, kind)), minlength=len(texts.tokenizer.pieces))
    ranks = np.empty(len(counts), dtype=np.int64)
    ranks[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return np.asarray(np.minimum(ranks, num_frequent - 1)[np.asarray(texts.token_stream(split, kind))])


def _open(corpus: str | None) -> Corpus:
    if corpus is None:
        return build_byte_corpus(built_in_texts())
    path = _path_of(corpus)
    if path.is_dir():
        return open_corpus(path)
    try:
        text = read_file(path).decode()
    except UnicodeDecodeError as error:
        raise TextSourceError(f"the background {corpus} is no UTF-8 text ({error}); use a text file") from None
    border = round((1 - HELD_OUT_SHARE) * len(text))
    return build_byte_corpus({TRAIN: {path.name: text[:border]}, HELD_OUT: {path.name: text[border:]}})


def _digest(corpus: str) -> str:
    path = _path_of(corpus)
    path = path / METADATA_FILE if path.is_dir() else path
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except OSError as error:
        raise TextSourceError(
            f"the background {corpus} cannot be read ({error.strerror}); use a text file, or a folder of lengthwise "
            "prepare"
        ) from None


def _path_of(corpus: str) -> Path:
    is_standard, name = corpus.startswith(STANDARD_LIBRARY), corpus.removeprefix(STANDARD_LIBRARY)
    return Path(sysconfig.get_paths()["stdlib"], name) if is_standard else Path(name)


@dataclass(frozen=True, slots=True)
class IndependentTokenProbabilities:
    """Independent tokens. ``c(x)`` is the product of the probabilities of all tokens, with 0 replaced by 1."""

    background: Float[np.ndarray, " tokens"]

    def reference_probability(self, tokens: Tokens) -> Float[np.ndarray, " batch"]:
        """Return the product over all tokens of the sequence."""
        return np.asarray(np.where(self.background == 0, 1.0, self.background)[tokens].prod(axis=1))

    def background_probability_ratios(self, tokens: Tokens, sets: Sets) -> Float[np.ndarray, "batch sets"]:
        """Return 1 divided by the probability of the tokens in the set, or 0 if a token outside is impossible."""
        set_tokens, is_planted_only = tokens[:, sets], self.background == 0
        weights = np.where(is_planted_only, 1.0, self.background)[set_tokens].prod(axis=2)
        # A token with background probability 0 must be planted.
        num_planted_only = is_planted_only[tokens].sum(axis=1)[:, None]
        return np.where(num_planted_only == is_planted_only[set_tokens].sum(axis=2), 1 / weights, 0.0)
