"""Bounds against exact risks on random laws and heads, and every condition against a case that violates it."""

import os
from dataclasses import dataclass, replace
from functools import cache
from math import perm
from typing import ClassVar

import numpy as np
import pytest
from tests.support.random_instances import Sizes, random_instance

from lengthwise.core.errors import SettingError, UnknownNameError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.planted.placement import (
    LengthDependentPlacement,
    LocalPlacement,
    OffsetDistribution,
    SubsetPlacement,
)
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention
from lengthwise.theory.bounds import (
    BOUNDS,
    label_noise_corrected_bound,
    largest_ratio_bound,
    length_quadratic_bound,
    length_ratio_quadratic_bound,
    linear_bound,
    linear_bound_from_max_risk,
    linear_bound_from_mean_risk,
    minimax_quadratic_bound,
    no_locality_bound,
    piece_difference_bound,
    proportional_cover_bound,
    shortened_gaps_bound,
    single_token_bound,
    single_token_group_bound,
    span_quadratic_bound,
    window_cover_bound,
    worst_case_risk_bound,
)
from lengthwise.theory.bounds.bound_inputs import BoundError, BoundInputs
from lengthwise.theory.bounds.training_window_covers import (
    GridWindowCover,
    ProportionalCover,
    count_distinct_pieces,
    known_scores_bound,
    sampled_known_scores_bound,
)
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, NormLoss, TotalVariationLoss, enumerated_risk
from lengthwise.theory.risk.laplace_transform import laplace_risk, laplace_risks
from lengthwise.theory.risk.risk_at_length import bernstein_margin

ROUNDING = 1e-12
# How many times more random instances the slow tests try.
MORE = int(os.environ.get("MORE_INSTANCES", "1"))
PUBLISHED = (length_quadratic_bound, span_quadratic_bound, minimax_quadratic_bound, length_ratio_quadratic_bound)
# Bounds that also hold for the norm loss.
NORM = (*PUBLISHED, linear_bound_from_max_risk, piece_difference_bound)
# Regime, tokens, k, span, training length, test length: all small enough to enumerate.
SMALL = (
    ("clean", 3, 1, 1, 4, 7),
    ("mixed", 2, 1, 1, 8, 9),
    ("clean", 3, 2, 2, 8, 10),
    ("mixed", 2, 2, 2, 8, 10),
    ("mixed", 3, 2, 2, 8, 9),
    ("clean", 2, 2, 2, 16, 18),
    ("clean", 2, 3, 3, 12, 14),
)
ALL = tuple(bound.value for bound in BOUNDS.values())
# Bounds that have a value at least once over SMALL.
APPLICABLE = set(ALL) - {no_locality_bound, shortened_gaps_bound}


def random_case(regime, numbers, seed, num_heads=2):
    names = ("num_tokens", "k", "span", "train_length", "test_length")
    sizes = Sizes(**dict(zip(names, numbers, strict=True)))
    instance = random_instance(regime, sizes, seed, num_heads)
    head = instance.best_head(TotalVariationLoss())
    return BoundInputs(law=instance.law, predictor=head, train_length=sizes.train_length, test_length=sizes.test_length)


def bounds_with_value(case, bounds):
    """Return the bounds whose conditions hold; none of them may be below the exact risk."""
    risk = enumerated_risk(case.law, case.predictor, case.test_length, case.loss).mean
    with_value = []
    for bound in bounds:
        options = {"num_samples": 300} if bound is sampled_known_scores_bound else {}
        try:
            value = bound(case, **options)
        except BoundError:
            continue
        assert value >= risk - ROUNDING, (bound, case, risk)
        with_value.append(bound)
    return with_value


def count_valid(sizes, seeds):
    counts = dict.fromkeys(ALL, 0)
    for regime, *numbers in sizes:
        for seed in seeds:
            case = random_case(regime, numbers, seed)
            valid = bounds_with_value(case, APPLICABLE)
            valid += bounds_with_value(replace(case, loss=NormLoss()), NORM)
            valid += bounds_with_value(
                replace(case, loss=AttentionLeakageLoss()), APPLICABLE - {*NORM, label_noise_corrected_bound}
            )
            for bound in valid:
                counts[bound] += 1
    return counts


