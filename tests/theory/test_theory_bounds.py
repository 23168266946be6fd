"""Every bound against exact risks, on random laws and heads, and every condition against a case that fails it."""

from dataclasses import dataclass, replace
from functools import cache
from math import perm
from typing import ClassVar

import numpy as np
import pytest
from tests.support.random_instances import Sizes, random_instance

from lengthwise.core.errors import SettingError, UnknownNameError
from lengthwise.core.randomness import stream
from lengthwise.tasks.planted.placement import ByLength, Local, ShapeLaw, Subsets
from lengthwise.tasks.planted.planted_task import Planted
from lengthwise.theory.attention.tabular import PositionFreeAttention, TabularAttention
from lengthwise.theory.bounds import BOUNDS, Differences, WithoutKappa
from lengthwise.theory.bounds.conditions import BoundError
from lengthwise.theory.bounds.extrapolation import Extrapolation
from lengthwise.theory.bounds.linear_loss import LargestRatio, WorstTransfer
from lengthwise.theory.bounds.sequence_cover import GridCover, ProportionalCover
from lengthwise.theory.bounds.white_box import Cut, SampledCut, bernstein_above, terms
from lengthwise.theory.risk.exact_risk import Distance, Leakage, TotalVariation, enumerated_risk
from lengthwise.theory.risk.laplace_risk import laplace_risk, laplace_risks

ROUNDING = 1e-12
NORM = ("F0", "F1", "F2", "F3", "F4", "A")
LOSSES = {loss.name: loss for loss in (TotalVariation(), Distance(), Leakage())}
# Regime, tokens, k, span, trained, tested: all small enough to enumerate.
SMALL = (
    ("clean", 3, 1, 1, 4, 7),
    ("mixed", 2, 1, 1, 8, 9),
    ("clean", 3, 2, 2, 8, 10),
    ("mixed", 2, 2, 2, 8, 10),
    ("mixed", 3, 2, 2, 8, 9),
    ("clean", 2, 2, 2, 16, 18),
    ("clean", 2, 3, 3, 12, 14),
)
# What every proved bound has to answer to at least once over SMALL.
EVERY = set(BOUNDS) - {"B6", "C"}


def fitted_case(regime, numbers, seed, num_heads=2):
    names = ("num_tokens", "k", "span", "trained", "tested")
    sizes = Sizes(**dict(zip(names, numbers, strict=True)))
    instance = random_instance(regime, sizes, seed, num_heads)
    head = instance.fitted(TotalVariation())
    return Extrapolation(law=instance.law, predictor=head, trained=sizes.trained, tested=sizes.tested)


def bounds_above(case, names):
    """How far each bound is above the exact risk; those whose condition fails are left out."""
    truth = enumerated_risk(case.law, case.predictor, case.tested, case.loss).mean
    found = {}
    for name in names:
        bound = SampledCut(samples=300) if name == "B0_sampled" else BOUNDS[name]()
        try:
            found[name] = bound.value(case) - truth
        except BoundError:
            continue
        assert found[name] >= -ROUNDING, (name, case, truth)
    return found


def no_bound_fails(sizes, seeds):
    answered = dict.fromkeys(BOUNDS, 0)
    for regime, *numbers in sizes:
        for seed in seeds:
            case = fitted_case(regime, numbers, seed)
            found = [*bounds_above(case, EVERY)]
            found += bounds_above(replace(case, loss=Distance()), NORM)
            found += bounds_above(replace(case, loss=Leakage()), EVERY - set(NORM) - {"B5"})
            for name in found:
                answered[name] += 1
    return answered


def test_no_bound_is_below_the_exact_risk():
    answered = no_bound_fails(SMALL, range(2))
    assert min(answered[name] for name in EVERY) >= 2


def silent(sizes):
    """The bounds that have no room, or no groups, at these sizes."""
    _, _, k, span, trained, tested = sizes
    found = set() if trained >= 8 * span else {"B3"}
    if k > 1:
        return found | {"B1", "B1_power"}
    return found | ({"B1_power"} if (tested - 1) % (trained - 1) else set())


# Odd lengths, and less room than four spans.
TIGHT = (
    ("mixed", 2, 2, 2, 5, 8),
    ("clean", 3, 2, 2, 7, 9),
    ("mixed", 2, 3, 3, 7, 9),
    ("mixed", 2, 1, 1, 9, 11),
    ("clean", 2, 2, 2, 9, 11),
)


