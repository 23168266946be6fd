"""Planted correlations: k tokens somewhere in a random background decide the label, and every probability is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import ascii_letters
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.planted.distribution import check_coded, check_distribution
from lengthwise.tasks.planted.placement import Local, Placement
from lengthwise.tasks.task import Task, check_sizes, numbers_of


@dataclass(frozen=True, kw_only=True)
class Planted:
    """Layout ``x_1 .. x_length = y end``: ``k`` of the x are planted and decide y, the others are background.

    Drawn so: a set S by ``placement``; a tuple Z of ``tuples`` by ``probabilities``, independent of S; the tokens of S
    are Z in order; every other token is drawn by ``background``, alone; y is drawn by ``labels``, the row of Z. Tokens
    are numbers from 0 to below ``len(background)``; a token whose background probability is 0 marks what is planted.
    ``SettingError`` names the entry that makes no distribution.
    """

    background: tuple[float, ...] = (0.5, 0.5, 0.0, 0.0)
    tuples: tuple[tuple[int, ...], ...] = ((2, 2), (2, 3), (3, 2), (3, 3))
    probabilities: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    labels: tuple[tuple[float, ...], ...] = ((1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (1.0, 0.0))
    placement: Placement = field(default_factory=Local)

    name: ClassVar[str] = "planted"
    summary: ClassVar[str] = "k planted tokens in a random background decide the label; all probabilities are known"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), definition 3.2"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_types(self)
        if len(self.background) > len(ascii_letters):
            raise SettingError(f"{len(self.background)} tokens have no letters; use at most {len(ascii_letters)}")
        entries = [f"token {token} of the background" for token in range(len(self.background))]
        check_distribution(self.background, entries, "the probabilities of the background")
        if not self.tuples:
            raise SettingError("no tuple is planted; give at least one")
        if not len(self.tuples) == len(self.probabilities) == len(self.labels):
            raise SettingError(
                f"{len(self.tuples)} planted tuples have {len(self.probabilities)} probabilities and "
                f"{len(self.labels)} rows of labels; give one of each for every tuple"
            )
        self._check_tuples()
        named = [f"planted tuple {each}" for each in self.tuples]
        check_distribution(self.probabilities, named, "the probabilities of the planted tuples")

    def _check_tuples(self) -> None:
        for each, row in zip(self.tuples, self.labels, strict=True):
            if len(each) != self.placement.k:
                raise SettingError(
                    f"planted tuple {each} has {len(each)} tokens where the placement has {self.placement.k}; "
                    "make them the same"
                )
            if not all(0 <= token < len(self.background) for token in each):
                raise SettingError(f"planted tuple {each} has a token beyond the {len(self.background)} there are")
            if len(row) != len(self.labels[0]):
                raise SettingError(
                    f"planted tuple {each} has {len(row)} label probabilities and the first has {len(self.labels[0])}"
                )
            entries = [f"label {label} of planted tuple {each}" for label in range(len(row))]
            check_distribution(row, entries, f"the label probabilities of planted tuple {each}")
        if len(set(self.tuples)) < len(self.tuples):
            raise SettingError("a planted tuple is there twice; give each once with its whole probability")

    @property
    def possible(self) -> "Planted":
        """The same law without the tuples of probability 0."""
        kept = [index for index, share in enumerate(self.probabilities) if share > 0]
        if len(kept) == len(self.tuples):
            return self
        return replace(
            self,
            tuples=tuple(self.tuples[index] for index in kept),
            probabilities=tuple(self.probabilities[index] for index in kept),
            labels=tuple(self.labels[index] for index in kept),
        )

    @property
    def k(self) -> int:
        """How many tokens decide the label."""
        return self.placement.k

    @property
    def min_length(self) -> int:
        """The smallest length: shorter sequences have no room for what is planted."""
        return self.placement.min_length

    @property
    def num_tokens(self) -> int:
        """How many different x there are."""
        return len(self.background)

    @property
    def num_labels(self) -> int:
        """How many different y there are."""
        return len(self.labels[0])

    @cached_property
    def tuple_law(self) -> Float[np.ndarray, " codes"]:
        """The probability of every tuple of k tokens; its code reads it as a number, the first token leading."""
        check_coded(self.num_tokens**self.k, f"{self.k} of {self.num_tokens} tokens")
        law = np.zeros(self.num_tokens**self.k)
        law[self.codes(np.array(self.tuples))] = self.probabilities
        return law

    @cached_property
    def label_law(self) -> Float[np.ndarray, "codes labels"]:
        """The label probabilities of every tuple, by its code; of those never planted, the mean over the planted."""
        check_coded(self.num_tokens**self.k, f"{self.k} of {self.num_tokens} tokens")
        rows = np.array(self.labels)
        law = np.tile(np.array(self.probabilities) @ rows, (self.num_tokens**self.k, 1))
        law[self.codes(np.array(self.tuples))] = rows
        return law

    def codes(self, tuples: Int[np.ndarray, "*many k"]) -> Int[np.ndarray, "*many"]:
        """The number that stands for each tuple."""
        return np.asarray(tuples @ self.num_tokens ** np.arange(self.k - 1, -1, -1))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """A letter per token, the separator, a number per label, the end token."""
        return (*ascii_letters[: self.num_tokens], "=", *(str(label) for label in range(self.num_labels)), "end")

    @property
    def separators(self) -> tuple[str, ...]:
        """One: what follows it is the label."""
        return ("=",)

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Draw as the class says."""
        check_sizes(self.name, length, size, smallest=self.min_length)
        tokens, sets, label = self.draw(length, size, rng)
        return self._lay_out(tokens, sets, label)

    def draw(
        self, length: int, size: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "size length"], Int[np.ndarray, "size k"], Int[np.ndarray, " size"]]:
        """The x, the planted sets (token indexes from 0) and the labels."""
        sets = self.placement.sample(length, size, rng)
        which = rng.choice(len(self.tuples), size=size, p=self.probabilities)
        tokens = rng.choice(self.num_tokens, size=(size, length), p=self.background)
        np.put_along_axis(tokens, sets, np.array(self.tuples)[which], axis=1)
        # The first label whose cumulated probability is beyond a uniform draw.
        cumulated = np.cumsum(np.array(self.labels), axis=1)[which]
        label = (rng.random(size)[:, None] >= cumulated[:, :-1]).sum(axis=1)
        return tokens, sets, label

    def from_prompt(self, prompt: str) -> Examples:
        """Read letters such as ``abcda``.

        The answer is the most probable label; its support is the most probable planted set.
        """
        symbols = list(prompt.replace(" ", "").removesuffix("="))
        tokens = numbers_of(symbols, self.vocabulary[: self.num_tokens], self.name, "letters such as abcda")[None]
        if tokens.shape[1] < self.min_length:
            raise PromptError(f"'{prompt}' has no room for {self.k} planted tokens; write at least {self.min_length}")
        sets, weight = self.set_weights(tokens)
        if weight.sum() == 0:
            raise PromptError(f"'{prompt}' is never drawn; write background letters around {self._shown_tuples()}")
        votes = weight @ self.label_law[self.codes(tokens[0][sets])]
        return self._lay_out(tokens, sets[[weight[0].argmax()]], votes.argmax(axis=1))

    def set_weights(
        self, tokens: Int[np.ndarray, "batch length"]
    ) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, "batch sets"]]:
        """Each set with positive probability, and the joint probability ``P(x, S)`` over ``prod mu'(x_i)``.

        ``mu'`` is the background, 1 where that is 0: the factor is the same for all sets of a row.
        """
        sets, probability = self.placement.law(tokens.shape[1]).sets()
        mu = np.array(self.background)
        shown = tokens[:, sets]  # batch sets k
        ratio = self.tuple_law[self.codes(shown)] / np.where(mu == 0, 1.0, mu)[shown].prod(axis=2)
        # A token that the background never draws has to be planted.
        marked = (mu == 0)[tokens].sum(axis=1)[:, None] == (mu == 0)[shown].sum(axis=2)
        return sets, np.where(marked, probability * ratio, 0.0)

    def variants(self) -> Mapping[str, Task]:
        """One distribution only."""
        return {}

    def _shown_tuples(self) -> str:
        drawn = [each for each, share in zip(self.tuples, self.probabilities, strict=True) if share > 0]
        named = " or ".join("".join(ascii_letters[token] for token in each) for each in drawn[:3])
        return f"{named}, in one of the placement's shapes"

    def _lay_out(
        self,
        tokens: Int[np.ndarray, "batch length"],
        sets: Int[np.ndarray, "batch k"],
        label: Int[np.ndarray, " batch"],
    ) -> Examples:
        size, length = tokens.shape
        column = np.full((size, 1), self.num_tokens)
        end = column + 1 + self.num_labels
        whole = np.concatenate([tokens, column, column + 1 + label[:, None], end], axis=1)
        support = np.full((size, length + 3, self.k), -1)
        support[:, length + 1] = sets
        # The end token follows because a label has been written: the separator is two tokens before it.
        support[:, length + 2, 0] = length
        return Examples(
            tokens=whole,
            prompt_length=np.full(size, length + 1),
            is_answer=np.broadcast_to(np.arange(length + 3) > length, whole.shape),
            support=support,
        )
