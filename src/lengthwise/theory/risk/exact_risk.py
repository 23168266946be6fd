"""Exact risks by enumeration: every sequence of a length, every planted set, with its probability."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import normalized

# Sequences that are enumerated at most, and how many are looked at in one go.
MOST_SEQUENCES = 1 << 24
BLOCK = 1 << 14


@runtime_checkable
class Predictor(Protocol):
    """What has a risk: a row of outputs for every sequence of tokens."""

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """The outputs after the whole sequence."""
        ...


@runtime_checkable
class Attends(Predictor, Protocol):
    """A predictor that says which sets it looked at."""

    def scored(
        self, tokens: Int[np.ndarray, "batch length"]
    ) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, "batch sets"], Float[np.ndarray, "batch sets outputs"]]:
        """All sets, with the log score and the value of each."""
        ...


@runtime_checkable
class Loss(Protocol):
    """What a prediction costs where the planted set and the label law are known."""

    name: ClassVar[str]

    def of(
        self,
        predictor: Predictor,
        tokens: Int[np.ndarray, "batch length"],
        planted: Int[np.ndarray, "batch k"],
        labels: Float[np.ndarray, "batch outputs"],
    ) -> Float[np.ndarray, " batch"]:
        """The expected loss of each row; ``labels`` are the probabilities of the labels given the planted tuple."""
        ...


@dataclass(frozen=True, slots=True)
class TotalVariation:
    """One minus the probability that the prediction gives to the label: linear, in [0, 1]. Outputs are probabilities.

    At most twice this is the share of wrong answers; the square root of half the log loss bounds it from above.
    """

    name: ClassVar[str] = "tv"

    def of(
        self,
        predictor: Predictor,
        tokens: Int[np.ndarray, "batch length"],
        planted: Int[np.ndarray, "batch k"],
        labels: Float[np.ndarray, "batch outputs"],
    ) -> Float[np.ndarray, " batch"]:
        """``sum_y K(y | z) (1 - f_y(x))``."""
        return np.asarray(1 - (predictor.predict(tokens) * labels).sum(axis=1))


@dataclass(frozen=True, slots=True)
class Distance:
    """Half the 1-norm between prediction and label law: the norm loss, in which errors of two sets may cancel."""

    name: ClassVar[str] = "norm"

    def of(
        self,
        predictor: Predictor,
        tokens: Int[np.ndarray, "batch length"],
        planted: Int[np.ndarray, "batch k"],
        labels: Float[np.ndarray, "batch outputs"],
    ) -> Float[np.ndarray, " batch"]:
        """``|f(x) - K(. | z)|_1 / 2``."""
        return np.asarray(np.abs(predictor.predict(tokens) - labels).sum(axis=1) / 2)


@dataclass(frozen=True, slots=True)
class Leakage:
    """One minus the attention weight of the planted set: linear, in [0, 1]; 1 where no set has any weight."""

    name: ClassVar[str] = "leakage"

    def of(
        self,
        predictor: Predictor,
        tokens: Int[np.ndarray, "batch length"],
        planted: Int[np.ndarray, "batch k"],
        labels: Float[np.ndarray, "batch outputs"],
    ) -> Float[np.ndarray, " batch"]:
        """The weight of all other sets."""
        assert isinstance(predictor, Attends)
        sets, log_scores, _ = predictor.scored(tokens)
        weights, _ = normalized(log_scores)
        same = (sets[None] == planted[:, None]).all(axis=2)
        return np.asarray(1 - (weights * same).sum(axis=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditional:
    """The risk given each planted set, at one length."""

    sets: Int[np.ndarray, "sets k"]
    probability: Float[np.ndarray, " sets"]
    risk: Float[np.ndarray, " sets"]

    @property
    def mean(self) -> float:
        """The risk at this length."""
        return float(self.probability @ self.risk)


def enumerated_risk(law: Planted, predictor: Predictor, length: int, loss: Loss) -> Conditional:
    """The exact expected loss given each planted set.

    Cost: every background of every planted tuple of every set, ``sets * tuples * |V|^(length - k)`` predictions;
    ``SettingError`` above ``MOST_SEQUENCES``.
    """
    sets, probability = law.placement.law(length).sets()
    number = len(sets) * num_sequences(law, length)
    if number > MOST_SEQUENCES:
        raise SettingError(
            f"length {length} has {number:,} sequences, more than the {MOST_SEQUENCES:,} "
            "that are enumerated; use a shorter length, laplace_risk or sampled_risk"
        )
    risk = np.zeros(len(sets))
    for place, planted in enumerate(sets):
        for tokens, labels, weight in _sequences(law, planted, length):
            rows = np.broadcast_to(planted, (len(tokens), law.k))
            risk[place] += weight @ loss.of(predictor, tokens, rows, labels)
    return Conditional(sets=sets, probability=probability, risk=risk)


def num_sequences(law: Planted, length: int) -> int:
    """How many sequences a planted set has: the backgrounds of every planted tuple."""
    return int((np.array(law.background) > 0).sum()) ** (length - law.k) * len(law.tuples)


def _sequences(law: Planted, planted: Int[np.ndarray, " k"], length: int) -> Iterator[tuple[np.ndarray, ...]]:
    """Blocks of sequences with this planted set, the label law and the probability of each."""
    mu = np.array(law.background)
    drawn = np.flatnonzero(mu)
    free = np.setdiff1d(np.arange(length), planted)
    number = len(drawn) ** len(free)
    for first in range(0, number, BLOCK):
        count = np.arange(first, min(first + BLOCK, number))
        digits = count[:, None] // len(drawn) ** np.arange(len(free) - 1, -1, -1) % len(drawn)
        tokens = np.zeros((len(count), length), dtype=np.int64)
        tokens[:, free] = drawn[digits]
        weight = mu[tokens[:, free]].prod(axis=1)
        for each, share, labels in zip(law.tuples, law.probabilities, law.labels, strict=True):
            tokens[:, planted] = each
            yield tokens, np.broadcast_to(np.array(labels), (len(count), law.num_labels)), share * weight
