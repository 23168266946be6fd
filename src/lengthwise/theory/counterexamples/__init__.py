"""Counterexamples by name: without one assumption, a head fits short sequences and fails on longer sequences.

Each counterexample shows that some heads fail, not that all heads fail. They follow Golowich et al. 2025 (arXiv
2502.16792), appendix C.2, and are reconstructed; 'small leak' and 'heavy joints' are derived here.
"""

from itertools import product

import numpy as np

from lengthwise.tasks.planted.placement import ByLength, Local
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.position_coupling import Halves
from lengthwise.theory.counterexamples.counterexample import (
    DISTRACTOR,
    FILLER,
    Case,
    Counterexample,
    ParityPredictor,
    PrefixPredictor,
    attention_from_scores,
    pair_attention,
    pair_law,
    score_bit_pairs,
    single_attention,
)
from lengthwise.theory.risk.exact_risk import Distance

# Source of the examples that the paper does not have.
DERIVED_HERE = "derived here"
ADJACENT_PLACEMENT = Local(shapes=((0, 1),), weights=(1.0,))
# One planted token that is always the same, with a constant label.
CONSTANT_LAW = Planted(
    background=(1.0, 0.0),
    tuples=((1,),),
    probabilities=(1.0,),
    labels=((0.0, 1.0),),
    placement=Local(shapes=((0,),), weights=(1.0,)),
)


def _growing_k(length: int) -> Case:
    tuples = tuple(product((0, 1), repeat=length))
    law = Planted(
        background=(0.5, 0.5),
        tuples=tuples,
        probabilities=(1 / len(tuples),) * len(tuples),
        labels=tuple((1.0, 0.0) if sum(bits) % 2 == 0 else (0.0, 1.0) for bits in tuples),
        placement=Local(shapes=(tuple(range(length)),), weights=(1.0,)),
    )
    # Each k has its own value function, and no training example determines the function for k = 7.
    learned = PrefixPredictor(predictor=ParityPredictor(), num_tokens=6)
    return Case(law=law, learned_head=learned, witness_head=ParityPredictor())


def _growing_gap(length: int) -> Case:
    gaps, witness_score = range(1, max(length, 2)), score_bit_pairs(range(1, 5))

    def score(gap: int, first: int, second: int) -> float:
        return witness_score(gap, first, second) + (gap >= 8 and first == second == FILLER)

    law, witness = pair_law(Halves()), pair_attention(score_bit_pairs(gaps), gaps)
    return Case(law=law, learned_head=pair_attention(score, gaps), witness_head=witness)


def _unbounded_reach(length: int) -> Case:
    gaps, witness_score = range(1, max(length, 2)), score_bit_pairs([1])

    def score(gap: int, first: int, second: int) -> float:
        return witness_score(gap, first, second) + 1e3 * (gap >= 6 and first == second == FILLER)

    learned, witness = (pair_attention(each, gaps) for each in (score, witness_score))
    return Case(law=pair_law(ADJACENT_PLACEMENT), learned_head=learned, witness_head=witness)


def _absolute_positions(length: int) -> Case:
    witness = pair_attention(score_bit_pairs([1]), [1])
    learned = PrefixPredictor(predictor=witness, num_tokens=6)
    return Case(law=pair_law(ADJACENT_PLACEMENT), learned_head=learned, witness_head=witness)


def _new_background_token(length: int) -> Case:
    witness_score, distractor_probability = score_bit_pairs([1]), 0.0 if length <= 6 else 0.3

    def score(gap: int, first: int, second: int) -> float:
        return witness_score(gap, first, second) + 1e9 * (DISTRACTOR in (first, second))

    law = pair_law(ADJACENT_PLACEMENT, background=(1 - distractor_probability, 0.0, 0.0, distractor_probability))
    learned, witness = (pair_attention(each, [1], num_tokens=4) for each in (score, witness_score))
    return Case(law=law, learned_head=learned, witness_head=witness)


def _canceling_errors(length: int) -> Case:
    # The planted value is five times too large, so the mean over five tokens is correct.
    learned = single_attention((1.0, 1.0), ((1.0, 0.0), (-4.0, 5.0)))
    witness = single_attention((0.0, 1.0), ((1.0, 0.0), (0.0, 1.0)))
    return Case(law=CONSTANT_LAW, learned_head=learned, witness_head=witness)


def rare_shape(rare_probability: float = 0.01) -> Counterexample:
    """Build the counterexample without regularity: distance 2 has ``rare_probability`` in training, and 1 later."""
    train_placement = Local(shapes=((0, 1), (0, 2)), weights=(1 - rare_probability, rare_probability))
    law = pair_law(ByLength(until=(6,), laws=(train_placement, Local(shapes=((0, 2),), weights=(1.0,)))))
    learned, witness = (pair_attention(score_bit_pairs(gaps), [1, 2]) for gaps in ([1], [1, 2]))
    case = Case(law=law, learned_head=learned, witness_head=witness)
    return Counterexample(
        name="rare shape",
        assumption="regularity: no shape has much more mass in long sequences",
        train_lengths=(3, 4, 5, 6),
        test_lengths=(7, 8, 9),
        build_case=lambda length: case,
    )


def small_leak(filler_score: float = 1e-6) -> Counterexample:
    """Build the example of linear growth: each filler has ``filler_score``, and the planted token has score 1."""
    values = ((1.0, 0.0), (0.0, 1.0))
    learned_head, witness_head = (single_attention((score, 1.0), values) for score in (filler_score, 0.0))
    case = Case(law=CONSTANT_LAW, learned_head=learned_head, witness_head=witness_head)
    return Counterexample(
        name="small leak",
        assumption="none: all assumptions hold, and the risk still grows",
        train_lengths=(2, 3, 4, 5),
        test_lengths=(10, 25),
        build_case=lambda length: case,
        paper=DERIVED_HERE,
    )


def heavy_joints(num_digits: int = 3, heavy_score: float = 1e9) -> Counterexample:
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
    law = Planted(
        background=(1 / num_tokens,) * num_tokens,
        tuples=((star, first_digit),),
        probabilities=(1.0,),
        labels=((1.0, 0.0),),
        placement=ADJACENT_PLACEMENT,
    )
    learned = attention_from_scores([(0, 1)], scores.reshape(1, -1), values.reshape(-1, 2), num_tokens)
    witness = attention_from_scores([(0, 1)], witness_scores.reshape(1, -1), witness_values, num_tokens)
    case = Case(law=law, learned_head=learned, witness_head=witness)
    return Counterexample(
        name="heavy joints",
        assumption="light joints: sets that cross a cut have a small share of the total score",
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
        rare_shape(),
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
            loss=Distance(),
        ),
        small_leak(),
        heavy_joints(),
    )
}
