"""Where the planted tokens of a sequence stand: laws over sets of k token indexes, one law per length."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.tasks.planted.distribution import check_distribution, check_listed, check_num_planted, check_shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeLaw:
    """A law over sets ``c + shape`` at one length: ``probability[o, c]`` of shape ``o`` with its first token at ``c``.

    A shape holds the distances from the first token, 0 first; where a shape does not fit, its probability is 0.
    """

    shapes: Int[np.ndarray, "shapes k"]
    probability: Float[np.ndarray, "shapes length"]

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.probability.shape[1]

    def sets(self) -> tuple[Int[np.ndarray, "sets k"], Float[np.ndarray, " sets"]]:
        """All sets of positive probability, token indexes from 0, and their probabilities."""
        shape, start = self.probability.nonzero()
        return start[:, None] + self.shapes[shape], self.probability[shape, start]


@runtime_checkable
class Placement(Protocol):
    """Which tokens are planted.

    ``span``: no set reaches over more tokens than this at any length, the first and the last counted (``max S - min S +
    1``); None where there is no such bound. Lengths below ``smallest`` have no set.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    @property
    def k(self) -> int:
        """How many tokens are planted."""
        ...

    @property
    def span(self) -> int | None:
        """The largest number of tokens that a set reaches over."""
        ...

    @property
    def min_length(self) -> int:
        """The smallest length that has a set."""
        ...

    def law(self, length: int) -> ShapeLaw:
        """The exact law; ``SettingError`` where no set fits, or where there are too many to list."""
        ...

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Draw sets, token indexes in increasing order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Local:
    """A shape drawn by its weight among those that fit, then its place, uniform among those where it fits.

    Uniform location given the shape: in the words of ``docs/theory.md``, regular with constant 1. ``widest``, where
    given, is the span that is promised; a shape beyond it is refused.
    """

    shapes: tuple[tuple[int, ...], ...] = ((0, 1), (0, 2))
    weights: tuple[float, ...] = (0.5, 0.5)
    widest: int | None = None

    name: ClassVar[str] = "local"
    summary: ClassVar[str] = "given shapes with given weights, at a uniform place"

    def __post_init__(self) -> None:
        check_types(self)
        check_shapes(self.shapes, self.widest)
        if len(self.weights) != len(self.shapes):
            raise SettingError(f"{len(self.shapes)} shapes have {len(self.weights)} weights; give one weight for each")
        check_distribution(self.weights, [f"shape {shape}" for shape in self.shapes], "the weights of the shapes")

    @property
    def k(self) -> int:
        """The number of tokens of every shape."""
        return len(self.shapes[0])

    @property
    def span(self) -> int:
        """That of the widest shape that has any weight."""
        return 1 + max(shape[-1] for shape, weight in zip(self.shapes, self.weights, strict=True) if weight > 0)

    @property
    def min_length(self) -> int:
        """The span of the narrowest shape that has any weight."""
        return 1 + min(shape[-1] for shape, weight in zip(self.shapes, self.weights, strict=True) if weight > 0)

    def law(self, length: int) -> ShapeLaw:
        """Weights of shapes that do not fit go to the others in proportion."""
        shapes, weights = np.array(self.shapes), self._weights(length)
        places = np.maximum(length - shapes[:, -1], 0)
        fits = np.arange(length) < places[:, None]
        return ShapeLaw(shapes=shapes, probability=np.where(fits, (weights / np.maximum(places, 1))[:, None], 0.0))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Shape, then start."""
        shapes = np.array(self.shapes)[rng.choice(len(self.shapes), size=size, p=self._weights(length))]
        return rng.integers(0, length - shapes[:, -1])[:, None] + shapes

    def _weights(self, length: int) -> Float[np.ndarray, " shapes"]:
        check_fits(self, length)
        weights = np.where(np.array(self.shapes)[:, -1] < length, np.array(self.weights), 0.0)
        return np.asarray(weights / weights.sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformShapes:
    """Every shape of k tokens within a span is as likely as any other that fits, at a uniform place."""

    num_planted: int = 2
    widest: int = 3

    name: ClassVar[str] = "uniform_shape"
    summary: ClassVar[str] = "all shapes within a span alike, at a uniform place"

    def __post_init__(self) -> None:
        check_types(self)
        check_num_planted(self.num_planted)
        if self.widest < self.num_planted:
            raise SettingError(f"{self.num_planted} tokens do not fit a span of {self.widest}; use a larger one")
        check_listed(comb(self.widest - 1, self.num_planted - 1), f"span {self.widest}")

    @property
    def k(self) -> int:
        """The number of tokens of every shape."""
        return self.num_planted

    @property
    def span(self) -> int:
        """As given; with one token, 1."""
        return self.widest if self.num_planted > 1 else 1

    @property
    def min_length(self) -> int:
        """Room for k tokens side by side."""
        return self.num_planted

    def law(self, length: int) -> ShapeLaw:
        """That of the shapes within the span."""
        return self._all().law(length)

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """As ``Local`` does."""
        return self._all().sample(length, size, rng)

    def _all(self) -> Local:
        shapes = tuple((0, *rest) for rest in combinations(range(1, self.span), self.num_planted - 1))
        return Local(shapes=shapes, weights=(1 / len(shapes),) * len(shapes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Subsets:
    """Every set of k tokens is as likely as any other: no locality (sparse parity)."""

    num_planted: int = 2

    name: ClassVar[str] = "subsets"
    summary: ClassVar[str] = "all sets of k tokens alike, however far apart"

    def __post_init__(self) -> None:
        check_types(self)
        check_num_planted(self.num_planted)

    @property
    def k(self) -> int:
        """The size of a set."""
        return self.num_planted

    @property
    def span(self) -> int | None:
        """None, but for single tokens."""
        return 1 if self.num_planted == 1 else None

    @property
    def min_length(self) -> int:
        """Room for k tokens."""
        return self.num_planted

    def law(self, length: int) -> ShapeLaw:
        """One probability for all; ``SettingError`` where there are too many sets to list."""
        check_fits(self, length)
        check_listed(comb(length - 1, self.k - 1), f"length {length}")
        shapes = np.array([(0, *rest) for rest in combinations(range(1, length), self.k - 1)])
        fits = np.arange(length) < (length - shapes[:, -1])[:, None]
        return ShapeLaw(shapes=shapes, probability=np.where(fits, 1 / comb(length, self.k), 0.0))

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """The places of the k smallest of uniform draws."""
        check_fits(self, length)
        chosen = np.argpartition(rng.random((size, length)), self.k - 1, axis=1)[:, : self.k]
        return np.sort(chosen, axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByLength:
    """A law that changes with the length: ``laws[i]`` up to and with ``until[i]``, the last one beyond."""

    until: tuple[int, ...] = (16,)
    laws: tuple[Local, ...] = (Local(shapes=((0, 1),), weights=(1.0,)), Local(shapes=((0, 2),), weights=(1.0,)))

    name: ClassVar[str] = "by_length"
    summary: ClassVar[str] = "given shapes whose weights change with the length"

    def __post_init__(self) -> None:
        check_types(self)
        if list(self.until) != sorted(set(self.until)):
            raise SettingError(f"lengths {self.until} of a law by length do not increase; write them in order")
        if len(self.laws) != len(self.until) + 1:
            raise SettingError(f"{len(self.until)} lengths part {len(self.until) + 1} laws, not {len(self.laws)}")
        if len({law.k for law in self.laws}) > 1:
            raise SettingError(f"laws of {sorted({law.k for law in self.laws})} tokens cannot follow one another")
        first, *later = self.laws
        if self.until and first.min_length > self.until[0]:
            raise SettingError(
                f"the law up to length {self.until[0]} has no room below {first.min_length}; leave it out or end it later"
            )
        for last, law in zip(self.until, later, strict=True):
            if law.min_length > last + 1:
                raise SettingError(
                    f"the law from length {last + 1} on has no room below {law.min_length}; "
                    f"give it a narrower shape or begin it at {law.min_length}"
                )

    @property
    def k(self) -> int:
        """The same at every length."""
        return self.laws[0].k

    @property
    def span(self) -> int:
        """The widest of all lengths."""
        return max(law.span for law in self.laws)

    @property
    def min_length(self) -> int:
        """That of the law of short lengths."""
        return self.laws[0].smallest

    def law(self, length: int) -> ShapeLaw:
        """The law for this length."""
        return self._at(length).law(length)

    def sample(self, length: int, size: int, rng: np.random.Generator) -> Int[np.ndarray, "size k"]:
        """Draw by the law for this length."""
        return self._at(length).sample(length, size, rng)

    def _at(self, length: int) -> Local:
        return self.laws[bisect_left(self.until, length)]


PLACEMENTS: dict[str, type[Placement]] = {law.name: law for law in (Local, UniformShapes, Subsets, ByLength)}


def check_fits(placement: Placement, length: int) -> None:
    """Refuse a length that has no set."""
    if length < placement.min_length:
        raise SettingError(
            f"length {length} has no room for {placement.k} planted tokens; the shortest that has is "
            f"{placement.min_length}"
        )
