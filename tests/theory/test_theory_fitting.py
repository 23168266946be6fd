"""Training a sparse functional attention on planted laws."""

import math

import numpy as np
import pytest
import torch

from lengthwise.core.errors import DivergedError, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.attention.sparse_attention import SparseFunctionalAttention, fit_attention, fit_tabular_attention
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, TotalVariationLoss
from lengthwise.theory.risk.growth_curves import asymptotic_risk, fit_growth_curve
from lengthwise.theory.risk.laplace_transform import laplace_risks

LAW = PlantedCorrelations()


def attention(seed: int = 0, span: int | None = 3) -> SparseFunctionalAttention:
    torch.manual_seed(seed)
    return SparseFunctionalAttention(num_tokens=4, k=2, num_outputs=2, span=span)


def train(module: SparseFunctionalAttention, steps: int = 150, seed: int = 0, batch_size: int = 32) -> np.ndarray:
    return fit_attention(module, LAW, lengths=(4, 16), steps=steps, seed=seed, batch_size=batch_size, learning_rate=0.2)


@torch.no_grad()
def held_out_loss(module: SparseFunctionalAttention) -> float:
    """Return the mean log loss of the label, in nats, on sequences of length 16 that training does not use."""
    tokens, _, labels = LAW.sample_arrays(16, 2000, random_stream(0, "held out"))
    return float(torch.nn.functional.nll_loss(module(torch.from_numpy(tokens)), torch.from_numpy(labels)))


def test_training_learns_the_planted_pairs_and_their_labels():
    module = attention()
    before = held_out_loss(module)
    losses = train(module)
    assert before == pytest.approx(math.log(2), abs=0.05)
    assert held_out_loss(module) < 0.01
    assert losses[-20:].mean() < 0.01
    assert laplace_risks(LAW, module.to_tabular(), [16], AttentionLeakageLoss()) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("span", [3, None])
def test_tables_and_products_learn_the_law(span, seed):
    module = attention(seed, span=span)
    fit_attention(module, LAW, lengths=(4, 16), steps=1000, seed=seed)
    assert held_out_loss(module) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_the_risk_of_a_trained_head_follows_the_odds_law_far_beyond_training(seed):
    short = range(8, 17)
    tables = fit_tabular_attention(LAW, (4, 16), steps=2000, seed=seed)
    odds = fit_growth_curve(
        short, laplace_risks(LAW, tables, short, TotalVariationLoss()), asymptotic_risk(LAW, tables)
    )
    far = (32, 64, 128, 256, 512)
    exact = laplace_risks(LAW, tables, far, TotalVariationLoss())
    assert exact[-1] > 0.005
    assert odds.risk_at(512) == pytest.approx(exact[-1], rel=0.1)
    # Before it saturates, the risk is about proportional to the length.
    assert 0.8 <= np.polyfit(np.log(far), np.log(exact), 1)[0] <= 1.1


def test_a_head_with_a_span_below_that_of_the_law_does_not_learn_it():
    module = attention(span=2)
    train(module)
    assert held_out_loss(module) > 0.1


def test_the_losses_depend_on_the_seed_only():
    first, again, other = (fit_attention(attention(), LAW, lengths=(8, 8), steps=5, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    # The weights and the lengths are the same; only the sequences differ.
    assert first[0] != other[0]


def test_the_first_loss_is_that_of_the_untrained_module_on_the_sequences_of_the_seed():
    module = attention()
    losses = train(attention(), steps=1, batch_size=8)
    length = int(random_stream(0, "fit", "lengths").integers(4, 17))
    tokens, _, labels = LAW.sample_arrays(length, 8, random_stream(0, "fit", "sequences"))
    outputs = module(torch.from_numpy(tokens)).exp().detach().numpy()
    assert losses[0] == pytest.approx(-np.log(outputs[np.arange(8), labels]).mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "lengths", "steps", "message"),
    [
        ({"num_tokens": 5}, (4, 8), 1, "has 5 tokens and 2 outputs, but the law has 4 tokens and 2 labels"),
        ({"num_outputs": 3}, (4, 8), 1, "has 4 tokens and 3 outputs"),
        ({}, (8, 4), 1, r"1 steps on lengths \(8, 4\)"),
        ({}, (4, 8), 0, r"0 steps on lengths"),
        ({}, (1, 8), 1, "length 1 is too short for 2 planted tokens"),
    ],
)
def test_modules_lengths_and_steps_that_do_not_fit_the_law_raise(settings, lengths, steps, message):
    module = SparseFunctionalAttention(**{"num_tokens": 4, "k": 2, "span": 3, "num_outputs": 2, **settings})
    with pytest.raises(SettingError, match=message):
        fit_attention(module, LAW, lengths=lengths, steps=steps, seed=0)


def test_a_nan_loss_stops_training():
    module = attention()
    module.values.logits.data[:] = torch.nan
    with pytest.raises(DivergedError, match="the loss is nan at step 0"):
        train(module, steps=3)
