"""What breaks without each assumption: laws with heads that do well on short sequences, and fail on longer ones.

Each shows that the conclusion fails for some class, not that it always fails. Golowich et al. 2025 (arXiv 2502.16792),
appendix C.2, asks the same; these constructions are reconstructed, not the paper's; C7 and C8 are derived here.
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
    FirstTokens,
    WholeParity,
    attention_of,
    marked,
    pair_attention,
    pair_law,
    single_attention,
)
from lengthwise.theory.risk.exact_risk import Distance

ADJACENT = Local(shapes=((0, 1),), weights=(1.0,))

# The one planted token of C6 and C7: always there, and the label is always the same.
LONE = Planted(
    background=(1.0, 0.0),
    tuples=((1,),),
    probabilities=(1.0,),
    labels=((0.0, 1.0),),
    placement=Local(shapes=((0,),), weights=(1.0,)),
)


def _dense(length: int) -> Case:
    tuples = tuple(product((0, 1), repeat=length))
    law = Planted(
        background=(0.5, 0.5),
        tuples=tuples,
        probabilities=(1 / len(tuples),) * len(tuples),
        labels=tuple((1.0, 0.0) if sum(bits) % 2 == 0 else (0.0, 1.0) for bits in tuples),
        placement=Local(shapes=(tuple(range(length)),), weights=(1.0,)),
    )
    # A value function for each k: what the one for k = 7 says is in no training example.
    return Case(law=law, learned=FirstTokens(predictor=WholeParity(), number=6), witness=WholeParity())


def _halves(length: int) -> Case:
    gaps, near = range(1, max(length, 2)), marked(range(1, 5))

    def score(gap: int, first: int, second: int) -> float:
        return near(gap, first, second) + (gap >= 8 and first == second == FILLER)

    return Case(law=pair_law(Halves()), learned=pair_attention(score, gaps), witness=pair_attention(marked(gaps), gaps))


def _far_sight(length: int) -> Case:
    gaps, near = range(1, max(length, 2)), marked([1])

    def score(gap: int, first: int, second: int) -> float:
        return near(gap, first, second) + 1e3 * (gap >= 6 and first == second == FILLER)

    return Case(law=pair_law(ADJACENT), learned=pair_attention(score, gaps), witness=pair_attention(near, gaps))


def _token_indexes(length: int) -> Case:
    adjacent = pair_attention(marked([1]), [1])
    return Case(law=pair_law(ADJACENT), learned=FirstTokens(predictor=adjacent, number=6), witness=adjacent)


def _distractor(length: int) -> Case:
    near, rare = marked([1]), 0.0 if length <= 6 else 0.3

    def score(gap: int, first: int, second: int) -> float:
        return near(gap, first, second) + 1e9 * (DISTRACTOR in (first, second))

    return Case(
        law=pair_law(ADJACENT, background=(1 - rare, 0.0, 0.0, rare)),
        learned=pair_attention(score, [1], num_tokens=4),
        witness=pair_attention(near, [1], num_tokens=4),
    )


def _cancelling(length: int) -> Case:
    # Five times the answer, in the mean of five tokens.
    learned = single_attention((1.0, 1.0), ((1.0, 0.0), (-4.0, 5.0)))
    return Case(law=LONE, learned=learned, witness=single_attention((0.0, 1.0), ((1.0, 0.0), (0.0, 1.0))))


def rare_shape(share: float = 0.01) -> Counterexample:
    """C3: gap 2 has this share in training and all later; the head reads gap 1 alone."""
    short = Local(shapes=((0, 1), (0, 2)), weights=(1 - share, share))
    law = pair_law(ByLength(until=(6,), laws=(short, Local(shapes=((0, 2),), weights=(1.0,)))))
    case = Case(law=law, learned=pair_attention(marked([1]), [1, 2]), witness=pair_attention(marked([1, 2]), [1, 2]))
    return Counterexample(
        name="C3",
        assumption="regularity: no shape has much more mass in long sequences",
        moral="An error on a rare shape costs little in training and grows by exactly the ratio of its masses.",
        trained=(3, 4, 5, 6),
        tested=(7, 8, 9),
        case=lambda length: case,
    )


def small_leak(score: float = 1e-6) -> Counterexample:
    """C7: every filler has this score beside the planted token's 1."""
    values = ((1.0, 0.0), (0.0, 1.0))
    case = Case(law=LONE, learned=single_attention((score, 1.0), values), witness=single_attention((0.0, 1.0), values))
    return Counterexample(
        name="C7",
        assumption="none: all hold, and the risk still grows",
        moral="A little attention on each filler adds up: the risk grows by (N - 1) / (L - 1).",
        trained=(2, 3, 4, 5),
        tested=(10, 25),
        case=lambda length: case,
    )


