"""Exact risks at any length against enumeration, samples and formulas."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.planted_laws import NonuniformStarts, random_attention, random_law, single_tokens

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import LengthDependentPlacement, LocalPlacement, SubsetPlacement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.risk import laplace_transform as laplace_risk_module
from lengthwise.theory.risk.bayes import LogLoss
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, NormLoss, TotalVariationLoss, enumerated_risk
from lengthwise.theory.risk.laplace_transform import laplace_log_loss, laplace_risk, laplace_risks
from lengthwise.theory.risk.risk_at_length import sampled_risk

LOSSES = (TotalVariationLoss(), AttentionLeakageLoss())
# Tokens, k, span.
SIZES = ((3, 1, 1), (3, 2, 2), (3, 2, 3), (2, 3, 4), (2, 2, 4))
over_losses = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
over_sizes = pytest.mark.parametrize("size", SIZES, ids=str)


def check_against_enumeration(rng, size, spread, zeros):
    num_tokens, k, span = size
    law, attention = random_law(rng, *size), random_attention(rng, num_tokens, k, span, spread=spread, zeros=zeros)
    length = int(rng.integers(k, 7))
    for loss in LOSSES:
        exact = enumerated_risk(law, attention, length, loss).mean
        assert laplace_risk(law, attention, length, loss) == pytest.approx(exact, abs=1e-10)


@over_sizes
@pytest.mark.parametrize(("spread", "zeros"), [(0.5, 0.0), (3.0, 0.3), (20.0, 0.0), (50.0, 0.7)])
def test_the_laplace_risk_equals_the_enumerated_risk(size, spread, zeros, rng):
    check_against_enumeration(rng, size, spread, zeros)


@pytest.mark.slow
@over_sizes
def test_the_laplace_risk_equals_the_enumerated_risk_on_many_instances(size, rng):
    for _ in range(60):
        check_against_enumeration(
            rng, size, float(rng.choice([0.5, 3.0, 20.0, 50.0])), float(rng.choice([0, 0.3, 0.7]))
        )


def test_the_default_is_the_output_if_no_set_has_a_score(rng):
    law = PlantedCorrelations(background=(0.5, 0.5), tuples=((0, 1),), probabilities=(1.0,), labels=((1.0, 0.0),))
    attention = random_attention(rng, 2, 2, 3)
    no_scores = replace(attention, log_scores=np.full((2, 4), -np.inf))
    # Only two adjacent tokens 0 have a score, which do not occur in every sequence.
    some = replace(attention, log_scores=np.where(np.indices((2, 4)).sum(axis=0) == 0, 0.0, -np.inf))
    assert laplace_risk(law, no_scores, 6, TotalVariationLoss()) == pytest.approx(0.7, abs=1e-14)
    assert laplace_risk(law, no_scores, 6, AttentionLeakageLoss()) == pytest.approx(1.0, abs=1e-14)
    exact = enumerated_risk(law, some, 6, TotalVariationLoss()).mean
    assert laplace_risk(law, some, 6, TotalVariationLoss()) == pytest.approx(exact, abs=1e-12)


@over_losses
def test_the_default_is_the_output_if_no_set_of_the_attention_fits(loss, rng):
    law, attention = random_law(rng, 3, 1, 1), random_attention(rng, 3, 1, 1)
    wide = replace(attention, shapes=np.array([[0, 4]]), log_scores=np.zeros((1, 9)), values=np.full((1, 9, 2), 0.5))
    pairs = random_law(rng, 3, 2, 2)
    exact = enumerated_risk(pairs, wide, 3, loss).mean
    assert laplace_risk(pairs, wide, 3, loss) == pytest.approx(exact, abs=1e-14)
    assert laplace_risk(law, attention, 1, TotalVariationLoss()) == pytest.approx(
        enumerated_risk(law, attention, 1, TotalVariationLoss()).mean, abs=1e-14
    )


@over_losses
def test_the_laplace_risk_is_exact_for_a_placement_that_changes_with_the_length(loss, rng):
    early = LocalPlacement(shapes=((0, 1), (0, 2)), weights=(0.9, 0.1))
    late = LocalPlacement(shapes=((0, 2), (0, 3)), weights=(0.3, 0.7))
    law = random_law(rng, 3, 2, 3, LengthDependentPlacement(until=(4,), laws=(early, late)))
    attention = random_attention(rng, 3, 2, 3)
    lengths = (3, 4, 5, 7)
    exact = [enumerated_risk(law, attention, length, loss).mean for length in lengths]
    assert laplace_risks(law, attention, lengths, loss) == pytest.approx(exact, abs=1e-12)


@over_losses
def test_the_laplace_risk_is_exact_for_a_placement_with_unequal_starts(loss, rng):
    law, attention = random_law(rng, 3, 2, 3, NonuniformStarts()), random_attention(rng, 3, 2, 3, spread=5.0)
    exact = enumerated_risk(law, attention, 7, loss).mean
    assert laplace_risk(law, attention, 7, loss) == pytest.approx(exact, abs=1e-12)


def test_the_laplace_risk_is_exact_for_attention_to_sets_of_another_size(rng):
    law, attention = random_law(rng, 3, 2, 3), random_attention(rng, 3, 1, 1)
    exact = enumerated_risk(law, attention, 6, TotalVariationLoss()).mean
    assert laplace_risk(law, attention, 6, TotalVariationLoss()) == pytest.approx(exact, abs=1e-12)


@over_losses
def test_single_steps_and_products_of_matrices_give_the_same_risk(loss, rng, monkeypatch):
    law, attention = random_law(rng, 3, 2, 3), random_attention(rng, 3, 2, 3)
    products = laplace_risks(law, attention, [5, 37], loss)
    monkeypatch.setattr(laplace_risk_module, "MAX_DENSE_STATES", 0)
    assert laplace_risks(law, attention, [5, 37], loss) == pytest.approx(products, rel=1e-12)


def test_several_lengths_together_give_the_same_risks_as_one_by_one(rng):
    law, attention = random_law(rng, 3, 2, 3), random_attention(rng, 3, 2, 3)
    together = laplace_risks(law, attention, [3, 200, 17], TotalVariationLoss())
    alone = [laplace_risk(law, attention, length, TotalVariationLoss()) for length in (3, 200, 17)]
    assert together == pytest.approx(alone, rel=1e-12)


@over_losses
def test_a_sample_of_length_512_agrees_within_4_standard_errors(loss, rng):
    law = PlantedCorrelations()
    attention = random_attention(rng, 4, 2, 3, spread=1.0)
    marked = law.tuple_codes(np.array(law.tuples))
    attention.log_scores[:, marked] = 6.0
    sample = sampled_risk(law, attention, 512, loss, 400, rng)
    exact = laplace_risk(law, attention, 512, loss)
    assert abs(sample.mean - exact) < 4 * sample.standard_error
    assert sample.standard_error < 0.02


@pytest.mark.parametrize("score", [1e-3, 1e-9, 1e-25])
@over_losses
def test_small_risks_have_eleven_correct_digits_at_any_length(loss, score):
    law, attention = single_tokens(score)
    for length in (2, 64, 4096):
        expected = score * (length - 1) / (1 + score * (length - 1))
        assert laplace_risk(law, attention, length, loss) == pytest.approx(expected, rel=1e-11)


@over_losses
def test_a_common_factor_of_all_scores_changes_nothing(loss, rng):
    law, attention = random_law(rng, 3, 2, 3), random_attention(rng, 3, 2, 3)
    expected = laplace_risk(law, attention, 100, loss)
    for factor in (-900, 900):
        scaled = replace(attention, log_scores=attention.log_scores + factor)
        assert laplace_risk(law, scaled, 100, loss) == pytest.approx(expected, rel=1e-10)


@over_sizes
@pytest.mark.parametrize("zeros", [0.0, 0.6])
def test_the_laplace_log_loss_equals_the_enumerated_one(size, zeros, rng):
    law, attention = random_law(rng, *size), random_attention(rng, *size, zeros=zeros)
    exact = enumerated_risk(law, attention, 6, LogLoss()).mean
    assert laplace_log_loss(law, attention, 6) == pytest.approx(exact, abs=1e-11)


def test_the_log_loss_is_infinite_if_a_possible_label_may_get_probability_0(rng):
    law, attention = single_tokens(1e-3)
    assert laplace_log_loss(law, attention, 3) == pytest.approx(np.log(1 + 2e-3), abs=1e-12)
    turned = replace(law, labels=((1.0, 0.0),))
    assert np.isfinite(laplace_log_loss(turned, attention, 3))
    assert laplace_log_loss(turned, attention, 1) == np.inf


def invalid_arguments():
    law, pairs = PlantedCorrelations(), random_attention(np.random.default_rng(0), 4, 2, 3)
    single = random_attention(np.random.default_rng(0), 4, 1, 1)
    wide = replace(pairs, shapes=np.array([[0, 1], [0, 9]]))
    return {
        "loss": (law, pairs, NormLoss(), r"loss 'norm' is not linear .* use loss .tv., .leakage."),
        "span": (replace(law, placement=SubsetPlacement()), pairs, AttentionLeakageLoss(), r"'subsets' has no span"),
        "sets": (law, single, AttentionLeakageLoss(), r"sets of 1 tokens never equal the 2 planted tokens"),
        "tokens": (
            law,
            random_attention(np.random.default_rng(0), 3, 2, 3),
            AttentionLeakageLoss(),
            r"has 3 tokens and the law has 4",
        ),
        "outputs": (
            replace(law, labels=((0.5, 0.5, 0.0),) * 4),
            pairs,
            TotalVariationLoss(),
            r"2 outputs do not match 3 labels",
        ),
        "negative": (
            law,
            replace(pairs, default=np.array([-0.5, 1.5])),
            TotalVariationLoss(),
            r"output probability -0.5",
        ),
        "states": (
            law,
            wide,
            AttentionLeakageLoss(),
            r"2 shapes, span 10 and 4 tokens make 2,097,152 scores, .* sampled_risk",
        ),
        "length": (law, pairs, AttentionLeakageLoss(), r"length 1 is too short"),
    }


@pytest.mark.parametrize("name", invalid_arguments())
def test_arguments_without_an_exact_risk_raise(name):
    law, attention, loss, message = invalid_arguments()[name]
    with pytest.raises(SettingError, match=message):
        laplace_risk(law, attention, 1 if name == "length" else 8, loss)
