"""Regularity of placements, weight across cuts, and attention without positions."""

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
from tests.support.random_instances import Sizes, random_instance

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import (
    LengthDependentPlacement,
    LocalPlacement,
    OffsetDistribution,
    UniformShapePlacement,
)
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention
from lengthwise.theory.bounds.bound_inputs import (
    cross_cut_scores,
    planted_offset_patterns,
    regularity_constant,
    regularity_ratio,
    shape_probabilities,
    start_offset_uniformity,
)
from lengthwise.theory.bounds.training_window_covers import GridWindowCover, expected_piece_counts

PAIRS = LocalPlacement(shapes=((0, 1), (0, 2)), weights=(0.3, 0.7))
LATER_WIDE = LengthDependentPlacement(
    until=(8,),
    laws=(LocalPlacement(shapes=((0, 1),), weights=(1.0,)), LocalPlacement(shapes=((0, 2),), weights=(1.0,))),
)


@dataclass(frozen=True)
class Tilted:
    """Two shapes whose starts are more likely towards the end, by a factor that depends on the length."""

    tilt: float = 0.5
    name: ClassVar[str] = "tilted"
    summary: ClassVar[str] = "starts are more likely towards the end"
    k: ClassVar[int] = 2
    max_span: ClassVar[int] = 3
    min_length: ClassVar[int] = 3

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Return the tilted distribution."""
        shapes = np.array([(0, 1), (0, 2)])
        fits = np.arange(length) < length - shapes[:, -1:]
        mass = np.where(fits, 1 + self.tilt * np.sin(length) * np.arange(length) / length, 0.0)
        return OffsetDistribution(shapes=shapes, probability=mass / mass.sum())

    def sample(self, length, size, rng):
        """Raise, because no test samples sets."""
        raise NotImplementedError


def table_of(placement, length):
    """Return the probability of each set that fits, including 0."""
    law = placement.offset_distribution(length)
    return {
        (tuple(shape), start): law.probability[index, start]
        for index, shape in enumerate(law.shapes.tolist())
        for start in range(length - shape[-1])
    }


def test_eta_below_the_span_raises():
    with pytest.raises(SettingError, match=r"length 2 has no room for the span 3; use a length of at least 3"):
        regularity_constant(PAIRS, 2, 3)


def quotient(above, below):
    return 0.0 if above == 0 else np.inf if below == 0 else above / below


def eta_by_pairs(placement, length, span):
    worst, here = 1.0, table_of(placement, length)
    for other in range(span, length + 1):
        there = table_of(placement, other)
        for ((shape, _), one), ((same, _), two) in product(here.items(), there.items()):
            if shape == same:
                worst = max(worst, quotient(one, two), quotient(two, one))
    return worst


@pytest.mark.parametrize(
    "placement", [PAIRS, Tilted(), Tilted(tilt=1.2), UniformShapePlacement(num_planted=3, widest=4)]
)
def test_eta_is_the_largest_ratio_of_two_starts_at_two_lengths(placement):
    for length in (5, 8):
        expected = eta_by_pairs(placement, length, placement.max_span)
        assert regularity_constant(placement, length, placement.max_span) == pytest.approx(expected, rel=1e-12)
        assert expected >= 1


def test_eta_of_uniform_starts_is_the_number_of_starts_of_the_widest_shape():
    for length, span in ((9, 3), (20, 3), (7, 5)):
        placement = LocalPlacement(shapes=((0, 1), (0, span - 1)), weights=(0.5, 0.5))
        assert regularity_constant(placement, length, span) == pytest.approx(length - span + 1, rel=1e-12)


def test_eta_grows_with_the_range_of_lengths():
    for placement in (PAIRS, UniformShapePlacement(num_planted=2, widest=4)):
        values = [regularity_constant(placement, length, 4) for length in range(4, 16)]
        assert values[0] == 1
        assert (np.diff(values) >= 0).all()
        assert regularity_constant(placement, 12, 8) <= regularity_constant(placement, 12, 4)


def test_a_shape_that_training_lacks_makes_eta_and_rho_infinite():
    assert regularity_constant(LATER_WIDE, 8, 3) == pytest.approx(7 / 2)
    assert regularity_constant(LATER_WIDE, 9, 3) == np.inf
    assert regularity_ratio(LATER_WIDE, 9, 8) == np.inf
    assert start_offset_uniformity(LATER_WIDE, [8, 9]) == np.inf


def test_rho_is_the_largest_ratio_of_the_longer_length_to_the_shorter():
    for placement in (PAIRS, Tilted()):
        long, short = table_of(placement, 11), table_of(placement, 6)
        pairs = product(long.items(), short.items())
        expected = max(one / two for ((shape, _), one), ((same, _), two) in pairs if shape == same)
        assert regularity_ratio(placement, 11, 6) == pytest.approx(expected, rel=1e-12)


def test_uniform_starts_have_the_constant_one():
    assert start_offset_uniformity(PAIRS, range(6, 20)) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("placement", [PAIRS, Tilted(), Tilted(tilt=1.2)])
def test_the_uniformity_of_starts_bounds_the_ratio_of_all_probabilities_of_a_shape(placement):
    lengths = range(5, 14)
    rho0 = start_offset_uniformity(placement, lengths)
    by_shape: dict[tuple[int, ...], list[float]] = {}
    for length in lengths:
        for (shape, _), probability in table_of(placement, length).items():
            by_shape.setdefault(shape, []).append(probability * (length - shape[-1]))
    assert max(max(values) / min(values) for values in by_shape.values()) == pytest.approx(rho0, rel=1e-12)
    for train_length in range(5, 9):
        assert regularity_ratio(placement, 13, train_length) <= rho0 * train_length / 13 * (1 + 1e-12)


def test_shapes_outside_the_placement_have_probability_0():
    shapes = planted_offset_patterns(LATER_WIDE, [8, 9])
    assert shapes.tolist() == [[0, 1], [0, 2]]
    np.testing.assert_array_equal(shape_probabilities(LATER_WIDE, shapes, 8)[1], np.zeros(8))


def head_and_law(seed, k=2, span=3, regime="mixed", num_tokens=3):
    sizes = Sizes(num_tokens=num_tokens, k=k, span=span, train_length=4 * span, test_length=4 * span)
    instance = random_instance(regime, sizes, seed, num_heads=1)
    return instance.heads[0], instance.law


@pytest.mark.parametrize(("k", "span", "regime"), [(2, 3, "mixed"), (3, 4, "mixed"), (2, 2, "clean")])
def test_no_piece_weighs_more_than_either_kappa_times_the_whole_sequence(k, span, regime, rng):
    test_length, train_length = 4 * span, 3 * span
    for seed in range(4):
        head, law = head_and_law(seed, k, span, regime)
        shapes = law.placement.offset_distribution(test_length).shapes
        weight = cross_cut_scores(law, head, shapes)
        tokens, sets, _ = law.sample_arrays(test_length, 30, rng)
        for sequence, planted in zip(tokens, sets, strict=True):
            index = law.tuples.index(tuple(sequence[planted]))
            shape = shapes.tolist().index((planted - planted[0]).tolist())
            whole = np.exp(head.score_token_sets(sequence[None])[1]).sum()
            cover = GridWindowCover(test_length=test_length, train_length=train_length, span=span)
            for piece in cover.list_pieces(int(planted[0])):
                part = np.exp(head.score_token_sets(sequence[piece.tokens()][None])[1]).sum()
                assert part <= weight.kappa_from_swaps(piece.cuts)[index] * whole * (1 + 1e-12)
                assert part <= weight.kappa_from_planted_score(piece.cuts)[shape, index] * whole * (1 + 1e-12)


def test_both_kappas_equal_their_definitions():
    for seed in range(4):
        head, law = head_and_law(seed, k=3, span=4, regime="clean")
        shapes = law.placement.offset_distribution(12).shapes
        joint = cross_cut_scores(law, head, shapes)
        background = np.flatnonzero(law.background)
        scores = np.exp(head.log_scores).reshape(-1, 3, 3, 3)
        for index, planted in enumerate(law.tuples):
            near = sorted({*background, *planted})
            for side in (0, 1):
                swap, weight = 1.0, 0.0
                for (_, second, third), table in zip(head.shapes, scores, strict=True):
                    steps = (second, third - second)
                    for cut in (1, 2):
                        beyond = [background] * cut if side == 0 else [background] * (3 - cut)
                        here = [near] * (3 - cut) if side == 0 else [near] * cut
                        by_near = [
                            [table[(*far, *close) if side == 0 else (*close, *far)] for far in product(*beyond)]
                            for close in product(*here)
                        ]
                        swap = max(swap, *(max(of_near) / min(of_near) for of_near in by_near))
                        weight += steps[cut - 1] * max(map(max, by_near))
                cuts = (side == 0, side == 1)
                assert joint.kappa_from_swaps(cuts)[index] == pytest.approx(swap, rel=1e-9)
                for shape_index, shape in enumerate(shapes.tolist()):
                    score = scores[head.shapes.tolist().index(shape)][planted]
                    expected = pytest.approx(1 + weight / score, rel=1e-9)
                    assert joint.kappa_from_planted_score(cuts)[shape_index, index] == expected


def test_single_tokens_cross_no_cut():
    head, law = head_and_law(0, k=1, span=1)
    joint = cross_cut_scores(law, head, np.array([[0]]))
    assert (joint.kappa_from_swaps((True, True)) == 1).all()
    assert (joint.kappa_from_planted_score((True, True)) == 1).all()


def test_kappa_of_a_planted_tuple_without_weight_is_the_bounded_ratio():
    head, law = head_and_law(0, k=2, span=2)
    shapes = law.placement.offset_distribution(8).shapes
    scores = head.log_scores.copy()
    scores[:, law.tuple_codes(np.array(law.tuples))] = -np.inf
    joint = cross_cut_scores(law, replace(head, log_scores=scores), shapes)
    assert (joint.kappa_from_planted_score((True, False)) == np.inf).all()
    assert np.isinf(joint.kappa((True, False))).all()
    flat = cross_cut_scores(law, replace(head, log_scores=np.zeros_like(scores)), shapes)
    assert (flat.kappa((True, True)) == 1).all()
    assert (flat.kappa_from_planted_score((True, True)) == 3).all()


def test_the_push_forward_multiplies_by_the_factors_of_cuts_and_tuples(rng):
    cover = GridWindowCover(test_length=20, train_length=8, span=2)
    probability = rng.dirichlet(np.ones(19))
    factor = {cuts: rng.random((1, 3)) for cuts in product((False, True), repeat=2)}
    piece_weights = expected_piece_counts(np.append(probability, 0.0)[None], cover, factor)[8]
    expected = np.zeros((8, 3))
    for start in range(19):
        for piece in cover.list_pieces(start):
            expected[list(piece.tokens()).index(start)] += probability[start] * factor[piece.cuts][0]
    np.testing.assert_allclose(piece_weights[0], expected, atol=1e-12)


def test_scores_of_the_wrong_number_or_above_all_bounds_raise():
    settings = {"num_tokens": 2, "k": 2, "default": np.zeros(2)}
    with pytest.raises(SettingError, match=r"got 3 scores for tuples of length 2 over 2 tokens; pass 4"):
        PositionFreeAttention(log_scores=np.zeros(3), values=np.zeros((3, 2)), **settings)
    with pytest.raises(SettingError, match="a log score is NaN or infinity"):
        PositionFreeAttention(log_scores=np.full(4, np.inf), values=np.zeros((4, 2)), **settings)


def test_attention_without_positions_is_the_mean_over_all_sets_at_any_distance(rng):
    head = PositionFreeAttention(
        num_tokens=3, k=2, log_scores=rng.normal(size=9), values=rng.random((9, 2)), default=np.zeros(2)
    )
    tokens = rng.integers(3, size=(5, 6))
    weights = np.zeros((5, 1))
    total = np.zeros((5, 2))
    for first in range(6):
        for second in range(first + 1, 6):
            code = 3 * tokens[:, first] + tokens[:, second]
            weights[:, 0] += np.exp(head.log_scores[code])
            total += np.exp(head.log_scores[code])[:, None] * head.values[code]
    np.testing.assert_allclose(head.predict(tokens), total / weights, atol=1e-12)
    wide = TabularAttention(
        num_tokens=3,
        shapes=np.array([(0, gap) for gap in range(1, 6)]),
        log_scores=np.tile(head.log_scores, (5, 1)),
        values=np.tile(head.values, (5, 1, 1)),
        default=head.default,
    )
    np.testing.assert_allclose(head.predict(tokens), wide.predict(tokens), atol=1e-12)
