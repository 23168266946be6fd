"""Transfer from short to long sequences: the worst risk as a knapsack, and the gap lemma."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from tests.support.gap_lemma import GapChain, gap_sides

from lengthwise.core.errors import SettingError
from lengthwise.theory.bounds.bound_inputs import safe_ratio
from lengthwise.theory.bounds.training_window_covers import worst_case_weighted_risk


def random_laws(rng, atoms=12, missing=True):
    weight, trained = rng.dirichlet(np.ones(atoms)) * rng.uniform(1, 4), rng.dirichlet(np.ones(atoms))
    if missing:
        trained = np.where(rng.random(atoms) < 0.2, 0.0, trained)
        weight = np.where(rng.random(atoms) < 0.2, 0.0, weight)
    return weight, trained


def dual_value(trained_risk, weight, trained):
    """Minimize ``t trained_risk + sum (weight - t trained)_+`` over ``t >= 0`` at its kinks, the ratios."""
    prices = np.append(weight[trained > 0] / trained[trained > 0], 0.0)
    excess = np.maximum(weight - prices[:, None] * trained, 0.0).sum(axis=1)
    return (prices * trained_risk + excess).min()


def test_the_knapsack_and_its_dual_give_the_same_number(rng):
    for _ in range(90):
        weight, trained = random_laws(rng)
        budget = rng.random() * 0.5
        assert worst_case_weighted_risk(budget, weight, trained) == pytest.approx(
            dual_value(budget, weight, trained), abs=1e-9
        )


def test_no_risk_within_the_budget_exceeds_the_knapsack(rng):
    for _ in range(20):
        weight, trained = random_laws(rng)
        budget = rng.random() * 0.5
        worst = worst_case_weighted_risk(budget, weight, trained)
        for _ in range(200):
            risk = rng.random(12) ** rng.uniform(0.1, 8)
            risk *= min(1.0, budget / (risk @ trained))
            assert weight @ risk <= worst + 1e-12


def test_the_worst_risk_is_at_most_the_largest_ratio_times_the_training_risk(rng):
    for _ in range(50):
        weight, trained = random_laws(rng, missing=False)
        budget = rng.random() * 0.3
        assert worst_case_weighted_risk(budget, weight, trained) <= safe_ratio(weight, trained).max() * budget + 1e-12


def test_with_a_training_risk_of_0_the_worst_risk_is_the_mass_that_training_lacks(rng):
    for _ in range(20):
        weight, trained = random_laws(rng)
        assert worst_case_weighted_risk(0.0, weight, trained) == pytest.approx(weight[trained == 0].sum(), abs=1e-15)
        assert worst_case_weighted_risk(1.0, weight, trained) == pytest.approx(weight.sum(), abs=1e-12)


def test_the_worst_risk_is_concave_in_the_training_risk(rng):
    for _ in range(20):
        weight, trained = random_laws(rng)
        values = np.array([worst_case_weighted_risk(budget, weight, trained) for budget in np.linspace(0, 1, 41)])
        assert (np.diff(values) >= -1e-12).all()
        assert (np.diff(values, n=2) <= 1e-12).all()


def test_negative_risks_and_infinite_masses_raise():
    law = np.array([0.5, 0.5])
    with pytest.raises(SettingError, match=r"train_risk -0\.1"):
        worst_case_weighted_risk(-0.1, law, law)
    with pytest.raises(SettingError, match="negative or infinite"):
        worst_case_weighted_risk(0.1, np.array([np.inf, 0.5]), law)


def random_chain(rng, values):
    """Sample a chain; some have nearly forbidden steps and therefore nearly periodic blocks."""
    scale = 10 ** rng.uniform(-2, 2)
    between = rng.exponential(scale, size=(values, values)) * rng.integers(0, 2, size=(values, values))
    return GapChain(
        probability=rng.dirichlet(np.full(values, rng.uniform(0.2, 2))),
        inside=rng.exponential(10 ** rng.uniform(-3, 1), size=values) * rng.integers(0, 2, size=values),
        between=between,
        left=rng.exponential(scale, size=values) * rng.integers(0, 2, size=values),
        right=rng.exponential(scale, size=values) * rng.integers(0, 2, size=values),
    )


def test_the_mean_over_a_gap_is_the_sum_over_all_block_values(rng):
    for _ in range(20):
        chain = random_chain(rng, 3)
        log_means = chain.log_means(5)
        for blocks in (1, 2, 5):
            total = 0.0
            for values in product(range(3), repeat=blocks):
                cost = chain.left[values[0]] + chain.right[values[-1]] + sum(chain.inside[value] for value in values)
                cost += sum(chain.between[pair] for pair in pairwise(values))
                total += np.prod(chain.probability[list(values)]) * np.exp(-cost)
            assert np.exp(log_means[blocks - 1]) == pytest.approx(total, rel=1e-12)


def tightest_gap_lemma(rng, number):
    tightest = 0.0
    for _ in range(number):
        n0 = int(rng.integers(1, 9))
        sides = gap_sides(
            random_chain(rng, int(rng.integers(1, 6))),
            n0,
            2 * n0 + 2 + int(rng.integers(0, 6)),
            rng.uniform(0.05, 0.95),
        )
        assert sides.shortened >= sides.lower - 1e-12
        assert sides.mean <= sides.upper + 1e-12
        tightest = max(tightest, sides.lower / sides.shortened if sides.shortened > 0 else 0.0)
    return tightest


def test_the_gap_lemma_holds_for_random_chains(rng):
    assert tightest_gap_lemma(rng, 400) > 0.3


@pytest.mark.slow
def test_the_gap_lemma_holds_for_ten_thousand_random_chains(rng):
    assert tightest_gap_lemma(rng, 10_000) > 0.5


def test_a_gap_of_infinite_cost_has_mean_0():
    forbidden = np.full((1, 1), np.inf)
    zero = np.zeros(1)
    chain = GapChain(probability=np.ones(1), inside=zero, between=forbidden, left=zero, right=zero)
    sides = gap_sides(chain, n0=1, blocks=4)
    assert (sides.mean, sides.shortened, sides.lower) == (0.0, 0.0, 0.0)


def test_gaps_too_short_and_invalid_chains_raise(rng):
    with pytest.raises(SettingError, match=r"blocks 5, n0 2"):
        gap_sides(random_chain(rng, 2), n0=2, blocks=5)
    free = GapChain(
        probability=np.ones(1), inside=np.zeros(1), between=np.zeros((1, 1)), left=np.zeros(1), right=np.zeros(1)
    )
    with pytest.raises(SettingError, match="invalid max_blocks 0"):
        free.log_means(0)
    with pytest.raises(SettingError, match="negative or NaN cost in 'inside'"):
        replace(free, inside=-np.ones(1))
    with pytest.raises(SettingError, match="invalid block probabilities"):
        replace(free, probability=np.full(1, 0.5))