@pytest.mark.parametrize("sizes", TIGHT, ids=str)
def test_no_bound_is_below_the_exact_risk_with_little_room_or_at_an_odd_length(sizes):
    answered = no_bound_fails([sizes], range(6))
    _, _, _, span, trained, _ = sizes
    assert answered["B"] == 12
    assert answered["B2"] == (12 if trained >= 4 * span else 0)


def gap_case(regime, seed):
    """Too long to enumerate: the risks of all lengths of training by their Laplace transform."""
    sizes = Sizes(num_tokens=3, k=2, span=2, trained=192, tested=240)
    instance = random_instance(regime, sizes, seed, num_heads=1)
    law, head = instance.law, instance.heads[0]
    risks = laplace_risks(law, head, sizes.lengths, TotalVariation()).tolist()
    known = dict(zip(sizes.lengths, risks, strict=True))
    return Extrapolation(
        law=law, predictor=head, trained=192, tested=240, risk=lambda law, head, length, loss: known[length]
    )


def no_shortened_gap_fails(regime, seeds):
    found = []
    for seed in seeds:
        case = gap_case(regime, seed)
        truth = laplace_risk(case.law, case.predictor, 240, case.loss)
        found.append(WithoutKappa().value(case))
        assert found[-1] >= truth - ROUNDING, (case, truth)
    return found


@pytest.mark.parametrize("regime", ["clean", "mixed"])
def test_shortened_gaps_need_no_kappa_in_random_laws(regime):
    assert len(no_shortened_gap_fails(regime, range(2))) == 2


@pytest.mark.slow
def test_shortened_gaps_need_no_kappa_in_three_hundred_random_laws():
    # Some of them say something.
    assert min(no_shortened_gap_fails("clean", range(150))) < 1
    assert len(no_shortened_gap_fails("mixed", range(150))) == 150


