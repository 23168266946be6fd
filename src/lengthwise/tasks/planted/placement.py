"""Placements of planted tokens: one distribution over sets of k token indexes per length."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import comb
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_at_least, check_types

MAX_SHAPES = 200_000
# Maximum number of tuples of k tokens in a table.
MAX_TUPLES = 1 << 22
SUM_TOLERANCE = 1e-9


def check_distribution(values: Sequence[float], entries: Sequence[str], description: str) -> None:
    """Raise ``SettingError`` unless the values are a distribution; ``entries`` has the name of each value."""
    for value, entry in zip(values, entries, strict=True):
        if not 0 <= value <= 1 + SUM_TOLERANCE:
            raise SettingError(f"{entry} has probability {value}; use a probability between 0 and 1")
    total = float(np.sum(values))
    if total == 0:
        raise SettingError(f"{description} are all 0 or missing; use at least one positive probability")
    if abs(total - 1) > SUM_TOLERANCE:
        raise SettingError(f"{description} have the sum {total:.6g} instead of 1; divide them by {total:.6g}")


def check_shapes(shapes: Sequence[Sequence[int]], max_span: int | None) -> None:
    """Raise ``SettingError`` unless the shapes are unique, valid and no wider than ``max_span`` tokens."""
    if not shapes or not shapes[0]:
        raise SettingError("the placement has no shape; use at least one shape such as (0, 1)")
    k = len(shapes[0])
    for shape in shapes:
        if shape[0] != 0 or any(next_distance <= distance for distance, next_distance in pairwise(shape)):
            raise SettingError(f"invalid shape {tuple(shape)}; use distances from the first token such as (0, 1, 4)")
        if len(shape) != k:
            raise SettingError(f"shape {tuple(shape)} has {len(shape)} tokens; use {k}, as in the first shape")
        if max_span is not None and shape[-1] + 1 > max_span:
            raise SettingError(
                f"shape {tuple(shape)} spans {shape[-1] + 1} tokens but widest is {max_span}; "
                f"set widest to at least {shape[-1] + 1}"
            )
    if len({tuple(shape) for shape in shapes}) < len(shapes):
        raise SettingError(f"shapes {shapes} contain a shape twice; use each shape once with its total weight")


def check_number_of_placements(num_shapes: int, description: str) -> None:
    """Raise ``SettingError`` if there are too many shapes to enumerate."""
    if num_shapes > MAX_SHAPES:
        raise SettingError(
            f"{description} has {num_shapes:,} shapes, more than {MAX_SHAPES:,}; "
            "use a smaller length, span or number of planted tokens"
        )


def check_num_tuples(num_tuples: int, description: str) -> None:
    """Raise ``SettingError`` if a table has too many tuples."""
    if num_tuples > MAX_TUPLES:
        raise SettingError(
            f"{description} give {num_tuples:,} tuples, more than {MAX_TUPLES:,}; use fewer tokens or a smaller k"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDistribution:
    """Distribution over sets of token indexes at one length; ``c + shapes[o]`` has probability ``probability[o, c]``.

    A shape is a tuple of distances from its first token, starting with 0. Shapes that do not fit have probability 0.
    """

    shapes: Int[np.ndarray, "shapes k"]
    probability: Float[np.ndarray, "shapes length"]

    @property
    def length(self) -> int:
        """Number of tokens of a sequence."""
        return self.probability.shape[1]

    def sets(self) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, " sets"]]:
        """Return all sets with positive probability, as token indexes from 0, and their probabilities."""
        shape_index, start_index = self.probability.nonzero()
        return start_index[:, None] + self.shapes[shape_index], self.probability[shape_index, start_index]


@runtime_checkable
class Placement(Protocol):
    """Distribution over sets of planted tokens, for every length."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @property
    def k(self) -> int:
        """Number of planted tokens per sequence."""

    @property
    def max_span(self) -> int | None:
        """Maximum of ``max S - min S + 1`` over all planted sets S at all lengths; None if there is no maximum."""

    @property
    def min_length(self) -> int:
        """Smallest length that can contain a set."""

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the exact distribution; raise ``SettingError`` if no set fits or if there are too many sets."""

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Sample sets as increasing token indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPlacement:
    """Random shape whose first token has a uniform random index.

    The probability of a shape is its weight, normalized over the shapes that fit into the sequence. This placement is
    regular with constant 1 (``docs/theory.md``). ``widest`` is the maximum span, or None for no maximum.
    """

    shapes: tuple[tuple[int, ...], ...] = ((0, 1), (0, 2))
    weights: tuple[float, ...] = (0.5, 0.5)
    widest: int | None = None

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "shapes with weights, at a uniform place"

    def __post_init__(self) -> None:
        check_types(self)
        check_shapes(self.shapes, self.widest)
        if len(self.weights) != len(self.shapes):
            raise SettingError(f"{len(self.shapes)} shapes have {len(self.weights)} weights; use one weight per shape")
        check_distribution(self.weights, [f"shape {shape}" for shape in self.shapes], "the weights of the shapes")

    @property
    def k(self) -> int:
        """Number of tokens of each shape."""
        return len(self.shapes[0])

    @property
    def max_span(self) -> int:
        """Span of the widest shape with a positive weight."""
        return 1 + max(shape[-1] for shape, weight in zip(self.shapes, self.weights, strict=True) if weight > 0)

    @property
    def min_length(self) -> int:
        """Span of the narrowest shape with a positive weight."""
        return 1 + min(shape[-1] for shape, weight in zip(self.shapes, self.weights, strict=True) if weight > 0)

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the distribution; the weights are normalized over the shapes that fit."""
        shapes, weights = np.array(self.shapes), self._weights(length)
        num_starts = np.maximum(length - shapes[:, -1], 0)
        is_start = np.arange(length) < num_starts[:, None]
        probability = np.where(is_start, (weights / np.maximum(num_starts, 1))[:, None], 0.0)
        return OffsetDistribution(shapes=shapes, probability=probability)

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Sample a shape, then the index of its first token."""
        shapes = np.array(self.shapes)[rng.choice(len(self.shapes), size=size, p=self._weights(length))]
        return rng.integers(0, length - shapes[:, -1])[:, None] + shapes

    def _weights(self, length: int) -> Float[np.ndarray, " shapes"]:
        check_length(self, length)
        weights = np.where(np.array(self.shapes)[:, -1] < length, np.array(self.weights), 0.0)
        return np.asarray(weights / weights.sum())


class LocalPlacementAtLength(ABC):
    """Base class of placements that equal a ``LocalPlacement``, ``local(length)``, at each length."""

    __slots__ = ()

    @abstractmethod
    def local(self, length: int) -> LocalPlacement:
        """Return the placement at this length."""

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the distribution at this length."""
        return self.local(length).offset_distribution(length)

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Sample a shape, then the index of its first token."""
        return self.local(length).sample(length, size, rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlantedTokens:
    """Base class of placements with ``num_planted`` tokens, which fit into any length from ``num_planted`` on."""

    num_planted: int = 2

    def __post_init__(self) -> None:
        check_types(self)
        check_at_least(self, 1, "num_planted")

    @property
    def k(self) -> int:
        """Number of planted tokens per sequence."""
        return self.num_planted

    @property
    def min_length(self) -> int:
        """Smallest length that can contain a set, which equals the number of planted tokens."""
        return self.num_planted


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformShapePlacement(_PlantedTokens, LocalPlacementAtLength):
    """Random shape of ``num_planted`` tokens with a span of at most ``widest``; shape and first token are uniform."""

    widest: int = 3

    name: ClassVar[str] = "uniform_shape"
    summary: ClassVar[str] = "all shapes within a span with equal weight, at a uniform place"

    def __post_init__(self) -> None:
        _PlantedTokens.__post_init__(self)
        if self.widest < self.num_planted:
            raise SettingError(f"widest {self.widest} is too small for {self.k} tokens; use at least {self.k}")
        check_number_of_placements(comb(self.widest - 1, self.num_planted - 1), f"span {self.widest}")

    @property
    def max_span(self) -> int:
        """Largest span of a shape: ``widest``, or 1 if only one token is planted."""
        return self.widest if self.num_planted > 1 else 1

    def local(self, length: int) -> LocalPlacement:
        """Return the placement with all shapes within the span, which is the same at all lengths."""
        shapes = tuple((0, *distances) for distances in combinations(range(1, self.max_span), self.num_planted - 1))
        return LocalPlacement(shapes=shapes, weights=(1 / len(shapes),) * len(shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsetPlacement(_PlantedTokens):
    """Uniform distribution over all sets of k tokens, without locality (sparse parity)."""

    name: ClassVar[str] = "subsets"
    summary: ClassVar[str] = "all sets of k tokens with equal probability, at any distance"

    @property
    def max_span(self) -> int | None:
        """1 if only one token is planted; otherwise None, because the span has no upper bound."""
        return 1 if self.num_planted == 1 else None

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the uniform distribution; raise ``SettingError`` if there are too many sets to enumerate."""
        check_length(self, length)
        check_number_of_placements(comb(length - 1, self.k - 1), f"length {length}")
        shapes = np.array([(0, *distances) for distances in combinations(range(1, length), self.k - 1)])
        is_start = np.arange(length) < (length - shapes[:, -1])[:, None]
        return OffsetDistribution(shapes=shapes, probability=np.where(is_start, 1 / comb(length, self.k), 0.0))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Sample each set as the indexes of the k smallest of ``length`` uniform random numbers."""
        check_length(self, length)
        return np.sort(np.argpartition(rng.random((size, length)), self.k - 1, axis=1)[:, : self.k], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDependentPlacement(LocalPlacementAtLength):
    """Placement that depends on the length: ``laws[i]`` applies up to ``until[i]``; longer lengths use the last law."""

    until: tuple[int, ...] = (16,)
    laws: tuple[LocalPlacement, ...] = (
        LocalPlacement(shapes=((0, 1),), weights=(1.0,)),
        LocalPlacement(shapes=((0, 2),), weights=(1.0,)),
    )

    name: ClassVar[str] = "by_length"
    summary: ClassVar[str] = "shapes and weights that depend on the length"

    def __post_init__(self) -> None:
        check_types(self)
        if list(self.until) != sorted(set(self.until)):
            raise SettingError(f"the lengths in until {self.until} do not increase; use increasing lengths")
        if len(self.laws) != len(self.until) + 1:
            raise SettingError(
                f"until has {len(self.until)} lengths but laws has {len(self.laws)}; use {len(self.until) + 1} laws"
            )
        if len({law.k for law in self.laws}) > 1:
            raise SettingError(
                f"the laws have different numbers of planted tokens {sorted({law.k for law in self.laws})}; "
                "use the same number in all laws"
            )
        first_law, *later_laws = self.laws
        if self.until and first_law.min_length > self.until[0]:
            raise SettingError(
                f"the first law needs at least length {first_law.min_length} but applies up to length {self.until[0]}; "
                f"set until[0] to at least {first_law.min_length}"
            )
        for index, (last_length, law) in enumerate(zip(self.until, later_laws, strict=True)):
            if law.min_length > last_length + 1:
                raise SettingError(
                    f"laws[{index + 1}] applies from length {last_length + 1} on but needs at least length "
                    f"{law.min_length}; use a narrower shape, or set until[{index}] to at least {law.min_length - 1}"
                )

    @property
    def k(self) -> int:
        """Number of planted tokens at every length."""
        return self.laws[0].k

    @property
    def max_span(self) -> int:
        """Largest span over all lengths."""
        return max(law.max_span for law in self.laws)

    @property
    def min_length(self) -> int:
        """Smallest length that the first law supports."""
        return self.laws[0].min_length

    def local(self, length: int) -> LocalPlacement:
        """Return the law that applies to this length."""
        return self.laws[bisect_left(self.until, length)]


PLACEMENTS: dict[str, type[Placement]] = {
    kind.name: kind for kind in (LocalPlacement, UniformShapePlacement, SubsetPlacement, LengthDependentPlacement)
}


def check_length(placement: Placement, length: int) -> None:
    """Raise ``SettingError`` if a length is too short for every set."""
    if length < placement.min_length:
        raise SettingError(
            f"length {length} is too short for {placement.k} planted tokens; use at least {placement.min_length}"
        )
