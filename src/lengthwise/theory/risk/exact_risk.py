"""Losses, and exact risks by enumeration of all sequences of a length."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.background import MarkovChain
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import Outputs, ScoredSets, Tokens, normalize_scores

# The largest number of sequences to enumerate, and the number of sequences per block.
MAX_SEQUENCES = 1 << 24
BLOCK_SIZE = 1 << 14

PlantedSets = Int[np.ndarray, "batch k"]
Losses = Float[np.ndarray, " batch"]


@runtime_checkable
class Predictor(Protocol):
    """A function from token sequences to outputs, which are usually label probabilities."""

    def predict(self, tokens: Tokens) -> Outputs:
        """Return the output for each sequence."""
        ...


@runtime_checkable
class AttentionPredictor(Predictor, Protocol):
    """A predictor that exposes its scores and values for sets of tokens."""

    def score_token_sets(self, tokens: Tokens) -> ScoredSets:
        """Return the token indexes of all sets, with the log score and the value of each set in each sequence."""
        ...


@runtime_checkable
class Loss(Protocol):
    """A loss of a predictor on sequences with known planted sets and label probabilities."""

    name: ClassVar[str]

    def evaluate(self, predictor: Predictor, tokens: Tokens, planted: PlantedSets, labels: Outputs) -> Losses:
        """Return the expected loss of each sequence; ``labels`` are the label probabilities of the planted tuple."""
        ...


@dataclass(frozen=True, slots=True)
class TotalVariationLoss:
    """One minus the predicted probability of the label: a linear loss in [0, 1] if the outputs are probabilities.

    The share of wrong answers is at most twice this loss. This loss is at most the square root of half the log loss.
    """

    name: ClassVar[str] = "tv"

    def evaluate(self, predictor: Predictor, tokens: Tokens, planted: PlantedSets, labels: Outputs) -> Losses:
        """Return ``sum_y K(y | z) (1 - f_y(x))`` per sequence x; ``labels`` are the probabilities ``K(y | z)``."""
        return np.asarray(1 - (predictor.predict(tokens) * labels).sum(axis=1))


@dataclass(frozen=True, slots=True)
class NormLoss:
    """Norm loss: half the 1-norm of outputs minus label probabilities; the errors of two sets may cancel."""

    name: ClassVar[str] = "norm"

    def evaluate(self, predictor: Predictor, tokens: Tokens, planted: PlantedSets, labels: Outputs) -> Losses:
        """Return ``|f(x) - K(. | z)|_1 / 2`` per sequence x; ``labels`` are the probabilities ``K(. | z)``."""
        return np.asarray(np.abs(predictor.predict(tokens) - labels).sum(axis=1) / 2)


@dataclass(frozen=True, slots=True)
class AttentionLeakageLoss:
    """One minus the attention weight of the planted set: a linear loss in [0, 1]; it is 1 if no set has weight."""

    name: ClassVar[str] = "leakage"

    def evaluate(self, predictor: Predictor, tokens: Tokens, planted: PlantedSets, labels: Outputs) -> Losses:
        """Return the total attention weight of all sets except the planted set, per sequence."""
        assert isinstance(predictor, AttentionPredictor)
        sets, log_scores, _ = predictor.score_token_sets(tokens)
        weights, _ = normalize_scores(log_scores)
        is_planted = (sets[None] == planted[:, None]).all(axis=2)
        return np.asarray(1 - (weights * is_planted).sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalRisk:
    """The risk given each planted set (``risk``) and the probability of each set, at one length."""

    sets: Int[np.ndarray, "sets k"]
    probability: Float[np.ndarray, " sets"]
    risk: Float[np.ndarray, " sets"]

    @property
    def mean(self) -> float:
        """The mean of ``risk`` over the planted sets, weighted by their probability."""
        return float(self.probability @ self.risk)


def enumerated_risk(law: PlantedCorrelations, predictor: Predictor, length: int, loss: Loss) -> ConditionalRisk:
    """Return the exact expected loss given each planted set, by enumeration of all sequences.

    The cost is ``sets * tuples * |V|^(length - k)`` predictions, where V contains the background tokens. Raises
    ``SettingError`` for more than ``MAX_SEQUENCES`` sequences.
    """
    sets, probability = law.placement.offset_distribution(length).sets()
    total_sequences = len(sets) * count_sequences(law, length)
    if total_sequences > MAX_SEQUENCES:
        raise SettingError(
            f"length {length} has {total_sequences:,} sequences, more than the {MAX_SEQUENCES:,} allowed; use a "
            "shorter length, laplace_risk or sampled_risk"
        )
    risk = np.zeros(len(sets))
    for set_index, planted_set in enumerate(sets):
        for tokens, labels, sequence_probability in _enumerate_sequences(law, planted_set, length):
            repeated_set = np.broadcast_to(planted_set, (len(tokens), law.k))
            risk[set_index] += sequence_probability @ loss.evaluate(predictor, tokens, repeated_set, labels)
    return ConditionalRisk(sets=sets, probability=probability, risk=risk)


def count_sequences(law: PlantedCorrelations, length: int) -> int:
    """Return the number of possible sequences of ``length`` tokens if the indexes of the planted set are given."""
    return len(_possible_tokens(law)) ** (length - law.k) * len(law.tuples)


def _possible_tokens(law: PlantedCorrelations) -> Int[np.ndarray, " tokens"]:
    """Return the tokens that the background can contain."""
    background = law.background
    return np.flatnonzero(
        background.stationary_distribution if isinstance(background, MarkovChain) else law.independent_background
    )


def _enumerate_sequences(
    law: PlantedCorrelations, planted: Int[np.ndarray, " k"], length: int
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield blocks of all sequences with this planted set: their tokens, label probabilities, and probabilities."""
    possible_tokens, sequence_probabilities = _possible_tokens(law), law.sequence_probabilities
    num_tokens = len(possible_tokens)
    background_indexes = np.setdiff1d(np.arange(length), planted)
    total_sequences = num_tokens ** len(background_indexes)
    place_values = num_tokens ** np.arange(len(background_indexes) - 1, -1, -1)
    for block_start in range(0, total_sequences, BLOCK_SIZE):
        numbers = np.arange(block_start, min(block_start + BLOCK_SIZE, total_sequences))
        tokens = np.zeros((len(numbers), length), dtype=np.int64)
        tokens[:, background_indexes] = possible_tokens[numbers[:, None] // place_values % num_tokens]
        # The planted tokens do not matter here. A possible token keeps the reference positive.
        tokens[:, planted] = possible_tokens[0]
        ratios = sequence_probabilities.background_probability_ratios(tokens, planted[None])[:, 0]
        background_probability = ratios * sequence_probabilities.reference_probability(tokens)
        for planted_tuple, tuple_probability, labels in zip(law.tuples, law.probabilities, law.labels, strict=True):
            tokens[:, planted] = planted_tuple
            repeated_labels = np.broadcast_to(np.array(labels), (len(numbers), law.num_labels))
            yield tokens, repeated_labels, tuple_probability * background_probability