# Enough of each for three hundred instances of every bound that answers there.
MANY = dict(zip(SMALL, (300, 150, 50, 50, 50, 150, 50), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SMALL, ids=str)
def test_no_bound_is_below_the_exact_risk_in_hundreds_of_instances(sizes):
    answered = no_bound_fails([sizes], range(MANY[sizes]))
    assert answered["B"] == 2 * MANY[sizes]
    assert answered["F0"] == 2 * MANY[sizes]
    assert min(answered[name] for name in EVERY - silent(sizes)) >= MANY[sizes]


def test_bounds_order_as_their_proofs_do():
    for regime, *numbers in SMALL[2:5]:
        case = fitted_case(regime, numbers, seed=3)
        value = {name: BOUNDS[name]().value(case) for name in EVERY - {"B1", "B1_power", "B3"}}
        assert Cut(cover=GridCover).value(case) <= value["B"] <= value["B_transfer"] + ROUNDING
        assert value["B_transfer"] <= value["B_push"] + ROUNDING
        assert value["B_push"] <= value["B2"]
        assert value["F2"] <= value["F1"] <= value["F0"]
        assert value["F4"] <= value["F3"]


def single(background, planted, shapes=((0,),)):
    """A law that plants always the same, and says always the same."""
    return Planted(
        background=background,
        tuples=(planted,),
        probabilities=(1.0,),
        labels=((0.0, 1.0),),
        placement=Local(shapes=shapes, weights=(1 / len(shapes),) * len(shapes)),
    )


def test_closed_forms_are_what_they_say_where_all_factors_are_known():
    # Weight e on each filler, which says the wrong thing: risk e (l - 1) / (1 + e (l - 1)), kappa and rho0 of 1.
    scores = np.log([[1e-3, 1.0]])
    head = TabularAttention(
        num_tokens=2,
        shapes=np.array([[0]]),
        log_scores=scores,
        values=np.array([[[1.0, 0.0], [0.0, 1.0]]]),
        default=np.full(2, 0.5),
    )
    case = Extrapolation(law=single((1.0, 0.0), (1,)), predictor=head, trained=8, tested=22)
    risk = {length: 1e-3 * (length - 1) / (1 + 1e-3 * (length - 1)) for length in range(4, 9)}
    average, worst = np.mean(list(risk.values())), risk[8]
    expected = {
        "F0": 3 * 8 * 22 * 8 * 22**2 * average,
        "F1": 3 * 8 * 22 * 8 * 22**2 * average,
        "F2": 3 * 8 * 22 * 22**2 * worst,
        "F3": 48 * (22 / 8) ** 2 * worst,
        "F4": 48 * 22 / 8 * worst,
        "B1": 3 * worst,
        "B1_power": 1 - (1 - worst) ** 3,
        "B2": 16 * 22 / 8 * worst,
        "B3": 40 * 22 / 8 * average,
    }
    for name, value in expected.items():
        assert BOUNDS[name]().value(case) == pytest.approx(value, rel=1e-9), name
    assert BOUNDS["B2"]().value(replace(case, trained=7)) == pytest.approx(20 * 22 / 7 * risk[7], rel=1e-9)


def test_linear_growth_is_attained_by_small_weights_on_fillers():
    scores = np.log([[1e-6, 1.0]])
    values = np.array([[[1.0, 0.0], [0.0, 1.0]]])
    head = TabularAttention(
        num_tokens=2, shapes=np.array([[0]]), log_scores=scores, values=values, default=np.full(2, 0.5)
    )
    case = Extrapolation(law=single((1.0, 0.0), (1,)), predictor=head, trained=5, tested=40)
    truth = enumerated_risk(case.law, head, 40, case.loss).mean
    assert 1 <= BOUNDS["B1"]().value(case) / truth <= 1.0001


def heavy_joints(digits=3, heavy=1e9):
    """Only ``star 0 1 .. x`` goes wrong, and every shorter sequence made of its pieces is outweighed."""
    star, x, size = digits, digits + 1, digits + 2
    scores, values = np.full((size, size), heavy), np.tile([1.0, 0.0], (size, size, 1))
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
    return Extrapolation(law=law, predictor=head, trained=4, tested=5)


def test_heavy_joints_break_the_square_without_kappa_and_not_the_cover_with_it():
    case = heavy_joints()
    risks = [enumerated_risk(case.law, case.predictor, length, case.loss).mean for length in (2, 3, 4, 5)]
    assert max(risks[:2]) <= 1e-15
    assert risks[2] == pytest.approx(2.7e-11, rel=0.05)
    assert risks[3] == pytest.approx(1.0e-3, rel=0.05)
    # eta_L = 3 and eta_N = 4 for adjacent pairs at a uniform place.
    without_kappa = 3 * 3 * 4 * 4 * 5**2 * np.mean(risks[:3])
    assert risks[3] > 1e4 * without_kappa
    assert BOUNDS["B"]().value(case) >= risks[3]
    assert case.joint_weight.planted_peak((False, True)).max() == pytest.approx(1 + 1e9)
    unweighted = BOUNDS["B"]().value(case) / case.joint_weight.kappa((False, True)).max()
    assert unweighted < risks[3]


def test_one_trained_length_bounds_no_loss_in_which_errors_cancel():
    # Right in the mean of five tokens, wrong at any other length.
    values = np.array([[[0.0, 1.0], [1.0, 0.0]]])
    head = TabularAttention(
        num_tokens=2,
        shapes=np.array([[0]]),
        log_scores=np.log([[1.0, 1.0]]),
        values=values,
        default=np.full(2, 0.5),
    )
    law = replace(single((1.0, 0.0), (1,)), labels=((0.2, 0.8),))
    case = Extrapolation(law=law, predictor=head, trained=5, tested=10, loss=Distance())
    assert case.mean(5) == pytest.approx(0, abs=1e-12)
    truth = enumerated_risk(law, head, 10, Distance()).mean
    assert truth == pytest.approx(0.1)
    assert Differences().value(case) >= truth
    with pytest.raises(BoundError, match=r"'norm' is not linear.*C6"):
        BOUNDS["B"]().value(case)


def position_free_case(seed, k, trained, tested):
    rng = stream(seed, "position free", k)
    tokens = int(rng.integers(2, 4)) if k < 3 else 2
    codes = tokens**k
    number = int(rng.integers(1, 4))
    chosen = rng.choice(codes, size=min(number, codes), replace=False)
    digits = chosen[:, None] // tokens ** np.arange(k - 1, -1, -1) % tokens
    law = Planted(
        background=tuple(rng.dirichlet(np.ones(tokens))),
        tuples=tuple(map(tuple, digits.tolist())),
        probabilities=tuple(rng.dirichlet(np.ones(len(chosen)))),
        labels=tuple(map(tuple, rng.dirichlet(np.full(2, 0.3), size=len(chosen)).tolist())),
        placement=Subsets(num_planted=k),
    )
    right = np.where(law.tuple_law > 0, rng.uniform(0, 8), 0.0)
    head = PositionFreeAttention(
        num_tokens=tokens,
        k=k,
        log_scores=rng.normal(size=codes) + right,
        values=np.where((law.tuple_law > 0)[:, None], law.label_law, rng.dirichlet(np.ones(2), size=codes)),
        default=np.full(2, 0.5),
    )
    return Extrapolation(law=law, predictor=head, trained=trained, tested=tested)


def no_position_free_head_fails(seeds):
    ratios = []
    for seed in seeds:
        for k, trained, tested in ((1, 3, 8), (2, 4, 7), (2, 5, 7), (3, 6, 8)):
            case = position_free_case(seed, k, trained, tested)
            truth = enumerated_risk(case.law, case.predictor, tested, case.loss).mean
            ratios.append(BOUNDS["B6"]().value(case) / truth)
    assert min(ratios) >= 1 - ROUNDING
    return ratios


def test_without_places_the_risk_grows_at_most_with_the_power_k():
    assert len(no_position_free_head_fails(range(8))) == 32


@pytest.mark.slow
def test_without_places_the_risk_grows_at_most_with_the_power_k_in_three_hundred_instances():
    assert len(no_position_free_head_fails(range(75))) == 300


def test_without_places_the_power_k_and_its_constant_are_attained():
    scores = np.full(4, -np.inf)
    scores[[0, 3]] = np.log(1e-5), 0.0
    head = PositionFreeAttention(
        num_tokens=2,
        k=2,
        log_scores=scores,
        values=np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]),
        default=np.full(2, 0.5),
    )
    law = replace(single((1.0, 0.0), (1, 1), shapes=((0, 1),)), placement=Subsets(num_planted=2))
    case = Extrapolation(law=law, predictor=head, trained=5, tested=10)
    risk = {length: enumerated_risk(law, head, length, case.loss).mean for length in (5, 10)}
    assert risk[10] / risk[5] == pytest.approx(perm(8, 2) / perm(3, 2), abs=5e-3)
    assert BOUNDS["B6"]().value(case) / risk[10] == pytest.approx(1, abs=1e-3)


