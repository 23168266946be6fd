"""Building blocks of counterexamples: a planted law, a learned head, and a better head of the same class."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.tasks.planted.placement import Placement
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Loss, Predictor, TotalVariation, enumerated_risk

# Tokens of most counterexamples: a filler, the two bits of planted pairs, and a distractor.
FILLER, BITS, DISTRACTOR = 0, (1, 2), 3
BIT_PAIRS = tuple(product(BITS, BITS))
UNDECIDED_OUTPUT = (0.5, 0.5)

# A function from the gap, the first token and the second token of a pair to its score.
PairScore = Callable[[int, int, int], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthRisks:
    """Exact risks of the learned head and of the witness at one length; ``in_training`` marks training lengths."""

    length: int
    in_training: bool
    learned: float
    witness: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """The planted law at one length, the learned head, and the witness: a head with a small risk at all lengths."""

    law: Planted
    learned_head: Predictor
    witness_head: Predictor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counterexample:
    """Failure that is possible without one assumption; ``build_case`` maps a length to the law and both heads.

    The learned head is about as good as the witness at ``train_lengths`` and fails at ``test_lengths``.
    """

    name: str
    assumption: str
    train_lengths: tuple[int, ...]
    test_lengths: tuple[int, ...]
    build_case: Callable[[int], Case]
    loss: Loss = field(default_factory=TotalVariation)
    paper: str = "Golowich et al. 2025 (arXiv 2502.16792), appendix C.2, reconstructed"

    @property
    def summary(self) -> str:
        """Assumption that does not hold, in words."""
        return f"violated assumption: {self.assumption}"

    def run(self, lengths: Iterable[int] | None = None) -> list[LengthRisks]:
        """Return the exact risks in increasing order of length; the default is all training and test lengths.

        Raises ``SettingError`` for a length that has no sequences, or too many to enumerate.
        """
        lengths = (*self.train_lengths, *self.test_lengths) if lengths is None else lengths
        return [self._risks(length) for length in sorted(set(lengths))]

    def _risks(self, length: int) -> LengthRisks:
        case = self.build_case(length)
        heads = (case.learned_head, case.witness_head)
        learned, witness = (enumerated_risk(case.law, head, length, self.loss).mean for head in heads)
        in_training = length in self.train_lengths
        return LengthRisks(length=length, in_training=in_training, learned=learned, witness=witness)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPredictor:
    """A predictor that reads only the first ``num_tokens`` tokens, so it is not relative."""

    predictor: Predictor
    num_tokens: int

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """Return the outputs of ``predictor`` for the first ``num_tokens`` tokens of each sequence."""
        return self.predictor.predict(tokens[:, : self.num_tokens])


@dataclass(frozen=True, slots=True)
class ParityPredictor:
    """Predictor of the parity of all tokens: an attention with one set that contains them all, so k is the length."""

    def predict(self, tokens: Int[np.ndarray, "batch length"]) -> Float[np.ndarray, "batch outputs"]:
        """Return outputs with probability 1 for the parity of each sequence."""
        return np.asarray(np.eye(2)[tokens.sum(axis=1) % 2])


def attention_from_scores(
    shapes: Iterable[tuple[int, ...]],
    scores: Float[np.ndarray, "shapes codes"],
    values: Float[np.ndarray, "codes outputs"],
    num_tokens: int,
) -> TabularAttention:
    """Build an attention from scores (not log scores) and from values that do not depend on the shape."""
    is_positive: Bool[np.ndarray, "shapes codes"] = scores > 0
    return TabularAttention(
        num_tokens=num_tokens,
        shapes=np.array(list(shapes)),
        log_scores=np.where(is_positive, np.log(np.where(is_positive, scores, 1.0)), -np.inf),
        values=np.broadcast_to(values, (*scores.shape, values.shape[-1])),
        default=np.array(UNDECIDED_OUTPUT),
    )


def pair_attention(score: PairScore, gaps: Iterable[int], num_tokens: int = 3) -> TabularAttention:
    """Build an attention over pairs of tokens at the distances ``gaps``.

    The value of a pair of bits is its first bit; all other pairs have the value (0.5, 0.5).
    """
    gap_list, pairs = list(gaps), list(product(range(num_tokens), repeat=2))
    scores = np.array([[score(gap, *pair) for pair in pairs] for gap in gap_list], dtype=float)
    values = np.array([np.eye(2)[pair[0] - 1] if pair in BIT_PAIRS else UNDECIDED_OUTPUT for pair in pairs])
    return attention_from_scores([(0, gap) for gap in gap_list], scores, values, num_tokens)


def score_bit_pairs(gaps: Iterable[int]) -> PairScore:
    """Return a score function: 1 for pairs of bits at the distances ``gaps``, and 0 for all other pairs."""
    gap_set = set(gaps)
    return lambda gap, first, second: float((first, second) in BIT_PAIRS and gap in gap_set)


def single_attention(scores: tuple[float, float], values: tuple[tuple[float, float], ...]) -> TabularAttention:
    """Build an attention over single tokens, with one score and value for the filler and one for the planted token."""
    return attention_from_scores([(0,)], np.array([scores]), np.array(values), num_tokens=2)


def pair_law(placement: Placement, background: tuple[float, ...] = (1.0, 0.0, 0.0)) -> Planted:
    """Build the law of a planted pair of bits among fillers; the label is the first bit."""
    return Planted(
        background=background,
        tuples=BIT_PAIRS,
        probabilities=(0.25,) * 4,
        labels=tuple((1.0, 0.0) if first_bit == BITS[0] else (0.0, 1.0) for first_bit, _ in BIT_PAIRS),
        placement=placement,
    )
