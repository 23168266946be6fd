"""Random planted laws with finite classes of heads, and the member of a class that fits short sequences best."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError, unknown_name
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.placement import Local
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Loss, enumerated_risk

NUM_LABELS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large an instance is; ``trained`` is the longest of the lengths L/2 .. L that are fitted."""

    num_tokens: int
    k: int
    span: int
    trained: int
    tested: int

    def __post_init__(self) -> None:
        if self.span < self.k or self.num_tokens < 2 or (self.k == 1 and self.span > 1):
            raise SettingError(
                f"{self.k} of {self.num_tokens} tokens in a span of {self.span} make no instance; use 2 or more tokens "
                "and a span of at least k, or of 1 for single tokens"
            )
        if not self.span <= (self.trained + 1) // 2 or self.tested < self.trained:
            raise SettingError(
                f"lengths {self.trained} and {self.tested} with span {self.span}: train at {2 * self.span} or longer, "
                "and test no shorter"
            )

    @property
    def lengths(self) -> range:
        """The lengths that are fitted."""
        return range((self.trained + 1) // 2, self.trained + 1)

    @property
    def shapes(self) -> Int[np.ndarray, "shapes k"]:
        """Every shape within the span."""
        return np.array([(0, *rest) for rest in combinations(range(1, self.span), self.k - 1)])


@runtime_checkable
class Regime(Protocol):
    """How laws and heads are drawn."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def law(self, sizes: Sizes, rng: np.random.Generator) -> Planted:
        """A planted law."""
        ...

    def log_scores(self, law: Planted, sizes: Sizes, rng: np.random.Generator) -> Float[np.ndarray, "shapes codes"]:
        """The scores of one head."""
        ...


@dataclass(frozen=True, slots=True)
class Clean:
    """A planted tuple starts with a token that is nowhere else, and heads score what is not planted low."""

    name: ClassVar[str] = "clean"
    summary: ClassVar[str] = "planted tuples start with a token of their own; small risks"

    def law(self, sizes: Sizes, rng: np.random.Generator) -> Planted:
        """The last token marks what is planted; labels are certain."""
        marker = sizes.num_tokens - 1
        tuples = [(marker, *rest) for rest in product(range(marker), repeat=sizes.k - 1)]
        labels = np.eye(NUM_LABELS)
        background = (*rng.dirichlet(np.full(marker, 2.0)), 0.0)
        return _planted(sizes, background, tuples, labels, rng)

    def log_scores(self, law: Planted, sizes: Sizes, rng: np.random.Generator) -> Float[np.ndarray, "shapes codes"]:
        """Planted tuples about 0, the others far below."""
        shape = (len(sizes.shapes), sizes.num_tokens**sizes.k)
        low = -rng.uniform(3.0, 10.0) + rng.normal(size=shape)
        return np.where(law.tuple_law > 0, rng.uniform(-0.5, 0.5, size=shape), low)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Planted tuples also arise by chance, labels may be random, and heads tell the two apart badly."""

    name: ClassVar[str] = "mixed"
    summary: ClassVar[str] = "an ambiguous background; large risks"

    def law(self, sizes: Sizes, rng: np.random.Generator) -> Planted:
        """Any tuples."""
        tuples = list(product(range(sizes.num_tokens), repeat=sizes.k))
        certain = rng.random() < 0.5
        labels = np.eye(NUM_LABELS) if certain else rng.dirichlet(np.ones(NUM_LABELS), size=NUM_LABELS)
        background = tuple(rng.dirichlet(np.full(sizes.num_tokens, 2.0)))
        return _planted(sizes, background, tuples, labels, rng)

    def log_scores(self, law: Planted, sizes: Sizes, rng: np.random.Generator) -> Float[np.ndarray, "shapes codes"]:
        """Scattered, planted tuples somewhat higher."""
        shape = (len(sizes.shapes), sizes.num_tokens**sizes.k)
        return rng.normal(size=shape) + np.where(law.tuple_law > 0, rng.uniform(0.0, 5.0), 0.0)


REGIMES: dict[str, type[Regime]] = {regime.name: regime for regime in (Clean, Mixed)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A law and the heads that a learner may choose from."""

    sizes: Sizes
    law: Planted
    heads: tuple[TabularAttention, ...]

    def fitted(self, loss: Loss) -> TabularAttention:
        """The head whose exact risk, averaged over the fitted lengths, is smallest; the first of several."""
        averages = [self._average(head, loss) for head in self.heads]
        return self.heads[int(np.argmin(averages))]

    def _average(self, head: TabularAttention, loss: Loss) -> float:
        return float(np.mean([enumerated_risk(self.law, head, length, loss).mean for length in self.sizes.lengths]))


def random_instance(regime: str, sizes: Sizes, seed: int, num_heads: int = 12) -> Instance:
    """The same instance for the same arguments; ``UnknownNameError`` for a regime that is in no table."""
    if regime not in REGIMES:
        raise unknown_name("regime", regime, REGIMES)
    drawn_by = REGIMES[regime]()
    rng = stream(seed, "theory instance", regime, repr(sizes))
    law = drawn_by.law(sizes, rng)
    heads = tuple(_head(law, sizes, drawn_by.log_scores(law, sizes, rng), rng) for _ in range(num_heads))
    return Instance(sizes=sizes, law=law, heads=heads)


def _planted(
    sizes: Sizes,
    background: tuple[float, ...],
    tuples: Sequence[tuple[int, ...]],
    labels: Float[np.ndarray, "rows labels"],
    rng: np.random.Generator,
) -> Planted:
    """Some of the tuples, with rows of labels, at shapes of random weights."""
    number = int(rng.integers(1, min(3, len(tuples)) + 1))
    chosen = rng.choice(len(tuples), size=number, replace=False)
    rows = labels[rng.integers(len(labels), size=number)]
    shapes = rng.permutation(sizes.shapes)[: int(rng.integers(1, len(sizes.shapes) + 1))]
    return Planted(
        background=background,
        tuples=tuple(tuples[index] for index in chosen),
        probabilities=tuple(rng.dirichlet(np.full(number, 2.0))),
        labels=tuple(map(tuple, rows.tolist())),
        placement=Local(shapes=tuple(map(tuple, shapes.tolist())), weights=tuple(rng.dirichlet(np.ones(len(shapes))))),
    )


def _head(
    law: Planted, sizes: Sizes, log_scores: Float[np.ndarray, "shapes codes"], rng: np.random.Generator
) -> TabularAttention:
    """Says about the right thing of planted tuples, and anything of others."""
    anything = rng.dirichlet(np.full(NUM_LABELS, 0.5), size=log_scores.shape)
    doubt = rng.choice([0.0, 0.0, 0.05, 0.3])
    right = (1 - doubt) * law.label_law + doubt / NUM_LABELS
    return TabularAttention(
        num_tokens=sizes.num_tokens,
        shapes=sizes.shapes,
        log_scores=log_scores,
        values=np.where((law.tuple_law > 0)[:, None], right, anything),
        default=np.full(NUM_LABELS, 1 / NUM_LABELS),
    )
