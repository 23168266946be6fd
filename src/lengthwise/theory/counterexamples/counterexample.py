"""A counterexample: a law, what was learned of its short sequences, and a better head of the same class."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.tasks.planted.placement import Placement
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Loss, Predictor, TotalVariation, enumerated_risk

# Tokens of most counterexamples: a filler, the two bits that are planted as pairs, and something that distracts.
FILLER, BITS, DISTRACTOR = 0, (1, 2), 3
MARKED = tuple(product(BITS, BITS))
UNDECIDED = (0.5, 0.5)

# What a pair of tokens scores, by their gap, the first and the second.
Score = Callable[[int, int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Exact risks at one length: of what was learned, and of a witness, another member of the class."""

    length: int
    trained: bool
    learned: float
    witness: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One length: the law of its sequences, what was learned, and the witness that does well at all lengths."""

    law: Planted
    learned: Predictor
    witness: Predictor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counterexample:
    """One assumption left out.

    ``trained`` are the lengths that were trained on, ``tested`` the others that are worth a look. On the trained ones
    what was learned does as well as the witness, or as nearly as the moral says.
    """

    name: str
    assumption: str
    moral: str
    trained: tuple[int, ...]
    tested: tuple[int, ...]
    case: Callable[[int], Case]
    loss: Loss = field(default_factory=TotalVariation)

    def run(self, lengths: Iterable[int] | None = None) -> list[Row]:
        """The exact risks at these lengths, the shortest first; by default at all that were trained or tested.

        ``SettingError`` at a length that has no sequence, or too many to enumerate.
        """
        asked = (*self.trained, *self.tested) if lengths is None else lengths
        return [self._row(length) for length in sorted(set(asked))]

    def _row(self, length: int) -> Row:
        case = self.case(length)
        heads = (case.learned, case.witness)
        learned, witness = (enumerated_risk(case.law, head, length, self.loss).mean for head in heads)
        return Row(length=length, trained=length in self.trained, learned=learned, witness=witness)


def columns(rows: Iterable[Row]) -> dict[str, np.ndarray]:
    """The rows as one array for each of their fields: what a plot takes."""
    listed = list(rows)
    return {name: np.array([getattr(row, name) for row in listed]) for name in Row.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """A predictor that reads the first ``number`` tokens alone: it knows token indexes, so it is not relative."""

    predictor: Predictor
    number: int

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """What the predictor says of them."""
        return self.predictor.predict(tokens[:, : self.number])


@dataclass(frozen=True, slots=True)
class WholeParity:
    """The attention whose one set is all tokens, and whose value is their parity: k is the length."""

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """All probability on the parity."""
        return np.asarray(np.eye(2)[tokens.sum(axis=1) % 2])


def attention_of(
    shapes: Iterable[tuple[int, ...]],
    scores: Float[np.ndarray, "shapes codes"],
    values: Float[np.ndarray, "codes outputs"],
    num_tokens: int,
) -> TabularAttention:
    """Scores as they are, not their logarithms, and values that do not depend on the shape."""
    positive: Bool[np.ndarray, "shapes codes"] = scores > 0
    return TabularAttention(
        num_tokens=num_tokens,
        shapes=np.array(list(shapes)),
        log_scores=np.where(positive, np.log(np.where(positive, scores, 1.0)), -np.inf),
        values=np.broadcast_to(values, (*scores.shape, values.shape[-1])),
        default=np.array(UNDECIDED),
    )


def pair_attention(score: Score, gaps: Iterable[int], num_tokens: int = 3) -> TabularAttention:
    """A marked pair says its first bit, any other pair that has a score says one half each."""
    listed, pairs = list(gaps), list(product(range(num_tokens), repeat=2))
    scores = np.array([[score(gap, *pair) for pair in pairs] for gap in listed], dtype=float)
    says = np.array([np.eye(2)[pair[0] - 1] if pair in MARKED else UNDECIDED for pair in pairs])
    return attention_of([(0, gap) for gap in listed], scores, says, num_tokens)


def marked(gaps: Iterable[int]) -> Score:
    """Score 1 for pairs of bits at these gaps, 0 for all else."""
    listed = set(gaps)
    return lambda gap, first, second: float((first, second) in MARKED and gap in listed)


def single_attention(scores: tuple[float, float], values: tuple[tuple[float, float], ...]) -> TabularAttention:
    """Of one filler and one planted token, each by itself."""
    return attention_of([(0,)], np.array([scores]), np.array(values), num_tokens=2)


def pair_law(placement: Placement, background: tuple[float, ...] = (1.0, 0.0, 0.0)) -> Planted:
    """Pairs of bits among fillers; the label is the first of them."""
    return Planted(
        background=background,
        tuples=MARKED,
        probabilities=(0.25,) * 4,
        labels=tuple((1.0, 0.0) if first == BITS[0] else (0.0, 1.0) for first, _ in MARKED),
        placement=placement,
    )