def heavy_joints(digits: int = 3, heavy: float = 1e9) -> Counterexample:
    """C8: tokens are a star, x and some digits; a star followed by the first digit is planted, the label never changes.

    Only the pair of the last digit and x says something wrong, and every pair that is neither this one, the planted one
    nor two digits counting up outweighs it by ``heavy``. So one word misleads: star, all digits in order, x.
    """
    star, x, first, last = 0, 1, 2, digits + 1
    num_tokens = digits + 2
    scores = np.full((num_tokens, num_tokens), heavy)
    scores[np.arange(first, last), np.arange(first + 1, last + 1)] = 1e-9
    scores[star, first] = scores[last, x] = 1.0
    says = np.tile([1.0, 0.0], (num_tokens, num_tokens, 1))
    says[last, x] = [0.0, 1.0]
    planted = np.zeros((num_tokens, num_tokens))
    planted[star, first] = 1.0
    # Nearly right at all lengths, and so beaten by what is exactly right on short ones.
    nearly = np.tile([1 - 3e-11, 3e-11], (num_tokens**2, 1))
    law = Planted(
        background=(1 / num_tokens,) * num_tokens,
        tuples=((star, first),),
        probabilities=(1.0,),
        labels=((1.0, 0.0),),
        placement=ADJACENT,
    )
    case = Case(
        law=law,
        learned=attention_of([(0, 1)], scores.reshape(1, -1), says.reshape(-1, 2), num_tokens),
        witness=attention_of([(0, 1)], planted.reshape(1, -1), nearly, num_tokens),
    )
    return Counterexample(
        name="C8",
        assumption="light joints: what crosses a cut weighs little beside the rest",
        moral="Every shorter sequence made of pieces of a long one may be harmless though the long one is not.",
        trained=tuple(range(2, digits + 2)),
        tested=(digits + 2,),
        case=lambda length: case,
    )


COUNTEREXAMPLES: dict[str, Counterexample] = {
    made.name: made
    for made in (
        Counterexample(
            name="C1",
            assumption="sparsity: k does not grow with the length",
            moral="Where every token counts, short sequences say nothing about the function of a longer one.",
            trained=(1, 2, 3, 4, 5, 6),
            tested=(7, 8, 9),
            case=_dense,
        ),
        Counterexample(
            name="C2a",
            assumption="locality of the data: what is planted lies within a span",
            moral="A pair whose gap grows with the length has, in longer sequences, gaps that training never showed.",
            trained=(2, 3, 4, 5, 6, 7, 8),
            tested=(9, 10),
            case=_halves,
        ),
        Counterexample(
            name="C2b",
            assumption="locality of the class: a set beyond the span has score 0",
            moral="Local data do not make a local head: scores at gaps beyond all training lengths are free.",
            trained=(2, 3, 4, 5, 6),
            tested=(7, 8, 9),
            case=_far_sight,
        ),
        rare_shape(),
        Counterexample(
            name="C4",
            assumption="relativity: a shift of all IDs changes no score",
            moral="Scores of token indexes that only long sequences have are free.",
            trained=(2, 3, 4, 5, 6),
            tested=(7, 8, 9),
            case=_token_indexes,
        ),
        Counterexample(
            name="C5",
            assumption="one background law for all lengths",
            moral="The score of a token that training never shows is free.",
            trained=(2, 3, 4, 5, 6),
            tested=(7,),
            case=_distractor,
        ),
        Counterexample(
            name="C6",
            assumption="several training lengths, or a loss in which errors cannot cancel",
            moral="Under a norm loss wrong values may add up to the right answer, but at one length only.",
            trained=(5,),
            tested=(4, 6, 10),
            case=_cancelling,
            loss=Distance(),
        ),
        small_leak(),
        heavy_joints(),
    )
}
