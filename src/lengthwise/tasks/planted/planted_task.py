"""Planted correlations: k tokens in a random background determine the label; all probabilities are known."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from string import ascii_letters
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import PromptError, SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.examples import Examples
from lengthwise.tasks.planted.background import (
    Background,
    IndependentTokenProbabilities,
    MarkovChain,
    NaturalText,
    background_data_source,
)
from lengthwise.tasks.planted.placement import LocalPlacement, Placement, check_distribution, check_num_tuples
from lengthwise.tasks.task import Task, check_length_and_size, parse_symbols


@dataclass(frozen=True, kw_only=True)
class PlantedCorrelations(Task):
    """Layout ``x_1 .. x_length = y end``: k planted tokens determine the label y; all other x are background tokens.

    A set S of token indexes is sampled from ``placement``, and independently a tuple Z of k tokens from ``tuples`` with
    ``probabilities``. The tokens at the indexes S are the tokens of Z in order. All other tokens are independent with
    probabilities ``background``, or the tokens of a ``Background`` (a Markov chain or a natural text) at the same
    indexes. The label y has the probabilities in the row of ``labels`` for Z. Tokens are numbers below ``num_tokens``.
    A token with background probability 0 occurs only as a planted token. With a natural text, the variant ``held-out``
    uses the part of the text that training never uses.
    """

    background: tuple[float, ...] | Background = (0.5, 0.5, 0.0, 0.0)
    tuples: tuple[tuple[int, ...], ...] = ((2, 2), (2, 3), (3, 2), (3, 3))
    probabilities: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    labels: tuple[tuple[float, ...], ...] = ((1.0, 0.0), (0.0, 1.0), (0.0, 1.0), (1.0, 0.0))
    placement: Placement = field(default_factory=LocalPlacement)

    name: ClassVar[str] = "planted"
    summary: ClassVar[str] = "k planted tokens in a random background determine the label; all probabilities are known"
    paper: ClassVar[str] = "Golowich et al. 2025 (arXiv 2502.16792), definition 3.2"
    separators: ClassVar[tuple[str, ...]] = ("=",)

    def __post_init__(self) -> None:
        check_types(self)
        if self.num_tokens > len(ascii_letters):
            raise SettingError(f"the background has {self.num_tokens} tokens; use at most {len(ascii_letters)}")
        if isinstance(self.background, tuple):
            entry_names = [f"token {token} of the background" for token in range(self.num_tokens)]
            check_distribution(self.background, entry_names, "the probabilities of the background")
        if not self.tuples:
            raise SettingError(f"the planted task has no tuples; set tuples to at least one tuple of {self.k} tokens")
        if not len(self.tuples) == len(self.probabilities) == len(self.labels):
            raise SettingError(
                f"{len(self.tuples)} planted tuples have {len(self.probabilities)} probabilities and "
                f"{len(self.labels)} label distributions; give each tuple one probability and one label distribution"
            )
        self._check_tuples()
        entry_names = [f"planted tuple {planted_tuple}" for planted_tuple in self.tuples]
        check_distribution(self.probabilities, entry_names, "the probabilities of the planted tuples")

    def _check_tuples(self) -> None:
        for planted, label_probabilities in zip(self.tuples, self.labels, strict=True):
            if len(planted) != self.k:
                raise SettingError(
                    f"planted tuple {planted} has {len(planted)} tokens; use {self.k} tokens, as in the placement"
                )
            if not all(0 <= token < self.num_tokens for token in planted):
                raise SettingError(
                    f"planted tuple {planted} has an invalid token; use tokens from 0 to {self.num_tokens - 1}"
                )
            if len(label_probabilities) != self.num_labels:
                raise SettingError(
                    f"planted tuple {planted} has {len(label_probabilities)} label probabilities; use "
                    f"{self.num_labels} label probabilities, as for the first tuple"
                )
            entry_names = [f"label {label} of planted tuple {planted}" for label in range(len(label_probabilities))]
            check_distribution(label_probabilities, entry_names, f"the label probabilities of planted tuple {planted}")
        if len(set(self.tuples)) < len(self.tuples):
            raise SettingError("tuples contains the same tuple twice; list each tuple once, with its total probability")

    @property
    def drop_impossible_tuples(self) -> "PlantedCorrelations":
        """Same distribution, without the tuples that have probability 0."""
        is_possible = [probability > 0 for probability in self.probabilities]
        if all(is_possible):
            return self
        tuples, labels = tuple(compress(self.tuples, is_possible)), tuple(compress(self.labels, is_possible))
        probabilities = tuple(compress(self.probabilities, is_possible))
        return replace(self, tuples=tuples, probabilities=probabilities, labels=labels)

    @property
    def k(self) -> int:
        """Number of tokens that determine the label."""
        return self.placement.k

    @property
    def min_length(self) -> int:
        """Smallest length that can contain the planted tokens."""
        return self.placement.min_length

    @property
    def num_tokens(self) -> int:
        """Number of different input tokens x."""
        return len(self.background) if isinstance(self.background, tuple) else self.background.num_tokens

    @property
    def independent_background(self) -> Float[np.ndarray, " tokens"]:
        """Probability of each token of an independent background; raises ``SettingError`` for another background."""
        self.check_independent()
        return np.array(self.background)

    def check_independent(self) -> None:
        """Raise ``SettingError`` unless the background tokens are independent."""
        if not isinstance(self.background, tuple):
            raise SettingError(
                f"this computation needs independent background tokens, but the background is "
                f"'{self.background.name}'; use a tuple of probabilities as background, or enumerated_risk or "
                "sampled_risk"
            )

    @property
    def num_labels(self) -> int:
        """Number of different labels y."""
        return len(self.labels[0])

    @cached_property
    def tuple_code_probabilities(self) -> Float[np.ndarray, " codes"]:
        """Probability of each tuple of k tokens, indexed by its code."""
        check_num_tuples(self.num_tokens**self.k, f"{self.k} of {self.num_tokens} tokens")
        law = np.zeros(self.num_tokens**self.k)
        law[self.tuple_codes(np.array(self.tuples))] = self.probabilities
        return law

    @cached_property
    def label_probabilities(self) -> Float[np.ndarray, "codes labels"]:
        """Label probabilities of every possible tuple, indexed by its code.

        Tuples that are not in ``tuples`` get the mean over ``tuples``, weighted by ``probabilities``.
        """
        check_num_tuples(self.num_tokens**self.k, f"{self.k} of {self.num_tokens} tokens")
        law = np.tile(np.array(self.probabilities) @ np.array(self.labels), (self.num_tokens**self.k, 1))
        law[self.tuple_codes(np.array(self.tuples))] = self.labels
        return law

    def tuple_codes(self, tuples: Int[np.ndarray, "*many k"]) -> Int[np.ndarray, "*many"]:
        """Return the code of each tuple: its tokens as the digits of a number, most significant first."""
        return np.asarray(tuples @ self.num_tokens ** np.arange(self.k - 1, -1, -1))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Letters for the tokens, separator, numbers for the labels, and end token."""
        return (*ascii_letters[: self.num_tokens], "=", *(str(label) for label in range(self.num_labels)), "end")

    def sample(self, *, length: int, size: int, rng: np.random.Generator) -> Examples:
        """Sample the sets, tuples, background tokens and labels."""
        check_length_and_size(self.name, length, size, min_length=self.min_length)
        return self._lay_out(*self.sample_arrays(length, size, rng))

    def sample_arrays(
        self, length: int, size: int, rng: np.random.Generator
    ) -> tuple[Int[np.ndarray, "size length"], Int[np.ndarray, "size k"], Int[np.ndarray, " size"]]:
        """Sample input tokens, planted sets (token indexes from 0) and labels as arrays."""
        sets = self.placement.sample(length, size, rng)
        tuple_index = rng.choice(len(self.tuples), size=size, p=self.probabilities)
        if isinstance(self.background, tuple):
            tokens = rng.choice(self.num_tokens, size=(size, length), p=self.background)
        else:
            tokens = self.background.sample(length, size, rng)
        np.put_along_axis(tokens, sets, np.array(self.tuples)[tuple_index], axis=1)
        # Select the first label whose cumulative probability exceeds a uniform number.
        cumulative_probabilities = np.cumsum(np.array(self.labels), axis=1)[tuple_index]
        return tokens, sets, (rng.random(size)[:, None] >= cumulative_probabilities[:, :-1]).sum(axis=1)

    def example_from_prompt(self, prompt: str) -> Examples:
        """Parse letters such as ``abcda``; the answer is the most probable label, its support the most probable set."""
        symbols = list(prompt.replace(" ", "").removesuffix("="))
        tokens = parse_symbols(symbols, self.vocabulary[: self.num_tokens], self.name, "letters such as abcda")[None]
        if tokens.shape[1] < self.min_length:
            raise PromptError(
                f"prompt '{prompt}' is too short for {self.k} planted tokens; write at least {self.min_length} letters"
            )
        sets, weights = self.planted_set_weights(tokens)
        if weights.sum() == 0:
            planted = [[ascii_letters[token] for token in row] for row in self.drop_impossible_tuples.tuples[:3]]
            raise PromptError(
                f"prompt '{prompt}' has probability 0; write {' or '.join(map(''.join, planted))} in a shape of the "
                "placement, and background letters at all other places"
            )
        label_scores = weights @ self.label_probabilities[self.tuple_codes(tokens[0][sets])]
        return self._lay_out(tokens, sets[[weights[0].argmax()]], label_scores.argmax(axis=1))

    def planted_set_weights(
        self, tokens: Int[np.ndarray, "batch length"]
    ) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, "batch sets"]]:
        """Return all sets S with positive probability, and the ratios ``P(x, S) / c(x)``.

        ``c(x)`` is ``sequence_probabilities.reference_probability``. Raises ``SettingError`` for a natural text, whose
        probabilities are unknown.
        """
        sets, probability = self.placement.offset_distribution(tokens.shape[1]).sets()
        weights = probability * self.tuple_code_probabilities[self.tuple_codes(tokens[:, sets])]
        return sets, weights * self.sequence_probabilities.background_probability_ratios(tokens, sets)

    @property
    def sequence_probabilities(self) -> IndependentTokenProbabilities | MarkovChain:
        """Probabilities of background sequences; raises ``SettingError`` for a natural text."""
        if isinstance(self.background, tuple):
            return IndependentTokenProbabilities(np.array(self.background))
        if isinstance(self.background, MarkovChain):
            return self.background
        raise SettingError(
            f"the background '{self.background.name}' has no known probabilities; use independent tokens or a Markov "
            "chain"
        )

    def variants(self) -> Mapping[str, Task]:
        """Return ``held-out`` for a natural text; other backgrounds have no variants."""
        if isinstance(self.background, NaturalText):
            return {"held-out": replace(self, background=self.background.held_out())}
        return {}

    def data_source(self) -> Mapping[str, str]:
        """Return the path and digest of a natural text; an empty mapping for other backgrounds."""
        return background_data_source(self.background)

    def placeholder_example(self) -> Examples:
        """Return one example with the arrays of sampled examples, without reading a text."""
        sets = np.arange(self.k)[None]
        return self._lay_out(np.zeros((1, max(self.k, self.min_length)), dtype=np.int64), sets, np.zeros(1, np.int64))

    def _lay_out(
        self,
        tokens: Int[np.ndarray, "batch length"],
        sets: Int[np.ndarray, "batch k"],
        label: Int[np.ndarray, " batch"],
    ) -> Examples:
        batch_size, length = tokens.shape
        separator = np.full((batch_size, 1), self.num_tokens)
        label_ids = separator + 1 + label[:, None]
        sequences = np.concatenate([tokens, separator, label_ids, separator + 1 + self.num_labels], axis=1)
        depends_on = np.full((batch_size, length + 3, self.k), -1)
        depends_on[:, length + 1] = sets
        # The end token depends on the separator, two tokens before it.
        depends_on[:, length + 2, 0] = length
        return Examples.with_prompt_length(sequences, length + 1, depends_on=depends_on)
