"""Growth curves fitted to short lengths, against exact risks at longer lengths."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.planted_laws import random_attention, random_law, single_tokens
from theory_transformers import predicted_horizon

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.tabular import TabularAttention
from lengthwise.theory.risk.bayes import LogLoss
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, NormLoss, TotalVariationLoss, enumerated_risk
from lengthwise.theory.risk.growth_curves import (
    RiskGrowthCurve,
    asymptotic_risk,
    extrapolate_by_secant,
    fit_growth_curve,
)
from lengthwise.theory.risk.laplace_transform import laplace_log_loss, laplace_risk, laplace_risks
from lengthwise.theory.risk.risk_at_length import sampled_risk

SHORT = (4, 6, 8, 12, 16)
PAIRS = PlantedCorrelations(probabilities=(0.4, 0.2, 0.1, 0.3))


def pair_reader(rng: np.random.Generator, gap: float, spread: float) -> TabularAttention:
    """Build an attention with right values for planted pairs, and log scores around ``-gap`` for background."""
    attention = random_attention(rng, 4, 2, 3, spread=spread)
    attention.log_scores[:] -= gap
    marked = PAIRS.tuple_codes(np.array(PAIRS.tuples))
    attention.log_scores[:, marked] = 0.0
    attention.values[:, marked] = np.array(PAIRS.labels)
    return attention


def with_background_score(attention: TabularAttention, log_score: float) -> TabularAttention:
    """Set the log score of all pairs of background tokens; pairs that overlap the planted one are unchanged."""
    background = [first * 4 + second for first in (0, 1) for second in (0, 1)]
    log_scores = attention.log_scores.copy()
    log_scores[:, background] = log_score
    return replace(attention, log_scores=log_scores)


@pytest.mark.parametrize("score", [1e-6, 1e-2, 0.5])
def test_with_one_background_weight_the_odds_law_is_exact(score):
    law, attention = single_tokens(score)
    risks = laplace_risks(law, attention, SHORT, TotalVariationLoss())
    # Linear growth: small risks are proportional to the number of other tokens.
    if score == 1e-6:
        long = laplace_risk(law, attention, 160, TotalVariationLoss())
        assert long / risks[-1] == pytest.approx(159 / 15, rel=2e-4)
    assert asymptotic_risk(law, attention) == pytest.approx(1)
    exact = laplace_risk(law, attention, 4096, TotalVariationLoss())
    assert fit_growth_curve(SHORT, risks, 1.0).risk_at(4096) == pytest.approx(exact, rel=1e-6)


def test_leakage_of_single_tokens_is_concave_in_the_length_and_bounded_by_secants(rng):
    lengths = [2, 3, 4, 6, 9, 15, 40, 100, 1000]
    for spread in (0.3, 1.0, 3.0, 10.0) * 5:
        law, attention = random_law(rng, 3, 1, 1), random_attention(rng, 3, 1, 1, spread=spread)
        risks = laplace_risks(law, attention, lengths, AttentionLeakageLoss())
        assert np.diff(np.diff(risks) / np.diff(lengths)).max() < 1e-12
        for last in range(2, 5):
            for length, risk in zip(lengths[last:], risks[last:], strict=True):
                assert extrapolate_by_secant(lengths[:last], risks[:last], length) >= risk - 1e-12


def test_a_secant_extrapolates_the_line_through_the_first_and_the_last_length():
    assert extrapolate_by_secant([1, 2, 4], [0.0, 0.1, 0.4], 7) == pytest.approx(0.8)


@pytest.mark.parametrize("loss", [TotalVariationLoss(), AttentionLeakageLoss()], ids=lambda loss: loss.name)
def test_lengths_up_to_16_predict_the_risk_at_512_within_2_percent_and_the_secant_is_far_above(loss, rng):
    attention = pair_reader(rng, 7.0, 0.7)
    risks = laplace_risks(PAIRS, attention, SHORT, loss)
    exact = laplace_risk(PAIRS, attention, 512, loss)
    assert fit_growth_curve(SHORT, risks, asymptotic_risk(PAIRS, attention, loss)).risk_at(512) == pytest.approx(
        exact, rel=0.02
    )
    assert extrapolate_by_secant(SHORT, risks, 512) > 1.3 * exact


def test_the_risk_converges_to_that_of_the_mean_value_of_background(rng):
    attention = pair_reader(rng, 1.0, 1.0)
    end = asymptotic_risk(PAIRS, attention)
    risks = laplace_risks(PAIRS, attention, [64, 1024, 16384], TotalVariationLoss())
    assert np.abs(risks - end)[2] < 1e-3 < np.abs(risks - end)[0]
    assert (np.abs(risks - end)[1:] < np.abs(risks - end)[:-1] / 10).all()
    assert asymptotic_risk(PAIRS, attention, AttentionLeakageLoss()) == 1
    assert laplace_risk(PAIRS, attention, 16384, AttentionLeakageLoss()) > 0.999


def test_the_limit_for_other_losses_is_also_that_of_the_mean_value(rng):
    attention = pair_reader(rng, 1.0, 1.0)
    assert asymptotic_risk(PAIRS, attention, LogLoss()) == pytest.approx(
        laplace_log_loss(PAIRS, attention, 4096), abs=0.01
    )
    sample = sampled_risk(PAIRS, attention, 2048, NormLoss(), 100, rng)
    assert asymptotic_risk(PAIRS, attention, NormLoss()) == pytest.approx(sample.mean, abs=4 * sample.standard_error)
    assert sample.standard_error < 0.02


def test_without_weight_on_background_the_limit_is_the_risk_far_from_the_ends(rng):
    attention = with_background_score(pair_reader(rng, 2.0, 1.0), -np.inf)
    for loss in (TotalVariationLoss(), AttentionLeakageLoss()):
        conditional = enumerated_risk(PAIRS, attention, 8, loss)
        inside = (conditional.sets.min(axis=1) >= 2) & (conditional.sets.max(axis=1) < 6)
        for gap in (1, 2):
            risks = conditional.risk[inside & (np.diff(conditional.sets, axis=1)[:, 0] == gap)]
            assert np.ptp(risks) < 1e-12
        end = asymptotic_risk(PAIRS, attention, loss)
        risks = laplace_risks(PAIRS, attention, [1000, 2000, 100_000], loss)
        # Only sets near the ends differ, and their share is proportional to 1 / length.
        assert (risks - end) * [1000, 2000, 100_000] == pytest.approx((risks - end)[0] * 1000, rel=0.01)
        assert risks[2] == pytest.approx(end, rel=1e-3)


def sharpened(attention: TabularAttention, length: int, log_gap: float) -> TabularAttention:
    """Raise all scores to the power that a length-dependent temperature has at this length."""
    power = 1 + math.log(length / 16) / log_gap
    return replace(attention, log_scores=attention.log_scores * power)


def test_a_temperature_that_grows_with_the_length_preserves_the_risk(rng):
    attention = pair_reader(rng, 6.0, 0.3)
    flat = with_background_score(attention, -6.0)
    trained = laplace_risk(PAIRS, flat, 16, AttentionLeakageLoss())
    risks = [laplace_risk(PAIRS, sharpened(flat, length, 6.0), length, AttentionLeakageLoss()) for length in (64, 1024)]
    # Sets that overlap the planted pair lose their weight, so the risk may even fall slightly.
    assert max(risks) < 1.2 * trained
    assert min(risks) > 0.7 * trained
    assert laplace_risk(PAIRS, flat, 1024, AttentionLeakageLoss()) > 10 * trained
    # With the smallest gap between planted and background scores, no set gains on the planted one.
    smallest_gap = -attention.log_scores[:, [0, 1, 4, 5]].max()
    for length in (64, 1024):
        risk = laplace_risk(PAIRS, sharpened(attention, length, smallest_gap), length, AttentionLeakageLoss())
        assert risk < 1.2 * laplace_risk(PAIRS, attention, 16, AttentionLeakageLoss())


def noisy(rng: np.random.Generator, law: RiskGrowthCurve, noise: float) -> np.ndarray:
    return np.array([law.risk_at(length) for length in SHORT]) + noise * rng.normal(size=len(SHORT))


def test_intervals_cover_the_true_risk_in_about_95_percent_of_cases(rng):
    truth = RiskGrowthCurve(parameters=np.array([0.01, 0.02, 0.04]), covariance=np.zeros((3, 3)), degrees_of_freedom=0)
    covers = []
    for _ in range(200):
        low, high = fit_growth_curve(SHORT, noisy(rng, truth, 3e-4), 0.5).confidence_interval(64)
        covers.append(low <= truth.risk_at(64) <= high)
    assert 0.9 <= np.mean(covers) <= 0.99


def test_a_horizon_is_the_length_at_which_the_curve_reaches_a_risk():
    law = RiskGrowthCurve(parameters=np.array([0.01, 0.02, 0.04]), covariance=np.zeros((3, 3)), degrees_of_freedom=0)
    assert law.risk_at(predicted_horizon(law, 0.3)) == pytest.approx(0.3)
    assert predicted_horizon(law, 0.5) == predicted_horizon(law, 0.7) == math.inf
    assert predicted_horizon(law, 0.005) == 0
    flat = RiskGrowthCurve(parameters=np.array([0.1, 0.0, 0.0]), covariance=np.zeros((3, 3)), degrees_of_freedom=0)
    assert predicted_horizon(flat, 0.2) == math.inf


def test_falling_risks_are_extrapolated_by_a_constant():
    falling = fit_growth_curve(SHORT, [0.3 / length for length in SHORT], 1.0)
    assert falling.risk_at(10) == falling.risk_at(1000) == pytest.approx(np.mean([0.3 / length for length in SHORT]))


def test_the_curve_of_a_risk_at_its_limit_is_constant():
    assert fit_growth_curve([8, 16], [0.5, 0.5], 0.5).risk_at(4096) == pytest.approx(0.5)


def test_there_is_no_interval_without_degrees_of_freedom():
    assert fit_growth_curve([8, 16], [0.1, 0.2], 1.0).confidence_interval(64) == (None, None)


def test_lengths_and_risks_that_do_not_determine_a_curve_raise():
    with pytest.raises(SettingError, match=r"1 lengths do not determine the curve; measure at least 2"):
        fit_growth_curve([8], [0.1], 1.0)
    with pytest.raises(SettingError, match=r"lengths \[16, 8\] do not increase"):
        fit_growth_curve([16, 8], [0.1, 0.2], 1.0)
    with pytest.raises(SettingError, match=r"3 risks do not match 2 lengths"):
        extrapolate_by_secant([8, 16], [0.1, 0.2, 0.3], 64)
    with pytest.raises(SettingError, match=r"risk is NaN or infinite"):
        extrapolate_by_secant([8, 16, 32], [0.1, 0.2, math.nan], 64)
    with pytest.raises(SettingError, match=r"invalid limit 0.0"):
        fit_growth_curve([8, 16], [0.1, 0.2], 0.0)
    with pytest.raises(SettingError, match=r"length 12 is below the longest measured length 16"):
        extrapolate_by_secant([8, 16], [0.1, 0.2], 12)