def long_case(trained, tested, gap_score=1e-4):
    """One filler token, so that long lengths are quickly enumerated."""
    scores = np.log(np.array([[1.0, gap_score, 1.0, gap_score]]) * [[gap_score, 1.0, 1.0, 1.0]])
    values = np.tile([1.0, 0.0], (1, 4, 1))
    values[0, 2] = (0.0, 1.0)
    head = TabularAttention(
        num_tokens=2, shapes=np.array([[0, 1]]), log_scores=scores, values=values, default=np.full(2, 0.5)
    )
    law = single((1.0, 0.0), (1, 0), shapes=((0, 1),))
    return Extrapolation(law=law, predictor=head, trained=trained, tested=tested)


def test_shortened_gaps_need_no_kappa():
    for trained, tested in ((48, 52), (64, 66)):
        case = long_case(trained, tested)
        truth = enumerated_risk(case.law, case.predictor, tested, case.loss).mean
        kept = trained // 16 - 2
        value = WithoutKappa().value(case)
        assert value >= truth
        growth = tested / trained
        assert value == pytest.approx(32 * growth * case.worst + 4 * growth * np.exp(-kept / 2), rel=1e-9)


def test_certificates_need_no_more_summands_for_longer_sequences():
    case = fitted_case("clean", (3, 2, 2, 8, 30), seed=1)
    for kind in (GridCover, ProportionalCover):
        number, longer = (len(terms(replace(case, tested=tested), kind)) for tested in (40, 60))
        assert longer <= number + 8
        assert sum(terms(case, kind).values()) <= 30 / 8 * 6


def test_a_sampled_certificate_comes_down_to_the_exact_one(rng):
    case = fitted_case("mixed", (2, 2, 2, 8, 12), seed=2)
    exact = BOUNDS["B0"]().value(case)
    values = [SampledCut(samples=samples).value(case) for samples in (100, 3000)]
    assert exact < values[1] < values[0]
    assert values[1] <= 1.6 * exact
    drawn = rng.random((400, 50)) ** 4
    assert np.mean([bernstein_above(row, 0.05) < 1 / 5 for row in drawn]) <= 0.05


