"""Sampled risks against exact ones, and the coverage of their intervals."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
from tests.support.planted_laws import random_attention, random_law, single_tokens

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.risk import risk_at_length
from lengthwise.theory.risk.bayes import BayesPredictor, LogLoss, bayes_risk
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, NormLoss, TotalVariationLoss, enumerated_risk
from lengthwise.theory.risk.laplace_transform import laplace_risk
from lengthwise.theory.risk.risk_at_length import SampledRisk, sampled_risk


@pytest.mark.parametrize("loss", [TotalVariationLoss(), NormLoss(), AttentionLeakageLoss()], ids=lambda loss: loss.name)
def test_a_sampled_risk_is_within_4_standard_errors_of_the_exact_risk(loss, rng):
    law, attention = random_law(rng, 3, 2, 3), random_attention(rng, 3, 2, 3)
    sample = sampled_risk(law, attention, 7, loss, 4000, rng)
    assert abs(sample.mean - enumerated_risk(law, attention, 7, loss).mean) < 4 * sample.standard_error
    assert sample.standard_error < 0.02


def test_the_sampled_log_loss_of_the_bayes_predictor_agrees_with_its_exact_risk(rng):
    law = PlantedCorrelations(
        background=(0.8, 0.2), tuples=((1, 1), (0, 1)), probabilities=(0.5, 0.5), labels=((1.0, 0.0), (0.0, 1.0))
    )
    sample = sampled_risk(law, BayesPredictor(law), 100, LogLoss(), 2000, rng)
    assert abs(sample.mean - bayes_risk(law, 100, LogLoss())) < 2 * sample.standard_error


def test_sampling_in_blocks_gives_the_requested_number_of_losses(rng, monkeypatch):
    law, attention = single_tokens(0.1)
    monkeypatch.setattr(risk_at_length, "BLOCK_TOKENS", 64)
    sample = sampled_risk(law, attention, 16, TotalVariationLoss(), 9, rng)
    assert sample.losses == pytest.approx(np.full(9, laplace_risk(law, attention, 16, TotalVariationLoss())))


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_an_interval_covers_the_mean_at_least_as_often_as_its_confidence(share, rng):
    bounds = [SampledRisk((rng.random(60) < share).astype(float)).bernstein_interval(0.8) for _ in range(400)]
    assert np.mean([low <= share <= high for low, high in bounds]) >= 0.8
    assert all(0 <= low <= high <= 1 for low, high in bounds)


def test_an_interval_has_the_published_width(rng):
    values = rng.random(50) / 10 + 0.45
    low, high = SampledRisk(values).bernstein_interval(0.9)
    assert high - low == pytest.approx(2 * (np.std(values, ddof=1) * sqrt(2 * log(40) / 50) + 7 * log(40) / (3 * 49)))


def test_higher_confidence_gives_a_wider_interval(rng):
    sample = SampledRisk(rng.random(1000))
    assert np.diff(sample.bernstein_interval(0.99))[0] > np.diff(sample.bernstein_interval(0.9))[0]


def test_the_same_generator_state_gives_the_same_sample():
    law, attention = random_law(np.random.default_rng(1), 3, 2, 3), random_attention(np.random.default_rng(1), 3, 2, 3)
    first, second = (
        sampled_risk(law, attention, 9, AttentionLeakageLoss(), 50, np.random.default_rng(3)) for _ in range(2)
    )
    assert (first.losses == second.losses).all()


def test_invalid_samples_confidences_and_losses_raise(rng):
    law, attention = single_tokens(0.1)
    with pytest.raises(SettingError, match=r"sample size 0; .* at least 1"):
        sampled_risk(law, attention, 8, AttentionLeakageLoss(), 0, rng)
    with pytest.raises(SettingError, match=r"1 value has no variance"):
        sampled_risk(law, attention, 8, AttentionLeakageLoss(), 1, rng).bernstein_interval()
    with pytest.raises(SettingError, match=r"invalid confidence 95.0"):
        SampledRisk(np.ones(3)).bernstein_interval(95.0)
    large = replace(attention, values=5 * attention.values)
    with pytest.raises(SettingError, match=r"losses from -\d.* lie outside \[0, 1\]"):
        sampled_risk(law, large, 8, TotalVariationLoss(), 8, rng).bernstein_interval()
