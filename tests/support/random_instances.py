"""Random planted laws with finite classes of heads, and the best head of each class on short sequences."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError, unknown_name_error
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.planted.placement import LocalPlacement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Loss, enumerated_risk

NUM_LABELS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of an instance: tokens, k, span, longest training length and test length."""

    num_tokens: int
    k: int
    span: int
    train_length: int
    test_length: int

    def __post_init__(self) -> None:
        if self.span < self.k or self.num_tokens < 2 or (self.k == 1 and self.span > 1):
            raise SettingError(
                f"invalid k {self.k}, num_tokens {self.num_tokens} or span {self.span}; use 2 or more tokens and a "
                "span of at least k, or a span of 1 for k = 1"
            )
        if not self.span <= (self.train_length + 1) // 2 or self.test_length < self.train_length:
            raise SettingError(
                f"invalid lengths {self.train_length} and {self.test_length} for span {self.span}; use a training "
                f"length of at least {2 * self.span - 1} and a test length of at least the training length"
            )

    @property
    def train_lengths(self) -> range:
        """Training lengths from L/2 to L."""
        return range((self.train_length + 1) // 2, self.train_length + 1)

    @property
    def shapes(self) -> Int[np.ndarray, "shapes k"]:
        """All shapes within the span, with the offset of each token from the first."""
        return np.array([(0, *rest) for rest in combinations(range(1, self.span), self.k - 1)])


@runtime_checkable
class Regime(Protocol):
    """Distribution of planted laws and heads."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def law(self, sizes: Sizes, rng: np.random.Generator) -> PlantedCorrelations:
        """Sample a planted law."""
        ...

    def log_scores(
        self, law: PlantedCorrelations, sizes: Sizes, rng: np.random.Generator
    ) -> Float[np.ndarray, "shapes codes"]:
        """Sample the log scores of one head."""
        ...


@dataclass(frozen=True, slots=True)
class UnambiguousRegime:
    """Regime with small risks: planted tuples start with a token outside the background, and their scores are high."""

    name: ClassVar[str] = "clean"
    summary: ClassVar[str] = "planted tuples start with a token that the background never produces; small risks"

    def law(self, sizes: Sizes, rng: np.random.Generator) -> PlantedCorrelations:
        """Sample a law whose planted tuples start with the last token and determine the label."""
        marker = sizes.num_tokens - 1
        tuples = [(marker, *rest) for rest in product(range(marker), repeat=sizes.k - 1)]
        labels = np.eye(NUM_LABELS)
        background = (*rng.dirichlet(np.full(marker, 2.0)), 0.0)
        return _random_law(sizes, background, tuples, labels, rng)

    def log_scores(
        self, law: PlantedCorrelations, sizes: Sizes, rng: np.random.Generator
    ) -> Float[np.ndarray, "shapes codes"]:
        """Sample log scores near 0 for planted tuples and far below 0 for other tuples."""
        shape = (len(sizes.shapes), sizes.num_tokens**sizes.k)
        low = -rng.uniform(3.0, 10.0) + rng.normal(size=shape)
        return np.where(law.tuple_code_probabilities > 0, rng.uniform(-0.5, 0.5, size=shape), low)


@dataclass(frozen=True, slots=True)
class AmbiguousRegime:
    """Regime with large risks: the background may contain planted tuples, and all scores are similar."""

    name: ClassVar[str] = "mixed"
    summary: ClassVar[str] = "an ambiguous background; large risks"

    def law(self, sizes: Sizes, rng: np.random.Generator) -> PlantedCorrelations:
        """Sample a law with arbitrary tuples."""
        tuples = list(product(range(sizes.num_tokens), repeat=sizes.k))
        deterministic = rng.random() < 0.5
        labels = np.eye(NUM_LABELS) if deterministic else rng.dirichlet(np.ones(NUM_LABELS), size=NUM_LABELS)
        background = tuple(rng.dirichlet(np.full(sizes.num_tokens, 2.0)))
        return _random_law(sizes, background, tuples, labels, rng)

    def log_scores(
        self, law: PlantedCorrelations, sizes: Sizes, rng: np.random.Generator
    ) -> Float[np.ndarray, "shapes codes"]:
        """Sample normal log scores, higher for planted tuples."""
        shape = (len(sizes.shapes), sizes.num_tokens**sizes.k)
        return rng.normal(size=shape) + np.where(law.tuple_code_probabilities > 0, rng.uniform(0.0, 5.0), 0.0)


REGIMES: dict[str, type[Regime]] = {regime.name: regime for regime in (UnambiguousRegime, AmbiguousRegime)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """Planted law with a finite class of heads."""

    sizes: Sizes
    law: PlantedCorrelations
    heads: tuple[TabularAttention, ...]

    def best_head(self, loss: Loss) -> TabularAttention:
        """Return the first head with the smallest mean of exact risks over the training lengths."""
        averages = [self._average(head, loss) for head in self.heads]
        return self.heads[int(np.argmin(averages))]

    def _average(self, head: TabularAttention, loss: Loss) -> float:
        lengths = self.sizes.train_lengths
        return float(np.mean([enumerated_risk(self.law, head, length, loss).mean for length in lengths]))


def random_instance(regime: str, sizes: Sizes, seed: int, num_heads: int = 12) -> Instance:
    """Sample an instance from a seed; an unknown regime raises an ``UnknownNameError``."""
    if regime not in REGIMES:
        raise unknown_name_error("regime", regime, REGIMES)
    distribution = REGIMES[regime]()
    # This text selects the random stream; the results of benchmarks/theory_bounds.py depend on it.
    purpose = (
        f"Sizes(num_tokens={sizes.num_tokens}, k={sizes.k}, span={sizes.span}, trained={sizes.train_length}, "
        f"tested={sizes.test_length})"
    )
    rng = random_stream(seed, "theory instance", regime, purpose)
    law = distribution.law(sizes, rng)
    heads = tuple(_random_head(law, sizes, distribution.log_scores(law, sizes, rng), rng) for _ in range(num_heads))
    return Instance(sizes=sizes, law=law, heads=heads)


def _random_law(
    sizes: Sizes,
    background: tuple[float, ...],
    tuples: Sequence[tuple[int, ...]],
    labels: Float[np.ndarray, "rows labels"],
    rng: np.random.Generator,
) -> PlantedCorrelations:
    """Sample planted tuples with label probabilities, and shapes with random weights."""
    number = int(rng.integers(1, min(3, len(tuples)) + 1))
    indexes = rng.choice(len(tuples), size=number, replace=False)
    rows = labels[rng.integers(len(labels), size=number)]
    shapes = rng.permutation(sizes.shapes)[: int(rng.integers(1, len(sizes.shapes) + 1))]
    return PlantedCorrelations(
        background=background,
        tuples=tuple(tuples[index] for index in indexes),
        probabilities=tuple(rng.dirichlet(np.full(number, 2.0))),
        labels=tuple(map(tuple, rows.tolist())),
        placement=LocalPlacement(
            shapes=tuple(map(tuple, shapes.tolist())), weights=tuple(rng.dirichlet(np.ones(len(shapes))))
        ),
    )


def _random_head(
    law: PlantedCorrelations, sizes: Sizes, log_scores: Float[np.ndarray, "shapes codes"], rng: np.random.Generator
) -> TabularAttention:
    """Sample a head with almost correct values for planted tuples and arbitrary values for other tuples."""
    arbitrary = rng.dirichlet(np.full(NUM_LABELS, 0.5), size=log_scores.shape)
    uncertainty = rng.choice([0.0, 0.0, 0.05, 0.3])
    correct = (1 - uncertainty) * law.label_probabilities + uncertainty / NUM_LABELS
    return TabularAttention(
        num_tokens=sizes.num_tokens,
        shapes=sizes.shapes,
        log_scores=log_scores,
        values=np.where((law.tuple_code_probabilities > 0)[:, None], correct, arbitrary),
        default=np.full(NUM_LABELS, 1 / NUM_LABELS),
    )