SHIFTED = ByLength(until=(8,), laws=(Local(shapes=((0, 1),), weights=(1.0,)), Local(shapes=((0, 2),), weights=(1.0,))))


@dataclass(frozen=True)
class Growing:
    """Plants one more token at lengths beyond eight."""

    name: ClassVar[str] = "growing"
    summary: ClassVar[str] = "more and more planted tokens"
    k: ClassVar[int] = 2
    span: ClassVar[int] = 3
    min_length: ClassVar[int] = 3

    def law(self, length: int) -> ShapeLaw:
        """At the first place always."""
        shape = (0, 1) if length <= 8 else (0, 1, 2)
        return ShapeLaw(shapes=np.array([shape]), probability=np.eye(1, length))

    def sample(self, length, size, rng):
        """Never asked for."""
        raise NotImplementedError


class Black:
    """Answers, and tells nothing about itself."""

    def predict(self, tokens):
        """Even chances."""
        return np.full((len(tokens), 2), 0.5)


@cache
def plain_case(span):
    sizes = Sizes(num_tokens=2, k=2, span=span, trained=12, tested=13)
    instance = random_instance("mixed", sizes, 0, num_heads=1)
    return Extrapolation(law=instance.law, predictor=instance.heads[0], trained=12, tested=13)


def good_case(span=2, **changes):
    return replace(plain_case(span), **changes)


def muted(case):
    """Without any score for what is planted, and with all others apart."""
    codes = case.law.codes(np.array(case.law.tuples))
    scores = case.predictor.log_scores.copy()
    scores[:, codes] = -np.inf
    return replace(case, predictor=replace(case.predictor, log_scores=scores))


def free_head(k=2):
    return PositionFreeAttention(
        num_tokens=2, k=k, log_scores=np.zeros(2**k), values=np.full((2**k, 2), 0.5), default=np.full(2, 0.5)
    )


def beyond_one(case):
    return replace(case, predictor=replace(case.predictor, values=case.predictor.values * 2))


NEED_KAPPA = ("F0", "F1", "F2", "F3", "F4", "A", "B", "B_transfer", "B_push", "B2", "B4", "B5")
NEED_ROOM = ("F0", "F1", "F2", "F3", "F4", "B2", "B3", "C")
NEED_LOCAL = (*NEED_KAPPA, "B0", "B0_sampled", "C", "B3")


def shifted_case(trained):
    """Span 3, and another shape just beyond training."""
    law = replace(good_case().law, placement=replace(SHIFTED, until=(trained,)))
    return good_case(3, law=law, trained=trained, tested=trained + 1)


LACKS = r"lacks a set.*inf.*C3"
NEED_LINEAR = tuple(set(BOUNDS) - set(NORM))
REFUSED = {
    "kappa infinite": (NEED_KAPPA, lambda: muted(good_case()), r"no finite kappa.*inf.*C8"),
    "kappa infinite, 8 spans": (("B3",), lambda: muted(good_case(trained=16, tested=17)), r"no finite kappa.*inf.*C8"),
    "eta infinite": (("F0", "F1", "F2", "F3", "F4", "B2", "B_push"), lambda: shifted_case(12), LACKS),
    "eta infinite, 8 spans": (("B3",), lambda: shifted_case(24), LACKS),
    "eta infinite, room for gaps": (("C",), lambda: shifted_case(96), LACKS),
    "law not local": (
        NEED_LOCAL,
        lambda: good_case(law=replace(good_case().law, placement=Subsets(num_planted=2))),
        r"planted sets of 'subsets' are not local \(counterexample C2a\)",
    ),
    "class not local": (NEED_LOCAL, lambda: good_case(predictor=free_head()), r"class is not local.*C2b"),
    "not relative": (tuple(BOUNDS), lambda: good_case(predictor=Black()), r"Black.* \(counterexample C4\)"),
    "no room": (
        NEED_ROOM,
        lambda: good_case(3, trained=11),
        r"length 11 is below [48] times the span of 3.*(12|24).*C2b",
    ),
    "shorter": (NEED_LOCAL[1:5], lambda: good_case(trained=14), r"tested length 13 is below trained length 14"),
    "k grows": (
        NEED_LOCAL,
        lambda: good_case(law=replace(good_case().law, placement=Growing()), trained=8),
        r"length 13 plants 3 tokens and not 2 \(counterexample C1",
    ),
    "loss not linear": (NEED_LINEAR, lambda: good_case(loss=Distance()), r"'norm' is not linear.*C6"),
    "no probabilities": (tuple(BOUNDS), lambda: beyond_one(good_case()), r"lies outside 0 to 1.*C6"),
    "not single": (("B1", "B1_power"), good_case, r"2 planted tokens: .*C1"),
    "no whole number": (
        ("B1_power",),
        lambda: fitted_case("mixed", (2, 1, 1, 8, 10), seed=0),
        r"8 and 10 make no whole number of groups; test at 8",
    ),
    "sets not alike": (("B6",), lambda: good_case(predictor=free_head()), r"'local' has sets that are likelier"),
    "not position free": (("B6",), good_case, r"is for a PositionFreeAttention, not TabularAttention"),
    "odd": (("F3", "F4"), lambda: good_case(trained=9), r"trained length 9 is odd .* use 8"),
    "no gap": (("C",), good_case, r"trained length 12 .* span 2 \(counterexample C8\); train at 48"),
    "no floor": (("B5",), lambda: good_case(loss=Leakage()), r"'leakage' has no floor"),
}