def test_no_bound_is_below_the_exact_risk():
    counts = count_valid(SMALL, range(1))
    assert min(counts[bound] for bound in APPLICABLE) >= 1


def not_applicable(sizes):
    """Return the bounds that need more room, k = 1, or whole groups."""
    _, _, k, span, train_length, test_length = sizes
    bounds = set() if train_length >= 8 * span else {linear_bound_from_mean_risk}
    if k > 1:
        return bounds | {single_token_bound, single_token_group_bound}
    return bounds | ({single_token_group_bound} if (test_length - 1) % (train_length - 1) else set())


# Odd lengths, and room for less than four spans.
TIGHT = (
    ("mixed", 2, 2, 2, 5, 8),
    ("clean", 3, 2, 2, 7, 9),
    ("mixed", 2, 3, 3, 7, 9),
    ("mixed", 2, 1, 1, 9, 11),
    ("clean", 2, 2, 2, 9, 11),
)


@pytest.mark.first(3)
@pytest.mark.parametrize("sizes", TIGHT, ids=str)
def test_no_bound_is_below_the_exact_risk_with_little_room_or_at_an_odd_length(sizes):
    counts = count_valid([sizes], range(2))
    _, _, _, span, train_length, _ = sizes
    assert counts[window_cover_bound] == 4
    assert counts[linear_bound] == (4 if train_length >= 4 * span else 0)


def gap_case(regime, seed):
    """Build a case that is too long to enumerate, with training risks by Laplace transform."""
    sizes = Sizes(num_tokens=3, k=2, span=2, train_length=192, test_length=240)
    instance = random_instance(regime, sizes, seed, num_heads=1)
    law, head = instance.law, instance.heads[0]
    risks = laplace_risks(law, head, sizes.train_lengths, TotalVariationLoss()).tolist()
    by_length = dict(zip(sizes.train_lengths, risks, strict=True))
    return BoundInputs(
        law=law,
        predictor=head,
        train_length=192,
        test_length=240,
        mean_risk=lambda law, head, length, loss: by_length[length],
    )


def shortened_gap_values(regime, seeds):
    values = []
    for seed in seeds:
        case = gap_case(regime, seed)
        risk = laplace_risk(case.law, case.predictor, 240, case.loss)
        values.append(shortened_gaps_bound(case))
        assert values[-1] >= risk - ROUNDING, (case, risk)
    return values


@pytest.mark.parametrize("regime", ["clean", "mixed"])
def test_the_bound_by_shortened_gaps_holds_for_random_laws(regime):
    assert len(shortened_gap_values(regime, range(2))) == 2


@pytest.mark.slow
def test_the_bound_by_shortened_gaps_holds_for_a_hundred_random_laws():
    # Some of the bounds are below 1.
    assert min(shortened_gap_values("clean", range(50 * MORE))) < 1
    assert len(shortened_gap_values("mixed", range(50 * MORE))) == 50 * MORE


