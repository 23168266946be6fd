"""Exact empirical risk minimization over a finite class of predictors."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.planted_laws import random_attention, random_law, single_tokens

from lengthwise.core.errors import SettingError, UnknownNameError
from lengthwise.tasks.planted.placement import LengthDependentPlacement, LocalPlacement, SubsetPlacement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.counterexamples import COUNTEREXAMPLES
from lengthwise.theory.risk.bayes import BayesPredictor
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, NormLoss, TotalVariationLoss, enumerated_risk
from lengthwise.theory.risk.laplace_transform import laplace_risks
from lengthwise.theory.risk.risk_at_length import exact_erm, exact_risks, training_lengths


def test_training_lengths_are_the_upper_half_of_all_lengths():
    assert training_lengths(6) == (3, 4, 5, 6)
    assert training_lengths(7) == (4, 5, 6, 7)
    assert training_lengths(1) == (1,)


@pytest.mark.parametrize(("objective", "of"), [("averaged", np.mean), ("minimax", np.max)])
@pytest.mark.parametrize("loss", [TotalVariationLoss(), NormLoss(), AttentionLeakageLoss()], ids=lambda loss: loss.name)
def test_the_minimizer_has_the_smallest_objective_of_enumerated_risks(objective, of, loss, rng):
    law = random_law(rng, 3, 2, 3)
    predictors = [random_attention(rng, 3, 2, 3) for _ in range(6)]
    minimizer = exact_erm(law, predictors, training_lengths(6), loss, objective)
    expected = [[enumerated_risk(law, each, length, loss).mean for length in (3, 4, 5, 6)] for each in predictors]
    objectives = [of(risks) for risks in expected]
    assert minimizer.risks == pytest.approx(np.array(expected), abs=1e-10)
    assert minimizer.objective == pytest.approx(objectives, abs=1e-10)
    assert minimizer.best == np.argmin(objectives)
    assert minimizer.ties == (minimizer.best,)
    assert minimizer.lengths == (3, 4, 5, 6)


def pairs_further_apart_after(length: int) -> PlantedCorrelations:
    """Build a law that plants a pair of tokens 1, adjacent up to a length and at distance 2 beyond."""
    near, far = (LocalPlacement(shapes=(shape,), weights=(1.0,)) for shape in ((0, 1), (0, 2)))
    return PlantedCorrelations(
        background=(1.0, 0.0),
        tuples=((1, 1),),
        probabilities=(1.0,),
        labels=((1.0, 0.0),),
        placement=LengthDependentPlacement(until=(length,), laws=(near, far)),
    )


def reader(near: float, far: float) -> TabularAttention:
    """Build an attention to pairs of tokens 1; the arguments are its probability of the right label by distance."""
    right = np.array([near, far])[:, None, None]
    return TabularAttention(
        num_tokens=2,
        shapes=np.array([[0, 1], [0, 2]]),
        log_scores=np.tile([-np.inf, -np.inf, -np.inf, 0.0], (2, 1)),
        values=np.tile(np.concatenate([right, 1 - right], axis=2), (1, 4, 1)),
        default=np.array([0.3, 0.7]),
    )


def test_the_two_objectives_may_have_different_minimizers():
    law, predictors = pairs_further_apart_after(4), [reader(1.0, 0.5), reader(0.7, 0.7)]
    assert exact_erm(law, predictors, (3, 4, 5), TotalVariationLoss(), "averaged").best == 0
    assert exact_erm(law, predictors, (3, 4, 5), TotalVariationLoss(), "minimax").best == 1


@pytest.mark.parametrize(
    ("until", "is_reversed", "averaged_risk", "minimax_risk"), [(4, False, 0.5, 0.3), (3, True, 0.0, 0.3)]
)
def test_either_objective_may_have_the_smaller_risk_at_longer_lengths(until, is_reversed, averaged_risk, minimax_risk):
    # The longer length has the pairs of the worst training length, or those of the others.
    law, predictors = pairs_further_apart_after(until), [reader(1.0, 0.5), reader(0.7, 0.7)]
    if is_reversed:
        law = replace(law, placement=LengthDependentPlacement(until=(until,), laws=law.placement.laws[::-1]))
    for objective, expected in (("averaged", averaged_risk), ("minimax", minimax_risk)):
        best = exact_erm(law, predictors, (3, 4, 5), TotalVariationLoss(), objective).best
        assert exact_risks(law, predictors[best], [20], TotalVariationLoss())[0] == pytest.approx(expected, abs=1e-12)


def test_predictors_that_differ_only_at_longer_lengths_are_ties():
    law, both, near = pairs_further_apart_after(6), reader(1.0, 1.0), reader(1.0, 1.0)
    near.log_scores[1] = -np.inf
    minimizer = exact_erm(law, [reader(0.0, 0.0), near, both], training_lengths(6), TotalVariationLoss())
    assert (minimizer.best, minimizer.ties) == (1, (1, 2))
    assert exact_risks(law, both, [9], TotalVariationLoss())[0] == pytest.approx(0, abs=1e-14)
    # No set has a score at a distance outside training, so the default applies.
    assert exact_risks(law, near, [9], TotalVariationLoss())[0] == pytest.approx(0.7, abs=1e-14)


def test_attentions_are_compared_at_lengths_too_long_to_enumerate(rng):
    law, weak = single_tokens(1e-3)
    _, strong = single_tokens(1e-6)
    minimizer = exact_erm(law, [weak, strong], (500, 1000), TotalVariationLoss(), "minimax")
    assert minimizer.best == 1
    assert exact_risks(
        random_law(rng, 3, 2, 3), random_attention(rng, 3, 2, 3), [300], AttentionLeakageLoss()
    ).shape == (1,)
    assert minimizer.objective == pytest.approx([0.999 / 1.999, 999e-6 / 1.000999], rel=1e-10)


def test_a_head_with_a_wide_span_is_compared_by_enumeration():
    case = COUNTEREXAMPLES["unbounded reach"].build_case(9)
    with pytest.raises(SettingError, match=r"span 9 and 3 tokens make .* scores, more than"):
        laplace_risks(case.law, case.learned_head, [9], TotalVariationLoss())
    minimizer = exact_erm(case.law, [case.learned_head, case.witness_head], training_lengths(6), TotalVariationLoss())
    assert minimizer.ties == (0, 1)
    expected = enumerated_risk(case.law, case.learned_head, 9, TotalVariationLoss()).mean
    assert exact_risks(case.law, case.learned_head, [9], TotalVariationLoss()) == pytest.approx([expected])


def test_any_predictor_and_any_placement_can_be_compared(rng):
    law = random_law(rng, 2, 2, 2, SubsetPlacement())
    predictors = [random_attention(rng, 2, 2, 3), BayesPredictor(law)]
    assert exact_erm(law, predictors, (4, 5), NormLoss()).risks.shape == (2, 2)


def test_invalid_objectives_lengths_and_empty_classes_raise(rng):
    law, attention = single_tokens(0.1)
    with pytest.raises(UnknownNameError, match=r"unknown objective 'average'; did you mean 'averaged'"):
        exact_erm(law, [attention], (3,), TotalVariationLoss(), "average")
    with pytest.raises(SettingError, match=r"0 predictors and 1 lengths"):
        exact_erm(law, [], (3,), TotalVariationLoss())
    with pytest.raises(SettingError, match=r"longest training length 0"):
        training_lengths(0)