@pytest.mark.parametrize(
    ("names", "build", "message"), [pytest.param(*each, id=condition) for condition, each in REFUSED.items()]
)
def test_a_bound_whose_condition_fails_says_which_and_what_came(names, build, message):
    case = build()
    for name in names:
        with pytest.raises(BoundError, match=message):
            BOUNDS[name]().value(case)


def test_a_shape_that_training_lacks_leaves_the_worst_transfer_finite():
    law = replace(good_case().law, placement=SHIFTED)
    case = replace(good_case(3), law=law, trained=8, tested=9)
    for kind in (GridCover,):
        with pytest.raises(BoundError, match="C3"):
            LargestRatio(cover=kind).value(case)
        # All of the planted mass is new, so every piece may cost as much as can be.
        assert WorstTransfer(cover=kind).value(case) >= 1
    truth = enumerated_risk(law, case.predictor, 9, case.loss).mean
    assert BOUNDS["B"]().value(case) >= truth


def test_a_predictor_of_other_tokens_than_the_law_is_refused():
    with pytest.raises(SettingError, match=r"sets of 3 out of 2 tokens, the law plants 2 out of 2"):
        BOUNDS["B"]().value(good_case(predictor=free_head(k=3)))


def test_sizes_and_samples_that_make_no_sense_are_refused():
    with pytest.raises(SettingError, match=r"2 of 3 tokens in a span of 1"):
        Sizes(num_tokens=3, k=2, span=1, trained=8, tested=9)
    with pytest.raises(SettingError, match=r"lengths 5 and 9 with span 4: train at 8 or longer"):
        Sizes(num_tokens=3, k=2, span=4, trained=5, tested=9)
    with pytest.raises(UnknownNameError, match=r"unknown regime 'claen'; did you mean 'clean'"):
        random_instance("claen", Sizes(num_tokens=3, k=2, span=2, trained=8, tested=9), 0)
    with pytest.raises(SettingError, match=r"1 samples and failure 0\.05"):
        SampledCut(samples=1)


def test_instances_are_the_same_for_the_same_seed_and_the_fitted_head_is_the_best():
    sizes = Sizes(num_tokens=3, k=2, span=2, trained=6, tested=7)
    one, same, other = (random_instance("mixed", sizes, seed, num_heads=4) for seed in (1, 1, 2))
    assert one.law == same.law != other.law
    np.testing.assert_array_equal(one.heads[3].log_scores, same.heads[3].log_scores)
    averages = [Extrapolation(law=one.law, predictor=head, trained=6, tested=7).average for head in one.heads]
    assert one.fitted(TotalVariation()) is one.heads[int(np.argmin(averages))]


def test_pieces_longer_than_training_are_refused():
    with pytest.raises(BoundError, match=r"pieces of 14 tokens, beyond the trained 12"):
        Differences(window=8, chunk=5).value(good_case())


def test_every_bound_says_where_it_comes_from_and_what_it_needs():
    for name, bound in BOUNDS.items():
        assert bound.name == name
        assert bound.provenance in ("paper", "reconstructed", "derived here")
        assert bound.needs
        assert bound.__doc__
