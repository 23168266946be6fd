"""Exact probabilities of background sequences whose tokens at some indexes are replaced by planted tokens."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.background import Background, Markov

Tokens = Int[np.ndarray, "batch length"]
Sets = Int[np.ndarray, "sets k"]


@runtime_checkable
class SequenceLaw(Protocol):
    """Law of the background tokens of a sequence."""

    def reference(self, tokens: Tokens) -> Float[np.ndarray, " batch"]:
        """Return ``c(x)``, a positive number that does not depend on the planted set."""

    def background_ratios(self, tokens: Tokens, sets: Sets) -> Float[np.ndarray, "batch sets"]:
        """Return the probability of all tokens of x outside of each set, divided by ``c(x)``."""


def sequence_law(background: tuple[float, ...] | Background) -> SequenceLaw:
    """Return the law of a background; raise ``SettingError`` for a natural text, whose probabilities are unknown."""
    if isinstance(background, tuple):
        return IndependentLaw(np.array(background))
    if isinstance(background, Markov):
        return MarkovLaw(background)
    raise SettingError(
        f"the background '{background.name}' has no known probabilities; use independent tokens or a Markov chain"
    )


@dataclass(frozen=True, slots=True)
class IndependentLaw:
    """Independent tokens. ``c(x)`` is the product of the probabilities of all tokens, with 0 replaced by 1."""

    background: Float[np.ndarray, " tokens"]

    def reference(self, tokens: Tokens) -> Float[np.ndarray, " batch"]:
        """Return the product over all tokens of the sequence."""
        return np.asarray(np.where(self.background == 0, 1.0, self.background)[tokens].prod(axis=1))

    def background_ratios(self, tokens: Tokens, sets: Sets) -> Float[np.ndarray, "batch sets"]:
        """Return 1 divided by the probability of the tokens in the set, or 0 if a token outside is impossible."""
        set_tokens, is_planted_only = tokens[:, sets], self.background == 0
        weights = np.where(is_planted_only, 1.0, self.background)[set_tokens].prod(axis=2)
        # A token with background probability 0 must be planted.
        num_planted_only = is_planted_only[tokens].sum(axis=1)[:, None]
        return np.where(num_planted_only == is_planted_only[set_tokens].sum(axis=2), 1 / weights, 0.0)


@dataclass(frozen=True, slots=True)
class MarkovLaw:
    """Markov chain, whose replaced tokens are summed over. Derived here.

    The probability of the other tokens is ``pi(x_i)`` of the first one times ``P_(j - i)(x_i, x_j)`` of all neighbors i
    and j among them. ``c(x)`` is the product of ``pi'(x_i)`` over all tokens, times ``P(a, b) / pi(b)`` of all adjacent
    tokens a and b. In both, an impossible factor is replaced by 1.
    """

    chain: Markov

    def reference(self, tokens: Tokens) -> Float[np.ndarray, " batch"]:
        """Return the product over all tokens and all pairs of adjacent tokens."""
        stationary, steps = self.chain.stationary, self._steps(tokens)
        return np.asarray(np.where(stationary == 0, 1.0, stationary)[tokens].prod(axis=1) * np.exp(steps))

    def background_ratios(self, tokens: Tokens, sets: Sets) -> Float[np.ndarray, "batch sets"]:
        """Return the ratio for each set; its logarithm is a sum of terms near the planted tokens."""
        length, k = tokens.shape[1], sets.shape[1]
        is_other = np.ones((len(sets), length), dtype=bool)
        np.put_along_axis(is_other, sets, False, axis=1)
        others = np.nonzero(is_other)[1].reshape(len(sets), length - k)
        log_ratios, stationary = self.chain.log_ratios(k + 1), self.chain.stationary
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
        ratios = self.chain.log_ratios(1)[0]
        return np.asarray(np.where(np.isfinite(ratios), ratios, 0.0)[tokens[:, :-1], tokens[:, 1:]].sum(axis=1))
