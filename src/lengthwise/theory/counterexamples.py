"""Counterexamples by name: without one assumption, a head fits short sequences and fails on longer sequences.

Each counterexample shows that some heads fail, not that all heads fail. They follow Golowich et al. 2025 (arXiv
2502.16792), appendix C.2, and are reconstructed; 'small leak' and 'heavy cuts' are derived here.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from jaxtyping import Bool, Float, Int

from lengthwise.tasks.planted.placement import LengthDependentPlacement, LocalPlacement, Placement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.position_coupling import HalfLengthPlacement
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.exact_risk import Loss, NormLoss, Predictor, TotalVariationLoss, enumerated_risk

# Tokens of most counterexamples: a filler, the two bits of planted pairs, and a distractor.
FILLER, BITS, DISTRACTOR = 0, (1, 2), 3
BIT_PAIRS = tuple(product(BITS, BITS))
UNDECIDED_OUTPUT = (0.5, 0.5)

# A function from the gap, the first token and the second token of a pair to its score.
PairScore = Callable[[int, int, int], float]
# Source of the examples that the paper does not have.
DERIVED_HERE = "derived here"
ADJACENT_PLACEMENT = LocalPlacement(shapes=((0, 1),), weights=(1.0,))
# One planted token that is always the same, with a constant label.
CONSTANT_LAW = PlantedCorrelations(
    background=(1.0, 0.0),
    tuples=((1,),),
    probabilities=(1.0,),
    labels=((0.0, 1.0),),
    placement=LocalPlacement(shapes=((0,),), weights=(1.0,)),
)
# Training objectives that differ by at most this value are equal; smaller differences are rounding errors.
TIE_TOLERANCE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadRisksAtLength:
    """Exact risks of the learned head and of the witness at one length; ``in_training`` marks training lengths."""

    length: int
    in_training: bool
    learned: float
    witness: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterexampleCase:
    """The planted law at one length, the learned head, and the witness: a head with a small risk at all lengths."""

    law: PlantedCorrelations
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
    build_case: Callable[[int], CounterexampleCase]
    loss: Loss = field(default_factory=TotalVariationLoss)
    paper: str = "Golowich et al. 2025 (arXiv 2502.16792), appendix C.2, reconstructed"

    @property
    def summary(self) -> str:
        """Assumption that does not hold, in words."""
        return f"violated assumption: {self.assumption}"

    def compute_risks(self, lengths: Iterable[int] | None = None) -> list[HeadRisksAtLength]:
        """Return the exact risks in increasing order of length; the default is all training and test lengths.

        Raises ``SettingError`` for a length that has no sequences, or too many to enumerate.
        """
        lengths = (*self.train_lengths, *self.test_lengths) if lengths is None else lengths
        return [self._risks(length) for length in sorted(set(lengths))]

    def _risks(self, length: int) -> HeadRisksAtLength:
        case = self.build_case(length)
        heads = (case.learned_head, case.witness_head)
        learned, witness = (enumerated_risk(case.law, head, length, self.loss).mean for head in heads)
        in_training = length in self.train_lengths
        return HeadRisksAtLength(length=length, in_training=in_training, learned=learned, witness=witness)


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


def build_pair_attention(score: PairScore, gaps: Iterable[int], num_tokens: int = 3) -> TabularAttention:
    """Build an attention over pairs of tokens at the distances ``gaps``.

    The value of a pair of bits is its first bit; all other pairs have the value (0.5, 0.5).
    """
    gap_list, pairs = list(gaps), list(product(range(num_tokens), repeat=2))
    scores = np.array([[score(gap, *pair) for pair in pairs] for gap in gap_list], dtype=float)
    values = np.array([np.eye(2)[pair[0] - 1] if pair in BIT_PAIRS else UNDECIDED_OUTPUT for pair in pairs])
    return attention_from_scores([(0, gap) for gap in gap_list], scores, values, num_tokens)


def make_bit_pair_score(gaps: Iterable[int]) -> PairScore:
    """Return a score function: 1 for pairs of bits at the distances ``gaps``, and 0 for all other pairs."""
    gap_set = set(gaps)
    return lambda gap, first, second: float((first, second) in BIT_PAIRS and gap in gap_set)


def build_single_token_attention(
    scores: tuple[float, float], values: tuple[tuple[float, float], ...]
) -> TabularAttention:
    """Build an attention over single tokens, with one score and value for the filler and one for the planted token."""
    return attention_from_scores([(0,)], np.array([scores]), np.array(values), num_tokens=2)


def build_pair_task(placement: Placement, background: tuple[float, ...] = (1.0, 0.0, 0.0)) -> PlantedCorrelations:
    """Build the law of a planted pair of bits among fillers; the label is the first bit."""
    return PlantedCorrelations(
        background=background,
        tuples=BIT_PAIRS,
        probabilities=(0.25,) * 4,
        labels=tuple((1.0, 0.0) if first_bit == BITS[0] else (0.0, 1.0) for first_bit, _ in BIT_PAIRS),
        placement=placement,
    )


def _growing_k(length: int) -> CounterexampleCase:
    tuples = tuple(product((0, 1), repeat=length))
    law = PlantedCorrelations(
        background=(0.5, 0.5),
        tuples=tuples,
        probabilities=(1 / len(tuples),) * len(tuples),
        labels=tuple((1.0, 0.0) if sum(bits) % 2 == 0 else (0.0, 1.0) for bits in tuples),
        placement=LocalPlacement(shapes=(tuple(range(length)),), weights=(1.0,)),
    )
    # Each k has its own value function, and no training example determines the function for k = 7.
    learned = PrefixPredictor(predictor=ParityPredictor(), num_tokens=6)
    return CounterexampleCase(law=law, learned_head=learned, witness_head=ParityPredictor())


def _growing_gap(length: int) -> CounterexampleCase:
    gaps, witness_score = range(1, max(length, 2)), make_bit_pair_score(range(1, 5))

    def score(gap: int, first: int, second: int) -> float:
        return witness_score(gap, first, second) + (gap >= 8 and first == second == FILLER)

    law, witness = build_pair_task(HalfLengthPlacement()), build_pair_attention(make_bit_pair_score(gaps), gaps)
    return CounterexampleCase(law=law, learned_head=build_pair_attention(score, gaps), witness_head=witness)


def _unbounded_reach(length: int) -> CounterexampleCase:
    gaps, witness_score = range(1, max(length, 2)), make_bit_pair_score([1])

    def score(gap: int, first: int, second: int) -> float:
        return witness_score(gap, first, second) + 1e3 * (gap >= 6 and first == second == FILLER)

    learned, witness = (build_pair_attention(function, gaps) for function in (score, witness_score))
    return CounterexampleCase(law=build_pair_task(ADJACENT_PLACEMENT), learned_head=learned, witness_head=witness)


def _absolute_positions(length: int) -> CounterexampleCase:
    witness = build_pair_attention(make_bit_pair_score([1]), [1])
    learned = PrefixPredictor(predictor=witness, num_tokens=6)
    return CounterexampleCase(law=build_pair_task(ADJACENT_PLACEMENT), learned_head=learned, witness_head=witness)


def _new_background_token(length: int) -> CounterexampleCase:
    witness_score, distractor_probability = make_bit_pair_score([1]), 0.0 if length <= 6 else 0.3

    def score(gap: int, first: int, second: int) -> float:
        return witness_score(gap, first, second) + 1e9 * (DISTRACTOR in (first, second))

    law = build_pair_task(ADJACENT_PLACEMENT, background=(1 - distractor_probability, 0.0, 0.0, distractor_probability))
    learned, witness = (build_pair_attention(function, [1], num_tokens=4) for function in (score, witness_score))
    return CounterexampleCase(law=law, learned_head=learned, witness_head=witness)


def _canceling_errors(length: int) -> CounterexampleCase:
    # The planted value is five times too large, so the mean over five tokens is correct.
    learned = build_single_token_attention((1.0, 1.0), ((1.0, 0.0), (-4.0, 5.0)))
    witness = build_single_token_attention((0.0, 1.0), ((1.0, 0.0), (0.0, 1.0)))
    return CounterexampleCase(law=CONSTANT_LAW, learned_head=learned, witness_head=witness)


def rare_shape_counterexample(rare_probability: float = 0.01) -> Counterexample:
    """Build the counterexample without regularity: distance 2 has ``rare_probability`` in training, and 1 later."""
    train_placement = LocalPlacement(shapes=((0, 1), (0, 2)), weights=(1 - rare_probability, rare_probability))
    law = build_pair_task(
        LengthDependentPlacement(until=(6,), laws=(train_placement, LocalPlacement(shapes=((0, 2),), weights=(1.0,))))
    )
    learned, witness = (build_pair_attention(make_bit_pair_score(gaps), [1, 2]) for gaps in ([1], [1, 2]))
    case = CounterexampleCase(law=law, learned_head=learned, witness_head=witness)
    return Counterexample(
        name="rare shape",
        assumption="regularity: no shape has much more mass in long sequences",
        train_lengths=(3, 4, 5, 6),
        test_lengths=(7, 8, 9),
        build_case=lambda length: case,
    )


def small_leak_counterexample(filler_score: float = 1e-6) -> Counterexample:
    """Build the example of linear growth: each filler has ``filler_score``, and the planted token has score 1."""
    values = ((1.0, 0.0), (0.0, 1.0))
    learned_head, witness_head = (build_single_token_attention((score, 1.0), values) for score in (filler_score, 0.0))
    case = CounterexampleCase(law=CONSTANT_LAW, learned_head=learned_head, witness_head=witness_head)
    return Counterexample(
        name="small leak",
        assumption="none: all assumptions hold, and the risk still grows",
        train_lengths=(2, 3, 4, 5),
        test_lengths=(10, 25),
        build_case=lambda length: case,
        paper=DERIVED_HERE,
    )


def heavy_cuts_counterexample(num_digits: int = 3, heavy_score: float = 1e9) -> Counterexample:
    """Build the counterexample to bounds without kappa: one sequence of a star, x and digits misleads the head.

    The planted pair is the star and the first digit, and the label is constant. Only the pair of the last digit and x
    has a wrong value. These two pairs have score 1, pairs of consecutive digits have a tiny score, and all other pairs
    have ``heavy_score``. Therefore only the sequence of the star, all digits in order, and x misleads the learned head.
    """
    star, x, first_digit, last_digit = 0, 1, 2, num_digits + 1
    num_tokens = num_digits + 2
    scores = np.full((num_tokens, num_tokens), heavy_score)
    scores[np.arange(first_digit, last_digit), np.arange(first_digit + 1, last_digit + 1)] = 1e-9
    scores[star, first_digit] = scores[last_digit, x] = 1.0
    values = np.tile([1.0, 0.0], (num_tokens, num_tokens, 1))
    values[last_digit, x] = [0.0, 1.0]
    witness_scores = np.zeros((num_tokens, num_tokens))
    witness_scores[star, first_digit] = 1.0
    # The witness is almost right at all lengths, but slightly worse than the learned head on short sequences.
    witness_values = np.tile([1 - 3e-11, 3e-11], (num_tokens**2, 1))
    law = PlantedCorrelations(
        background=(1 / num_tokens,) * num_tokens,
        tuples=((star, first_digit),),
        probabilities=(1.0,),
        labels=((1.0, 0.0),),
        placement=ADJACENT_PLACEMENT,
    )
    learned = attention_from_scores([(0, 1)], scores.reshape(1, -1), values.reshape(-1, 2), num_tokens)
    witness = attention_from_scores([(0, 1)], witness_scores.reshape(1, -1), witness_values, num_tokens)
    case = CounterexampleCase(law=law, learned_head=learned, witness_head=witness)
    return Counterexample(
        name="heavy cuts",
        assumption="light cuts: sets that cross a cut have a small share of the total score",
        train_lengths=tuple(range(2, num_digits + 2)),
        test_lengths=(num_digits + 2,),
        build_case=lambda length: case,
        paper=DERIVED_HERE,
    )


COUNTEREXAMPLES: dict[str, Counterexample] = {
    example.name: example
    for example in (
        Counterexample(
            name="growing k",
            assumption="sparsity: k does not grow with the length",
            train_lengths=(1, 2, 3, 4, 5, 6),
            test_lengths=(7, 8, 9),
            build_case=_growing_k,
        ),
        Counterexample(
            name="growing gap",
            assumption="locality of the data: the planted set has a bounded span",
            train_lengths=(2, 3, 4, 5, 6, 7, 8),
            test_lengths=(9, 10),
            build_case=_growing_gap,
        ),
        Counterexample(
            name="unbounded reach",
            assumption="locality of the class: a set beyond the span has score 0",
            train_lengths=(2, 3, 4, 5, 6),
            test_lengths=(7, 8, 9),
            build_case=_unbounded_reach,
        ),
        rare_shape_counterexample(),
        Counterexample(
            name="absolute positions",
            assumption="relativity: a shift of all IDs changes no score",
            train_lengths=(2, 3, 4, 5, 6),
            test_lengths=(7, 8, 9),
            build_case=_absolute_positions,
        ),
        Counterexample(
            name="new background token",
            assumption="one background law for all lengths",
            train_lengths=(2, 3, 4, 5, 6),
            test_lengths=(7,),
            build_case=_new_background_token,
        ),
        Counterexample(
            name="canceling errors",
            assumption="several training lengths, or a loss in which errors cannot cancel",
            train_lengths=(5,),
            test_lengths=(4, 6, 10),
            build_case=_canceling_errors,
            loss=NormLoss(),
        ),
        small_leak_counterexample(),
        heavy_cuts_counterexample(),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterexampleCertificate:
    """Exact risks of the two heads of a counterexample, sorted by length, and their training objectives.

    An objective is the mean risk over ``train_lengths``: equation (3) of Golowich et al. 2025 (arXiv 2502.16792).
    ``minimizer`` is "learned", "witness" or, for equal objectives, "both".
    """

    counterexample: str
    assumption: str
    loss: str
    train_lengths: tuple[int, ...]
    risks: tuple[HeadRisksAtLength, ...]
    learned_objective: float
    witness_objective: float
    minimizer: str
    verdict: str


def certify_counterexample(example: Counterexample, lengths: Sequence[int] | None = None) -> CounterexampleCertificate:
    """Compute the exact risks of both heads at the training lengths and at ``lengths``, by default the test lengths.

    Raises ``SettingError`` for a length that has no sequences, or too many to enumerate.
    """
    test_lengths = example.test_lengths if lengths is None else lengths
    risks = tuple(example.compute_risks((*example.train_lengths, *test_lengths)))
    training = [at_length for at_length in risks if at_length.in_training]
    learned = float(np.mean([at_length.learned for at_length in training]))
    witness = float(np.mean([at_length.witness for at_length in training]))
    minimizer = "both" if abs(learned - witness) <= TIE_TOLERANCE else "learned" if learned < witness else "witness"
    return CounterexampleCertificate(
        counterexample=example.name,
        assumption=example.assumption,
        loss=example.loss.name,
        train_lengths=example.train_lengths,
        risks=risks,
        learned_objective=learned,
        witness_objective=witness,
        minimizer=minimizer,
        verdict=_verdict(risks, learned, witness, minimizer),
    )


def _verdict(risks: Sequence[HeadRisksAtLength], learned: float, witness: float, minimizer: str) -> str:
    comparisons = {
        "both": f"Both heads minimize the training objective ({learned:.2g}).",
        "learned": f"The learned head minimizes the training objective ({learned:.2g}; witness {witness:.2g}).",
        "witness": f"The training objective of the learned head is {learned:.2g}; the witness has {witness:.2g}.",
    }
    worst = max(risks, key=lambda at_length: at_length.learned)
    return (
        f"{comparisons[minimizer]} At length {worst.length} the risk of the learned head is {worst.learned:.3g}, and "
        f"that of the witness is {worst.witness:.2g}."
    )