# Enough seeds for a hundred instances of every applicable bound; `make fuzz` tries three times as many.
MANY = {sizes: MORE * count for sizes, count in zip(SMALL, (100, 50, 16, 16, 16, 16, 16), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_no_bound_is_below_the_exact_risk_in_a_hundred_instances(sizes):
    counts = count_valid([sizes], range(MANY[sizes]))
    assert counts[window_cover_bound] == 2 * MANY[sizes]
    assert counts[length_quadratic_bound] == 2 * MANY[sizes]
    assert min(counts[bound] for bound in APPLICABLE - not_applicable(sizes)) >= MANY[sizes]


def test_bounds_are_ordered_as_in_their_proofs():
    for regime, *numbers in SMALL[2:5]:
        case = random_case(regime, numbers, seed=3)
        cover, worst, ratio = (
            bound(case) for bound in (window_cover_bound, worst_case_risk_bound, largest_ratio_bound)
        )
        assert known_scores_bound(case, cover=GridWindowCover) <= cover <= worst + ROUNDING
        assert worst <= ratio + ROUNDING
        assert ratio <= linear_bound(case)
        by_length, by_spans, minimax, by_ratio = (bound(case) for bound in PUBLISHED)
        assert minimax <= by_spans <= by_length
        assert linear_bound_from_max_risk(case) <= by_ratio


def single(background, planted, shapes=((0,),)):
    """Build a law with one planted tuple and a constant label."""
    return PlantedCorrelations(
        background=background,
        tuples=(planted,),
        probabilities=(1.0,),
        labels=((0.0, 1.0),),
        placement=LocalPlacement(shapes=shapes, weights=(1 / len(shapes),) * len(shapes)),
    )


def single_head(scores, values):
    return TabularAttention(
        num_tokens=2,
        shapes=np.array([[0]]),
        log_scores=np.log([scores]),
        values=np.array([values]),
        default=np.full(2, 0.5),
    )


WRONG_FILLER = ((1.0, 0.0), (0.0, 1.0))


def test_closed_forms_have_their_stated_values_if_all_factors_are_known():
    # A filler has weight e and a wrong value: risk e (l - 1) / (1 + e (l - 1)), kappa and rho0 of 1.
    head = single_head((1e-3, 1.0), WRONG_FILLER)
    case = BoundInputs(law=single((1.0, 0.0), (1,)), predictor=head, train_length=8, test_length=22)
    risk = {length: 1e-3 * (length - 1) / (1 + 1e-3 * (length - 1)) for length in range(4, 9)}
    average, largest = np.mean(list(risk.values())), risk[8]
    expected = {
        length_quadratic_bound: 3 * 8 * 22 * 8 * 22**2 * average,
        span_quadratic_bound: 3 * 8 * 22 * 8 * 22**2 * average,
        minimax_quadratic_bound: 3 * 8 * 22 * 22**2 * largest,
        length_ratio_quadratic_bound: 48 * (22 / 8) ** 2 * largest,
        linear_bound_from_max_risk: 48 * 22 / 8 * largest,
        single_token_bound: 3 * largest,
        single_token_group_bound: 1 - (1 - largest) ** 3,
        linear_bound: 16 * 22 / 8 * largest,
        linear_bound_from_mean_risk: 40 * 22 / 8 * average,
    }
    for bound, value in expected.items():
        assert bound(case) == pytest.approx(value, rel=1e-9), bound
    odd = replace(case, train_length=7)
    assert linear_bound(odd) == pytest.approx(20 * 22 / 7 * risk[7], rel=1e-9)


def test_linear_growth_is_attained_by_small_weights_on_fillers():
    head = single_head((1e-6, 1.0), WRONG_FILLER)
    case = BoundInputs(law=single((1.0, 0.0), (1,)), predictor=head, train_length=5, test_length=40)
    risk = enumerated_risk(case.law, head, 40, case.loss).mean
    assert 1 <= single_token_bound(case) / risk <= 1.0001


def heavy_cuts_counterexample(digits=3, heavy_score=1e9):
    """Build a case where only ``star 0 1 .. x`` is misleading, and no shorter sequence made of its pieces."""
    star, x, size = digits, digits + 1, digits + 2
    scores, values = np.full((size, size), heavy_score), np.tile([1.0, 0.0], (size, size, 1))
    scores[range(digits - 1), range(1, digits)] = 1e-9
    scores[star, 0] = scores[digits - 1, x] = 1.0
    values[digits - 1, x] = (0.0, 1.0)
    head = TabularAttention(
        num_tokens=size,
        shapes=np.array([[0, 1]]),
        log_scores=np.log(scores).reshape(1, -1),
        values=values.reshape(1, -1, 2),
        default=np.array([1.0, 0.0]),
    )
    law = replace(single((1 / size,) * size, (star, 0), shapes=((0, 1),)), labels=((1.0, 0.0),))
    return BoundInputs(law=law, predictor=head, train_length=4, test_length=5)


def test_heavy_cuts_violate_the_square_without_kappa_but_not_the_cover_with_kappa():
    case = heavy_cuts_counterexample()
    risks = [enumerated_risk(case.law, case.predictor, length, case.loss).mean for length in (2, 3, 4, 5)]
    assert max(risks[:2]) <= 1e-15
    assert risks[2] == pytest.approx(2.7e-11, rel=0.05)
    assert risks[3] == pytest.approx(1.0e-3, rel=0.05)
    # eta_L = 3 and eta_N = 4 for adjacent pairs with uniform starts.
    without_kappa = 3 * 3 * 4 * 4 * 5**2 * np.mean(risks[:3])
    assert risks[3] > 1e4 * without_kappa
    assert window_cover_bound(case) >= risks[3]
    assert case.cross_cut_scores.kappa_from_planted_score((False, True)).max() == pytest.approx(1 + 1e9)
    unweighted = window_cover_bound(case) / case.cross_cut_scores.kappa((False, True)).max()
    assert unweighted < risks[3]


def test_one_training_length_bounds_no_loss_whose_errors_cancel():
    # The mean over five tokens is right, and that over any other number is wrong.
    head = single_head((1.0, 1.0), ((0.0, 1.0), (1.0, 0.0)))
    law = replace(single((1.0, 0.0), (1,)), labels=((0.2, 0.8),))
    case = BoundInputs(law=law, predictor=head, train_length=5, test_length=10, loss=NormLoss())
    assert case.risk_at(5) == pytest.approx(0, abs=1e-12)
    risk = enumerated_risk(law, head, 10, NormLoss()).mean
    assert risk == pytest.approx(0.1)
    assert piece_difference_bound(case) >= risk
    with pytest.raises(BoundError, match=r"'norm' is not linear.*'canceling errors'"):
        window_cover_bound(case)


def position_free_case(seed, k, train_length, test_length):
    rng = random_stream(seed, "position free", k)
    tokens = int(rng.integers(2, 4)) if k < 3 else 2
    codes = tokens**k
    number = int(rng.integers(1, 4))
    planted = rng.choice(codes, size=min(number, codes), replace=False)
    digits = planted[:, None] // tokens ** np.arange(k - 1, -1, -1) % tokens
    law = PlantedCorrelations(
        background=tuple(rng.dirichlet(np.ones(tokens))),
        tuples=tuple(map(tuple, digits.tolist())),
        probabilities=tuple(rng.dirichlet(np.ones(len(planted)))),
        labels=tuple(map(tuple, rng.dirichlet(np.full(2, 0.3), size=len(planted)).tolist())),
        placement=SubsetPlacement(num_planted=k),
    )
    right = np.where(law.tuple_code_probabilities > 0, rng.uniform(0, 8), 0.0)
    head = PositionFreeAttention(
        num_tokens=tokens,
        k=k,
        log_scores=rng.normal(size=codes) + right,
        values=np.where(
            (law.tuple_code_probabilities > 0)[:, None], law.label_probabilities, rng.dirichlet(np.ones(2), size=codes)
        ),
        default=np.full(2, 0.5),
    )
    return BoundInputs(law=law, predictor=head, train_length=train_length, test_length=test_length)


def position_free_ratios(seeds):
    ratios = []
    for seed in seeds:
        for k, train_length, test_length in ((1, 3, 8), (2, 4, 7), (2, 5, 7), (3, 6, 8)):
            case = position_free_case(seed, k, train_length, test_length)
            risk = enumerated_risk(case.law, case.predictor, test_length, case.loss).mean
            ratios.append(no_locality_bound(case) / risk)
    assert min(ratios) >= 1 - ROUNDING
    return ratios


def test_without_locality_the_risk_grows_at_most_with_the_power_k():
    assert len(position_free_ratios(range(8))) == 32


@pytest.mark.slow
def test_without_locality_the_risk_grows_at_most_with_the_power_k_in_a_hundred_instances():
    assert len(position_free_ratios(range(25 * MORE))) == 100 * MORE


def test_without_locality_the_power_k_and_its_constant_are_attained():
    scores = np.full(4, -np.inf)
    scores[[0, 3]] = np.log(1e-5), 0.0
    head = PositionFreeAttention(
        num_tokens=2,
        k=2,
        log_scores=scores,
        values=np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        default=np.full(2, 0.5),
    )
    law = replace(single((1.0, 0.0), (1, 1), shapes=((0, 1),)), placement=SubsetPlacement(num_planted=2))
    case = BoundInputs(law=law, predictor=head, train_length=5, test_length=10)
    risk = {length: enumerated_risk(law, head, length, case.loss).mean for length in (5, 10)}
    assert risk[10] / risk[5] == pytest.approx(perm(8, 2) / perm(3, 2), abs=5e-3)
    assert no_locality_bound(case) / risk[10] == pytest.approx(1, abs=1e-3)


def long_case(train_length, test_length, gap_score=1e-4):
    """Build a case with one filler token, so that long lengths are quickly enumerated."""
    scores = np.log(np.array([[1.0, gap_score, 1.0, gap_score]]) * [[gap_score, 1.0, 1.0, 1.0]])
    values = np.tile([1.0, 0.0], (1, 4, 1))
    values[0, 2] = (0.0, 1.0)
    head = TabularAttention(
        num_tokens=2, shapes=np.array([[0, 1]]), log_scores=scores, values=values, default=np.full(2, 0.5)
    )
    law = single((1.0, 0.0), (1, 0), shapes=((0, 1),))
    return BoundInputs(law=law, predictor=head, train_length=train_length, test_length=test_length)


def test_the_bound_by_shortened_gaps_has_its_closed_form():
    for train_length, test_length in ((48, 52), (64, 66)):
        case = long_case(train_length, test_length)
        risk = enumerated_risk(case.law, case.predictor, test_length, case.loss).mean
        num_blocks = train_length // 16 - 2
        value = shortened_gaps_bound(case)
        assert value >= risk
        growth = test_length / train_length
        assert value == pytest.approx(
            32 * growth * case.largest_training_risk + 4 * growth * np.exp(-num_blocks / 2), rel=1e-9
        )


def test_white_box_bounds_have_no_more_distinct_summands_at_longer_lengths():
    case = random_case("clean", (3, 2, 2, 8, 30), seed=1)
    for cover_type in (GridWindowCover, ProportionalCover):
        number, longer = (
            len(count_distinct_pieces(replace(case, test_length=length), cover_type)) for length in (40, 60)
        )
        assert longer <= number + 8
        assert sum(count_distinct_pieces(case, cover_type).values()) <= 30 / 8 * 6


def test_a_sampled_bound_approaches_the_exact_one(rng):
    case = random_case("mixed", (2, 2, 2, 8, 12), seed=2)
    exact = known_scores_bound(case)
    values = [sampled_known_scores_bound(case, num_samples=samples) for samples in (100, 3000)]
    assert exact < values[1] < values[0]
    assert values[1] <= 1.6 * exact
    samples = rng.random((400, 50)) ** 4
    assert np.mean([sample.mean() + bernstein_margin(sample, 0.05) < 1 / 5 for sample in samples]) <= 0.05


SHIFTED = LengthDependentPlacement(
    until=(8,),
    laws=(LocalPlacement(shapes=((0, 1),), weights=(1.0,)), LocalPlacement(shapes=((0, 2),), weights=(1.0,))),
)


@dataclass(frozen=True)
class Growing:
    """Placement with one more planted token at lengths above eight."""

    name: ClassVar[str] = "growing"
    summary: ClassVar[str] = "more planted tokens at longer lengths"
    k: ClassVar[int] = 2
    max_span: ClassVar[int] = 3
    min_length: ClassVar[int] = 3

    def offset_distribution(self, length: int) -> OffsetDistribution:
        """Plant at the first tokens."""
        shape = (0, 1) if length <= 8 else (0, 1, 2)
        return OffsetDistribution(shapes=np.array([shape]), probability=np.eye(1, length))

    def sample(self, length, size, rng):
        """Raise, because bounds never sample sets."""
        raise NotImplementedError


class Opaque:
    """A predictor without scores and values."""

    def predict(self, tokens):
        """Predict equal probabilities."""
        return np.full((len(tokens), 2), 0.5)


@cache
def plain_case(span):
    sizes = Sizes(num_tokens=2, k=2, span=span, train_length=12, test_length=13)
    instance = random_instance("mixed", sizes, 0, num_heads=1)
    return BoundInputs(law=instance.law, predictor=instance.heads[0], train_length=12, test_length=13)


def good_case(span=2, **changes):
    return replace(plain_case(span), **changes)


def without_planted_scores(case):
    codes = case.law.tuple_codes(np.array(case.law.tuples))
    scores = case.predictor.log_scores.copy()
    scores[:, codes] = -np.inf
    return replace(case, predictor=replace(case.predictor, log_scores=scores))


def position_free_head(k=2):
    return PositionFreeAttention(
        num_tokens=2, k=k, log_scores=np.zeros(2**k), values=np.full((2**k, 2), 0.5), default=np.full(2, 0.5)
    )


def with_values_above_one(case):
    return replace(case, predictor=replace(case.predictor, values=case.predictor.values * 2))


COVER = (
    window_cover_bound,
    worst_case_risk_bound,
    largest_ratio_bound,
    proportional_cover_bound,
    label_noise_corrected_bound,
)
WHITE_BOX = (known_scores_bound, sampled_known_scores_bound)
NEED_KAPPA = (*NORM, *COVER, linear_bound)
NEED_ROOM = (*PUBLISHED, linear_bound_from_max_risk, linear_bound, linear_bound_from_mean_risk, shortened_gaps_bound)
NEED_LOCAL = (*NEED_KAPPA, *WHITE_BOX, shortened_gaps_bound, linear_bound_from_mean_risk)


def shifted_case(train_length):
    """Build a case with span 3 and another shape just above the training length."""
    law = replace(good_case().law, placement=replace(SHIFTED, until=(train_length,)))
    return good_case(3, law=law, train_length=train_length, test_length=train_length + 1)


NO_KAPPA = r"no finite kappa.*inf.*'heavy cuts'"
LACKS = r"lacks a set.*inf.*'rare shape'"
NEED_LINEAR = tuple(set(ALL) - set(NORM))
VIOLATIONS = {
    "kappa infinite": (NEED_KAPPA, lambda: without_planted_scores(good_case()), NO_KAPPA),
    "kappa infinite, 8 spans": (
        (linear_bound_from_mean_risk,),
        lambda: without_planted_scores(good_case(train_length=16, test_length=17)),
        NO_KAPPA,
    ),
    "eta infinite": (
        (*PUBLISHED, linear_bound_from_max_risk, linear_bound, largest_ratio_bound),
        lambda: shifted_case(12),
        LACKS,
    ),
    "eta infinite, 8 spans": ((linear_bound_from_mean_risk,), lambda: shifted_case(24), LACKS),
    "eta infinite, room for gaps": ((shortened_gaps_bound,), lambda: shifted_case(96), LACKS),
    "law not local": (
        NEED_LOCAL,
        lambda: good_case(law=replace(good_case().law, placement=SubsetPlacement(num_planted=2))),
        r"planted sets of placement 'subsets' are not local.*'growing gap'",
    ),
    "class not local": (
        NEED_LOCAL,
        lambda: good_case(predictor=position_free_head()),
        r"PositionFreeAttention is not local.*'unbounded reach'",
    ),
    "not relative": (
        ALL,
        lambda: good_case(predictor=Opaque()),
        r"Opaque may depend on absolute positions.*'absolute positions'",
    ),
    "no room": (
        NEED_ROOM,
        lambda: good_case(3, train_length=11),
        r"length 11 is below [48] times the span of 3.*(12|24).*'unbounded reach'",
    ),
    "shorter": (
        NEED_LOCAL[1:5],
        lambda: good_case(train_length=14),
        r"test length 13 is below training length 14",
    ),
    "k grows": (
        NEED_LOCAL,
        lambda: good_case(law=replace(good_case().law, placement=Growing()), train_length=8),
        r"length 13 contain 3 planted tokens instead of 2.*'growing k'",
    ),
    "loss not linear": (NEED_LINEAR, lambda: good_case(loss=NormLoss()), r"'norm' is not linear.*'canceling errors'"),
    "no probabilities": (
        ALL,
        lambda: with_values_above_one(good_case()),
        r"lies outside 0 to 1.*'canceling errors'",
    ),
    "not single": (
        (single_token_bound, single_token_group_bound),
        good_case,
        r"the law has 2 planted tokens, but this bound needs k = 1",
    ),
    "no whole number": (
        (single_token_group_bound,),
        lambda: random_case("mixed", (2, 1, 1, 8, 10), seed=0),
        r"but the lengths are 10 and 8; test at length 8",
    ),
    "sets not uniform": (
        (no_locality_bound,),
        lambda: good_case(predictor=position_free_head()),
        r"sets of placement 'local' are not equally likely",
    ),
    "not position free": (
        (no_locality_bound,),
        good_case,
        r"TabularAttention reads .* use a PositionFreeAttention",
    ),
    "odd": (
        (length_ratio_quadratic_bound, linear_bound_from_max_risk),
        lambda: good_case(train_length=9),
        r"length 9 is odd .* such as 8",
    ),
    "no gap": ((shortened_gaps_bound,), good_case, r"length 12 .* span 2; .* at least 48 .*'heavy cuts'"),
    "no label noise": (
        (label_noise_corrected_bound,),
        lambda: good_case(loss=AttentionLeakageLoss()),
        r"'leakage' has no label noise",
    ),
}


@pytest.mark.parametrize(
    ("bounds", "build", "message"), [pytest.param(*each, id=condition) for condition, each in VIOLATIONS.items()]
)
def test_a_violated_condition_raises_an_error_with_its_value_and_counterexample(bounds, build, message):
    case = build()
    for bound in bounds:
        with pytest.raises(BoundError, match=message):
            bound(case)


def test_a_shape_that_training_lacks_leaves_the_worst_risks_finite():
    law = replace(good_case().law, placement=SHIFTED)
    case = replace(good_case(3), law=law, train_length=8, test_length=9)
    with pytest.raises(BoundError, match="rare shape"):
        largest_ratio_bound(case)
    # All planted mass is new, so every piece may have the largest loss.
    assert worst_case_risk_bound(case) >= 1
    risk = enumerated_risk(law, case.predictor, 9, case.loss).mean
    assert window_cover_bound(case) >= risk


def test_a_predictor_with_another_k_than_the_law_raises():
    with pytest.raises(SettingError, match=r"reads 3 of 2 token IDs per set, but the law plants 2 of 2"):
        window_cover_bound(good_case(predictor=position_free_head(k=3)))


def test_invalid_sizes_and_samples_raise():
    with pytest.raises(SettingError, match=r"k 2, num_tokens 3 or span 1"):
        Sizes(num_tokens=3, k=2, span=1, train_length=8, test_length=9)
    with pytest.raises(SettingError, match=r"lengths 5 and 9 for span 4; use a training length of at least 7"):
        Sizes(num_tokens=3, k=2, span=4, train_length=5, test_length=9)
    with pytest.raises(UnknownNameError, match=r"unknown regime 'claen'; did you mean 'clean'"):
        random_instance("claen", Sizes(num_tokens=3, k=2, span=2, train_length=8, test_length=9), 0)
    with pytest.raises(SettingError, match=r"invalid num_samples 1 or failure_probability 0\.05"):
        sampled_known_scores_bound(good_case(), num_samples=1)


def test_instances_depend_on_the_seed_only_and_the_best_head_has_the_smallest_average_risk():
    sizes = Sizes(num_tokens=3, k=2, span=2, train_length=6, test_length=7)
    one, same, other = (random_instance("mixed", sizes, seed, num_heads=4) for seed in (1, 1, 2))
    assert one.law == same.law != other.law
    np.testing.assert_array_equal(one.heads[3].log_scores, same.heads[3].log_scores)
    averages = [
        BoundInputs(law=one.law, predictor=head, train_length=6, test_length=7).mean_training_risk for head in one.heads
    ]
    assert one.best_head(TotalVariationLoss()) is one.heads[int(np.argmin(averages))]


def test_every_bound_has_a_name_in_words_and_a_docstring():
    for name, bound in BOUNDS.items():
        assert " " in name
        assert bound.provenance in ("reconstructed", "derived here")
        assert bound.value.__doc__
