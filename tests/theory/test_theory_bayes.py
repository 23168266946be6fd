"""The Bayes predictor against an enumerated posterior, and the optimality of its log loss."""

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from tests.support.planted_laws import NonuniformStarts, random_attention, random_law

from lengthwise.core.errors import SettingError
from lengthwise.tasks.planted.placement import LocalPlacement, SubsetPlacement
from lengthwise.tasks.planted.planted_task import PlantedCorrelations
from lengthwise.theory.risk.bayes import (
    BayesPredictor,
    LogLoss,
    bayes_risk,
    build_bayes_attention,
)
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, NormLoss, TotalVariationLoss, enumerated_risk
from lengthwise.theory.risk.laplace_transform import laplace_log_loss, laplace_risk

SIZES = ((3, 1, 1), (3, 2, 2), (3, 2, 3), (2, 3, 4))
over_sizes = pytest.mark.parametrize("size", SIZES, ids=str)
# One tuple has two tokens that the background never produces, one has one, and one has none.
MARKED = PlantedCorrelations(
    background=(0.6, 0.4, 0.0),
    tuples=((2, 2), (2, 0), (1, 0)),
    probabilities=(0.3, 0.3, 0.4),
    labels=((1.0, 0.0), (0.2, 0.8), (0.0, 1.0)),
)
# Background may contain every planted tuple, with different probabilities.
HIDDEN = PlantedCorrelations(
    background=(0.5, 0.3, 0.2),
    tuples=((0, 1), (2, 2), (1, 0)),
    probabilities=(0.5, 0.2, 0.3),
    labels=((0.9, 0.1), (0.1, 0.9), (0.3, 0.7)),
)
# Two equally likely labels; a planted pair is 50 times as likely as the same pair of background tokens.
SWAPPED = PlantedCorrelations(
    background=(0.8, 0.1, 0.1),
    tuples=((1, 2), (2, 1)),
    probabilities=(0.5, 0.5),
    labels=((1.0, 0.0), (0.0, 1.0)),
    placement=LocalPlacement(shapes=((0, 1),), weights=(1.0,)),
)


def likelihood_ratios(law: PlantedCorrelations, length: int) -> np.ndarray:
    """Return the ratio of planted set to background, ``q(o) Qvoc(z) / mu(z)``, by shape and tuple."""
    share = law.placement.offset_distribution(length).probability.sum(axis=1)[:, None]
    mu = np.array(law.background)[np.array(law.tuples)].prod(axis=1)
    with np.errstate(divide="ignore"):
        return share * np.array(law.probabilities) / mu


def planted_weights(law: PlantedCorrelations, length: int) -> np.ndarray:
    return law.placement.offset_distribution(length).probability.sum(axis=1)[:, None] * np.array(law.probabilities)


def information_horizon(law: PlantedCorrelations, length: int) -> float:
    """Return the geometric mean of ``likelihood_ratios``: ``exp(KL(Qvoc || mu^k) - H(q))``."""
    return float(np.exp((planted_weights(law, length) * np.log(likelihood_ratios(law, length))).sum()))


def information_leakage(law: PlantedCorrelations, length: int) -> float:
    """Approximate the leakage of the Bayes predictor by the mean of ``N / (N + LR)``."""
    return float((planted_weights(law, length) * (length / (length + likelihood_ratios(law, length)))).sum())


def joint(law: PlantedCorrelations, length: int) -> dict[tuple[int, ...], dict[tuple[int, ...], np.ndarray]]:
    """Return the joint probability with each label, by sequence and planted set."""
    table: dict = {}
    sets, probability = law.placement.offset_distribution(length).sets()
    for planted, share in zip(sets.tolist(), probability, strict=True):
        for each, weight, labels in zip(law.tuples, law.probabilities, law.labels, strict=True):
            for rest in product(range(law.num_tokens), repeat=length - law.k):
                background = iter(rest)
                tokens = tuple(each[planted.index(i)] if i in planted else next(background) for i in range(length))
                sequence_weight = share * weight * prod(law.background[token] for token in rest)
                by_set = table.setdefault(tokens, {})
                by_set[tuple(planted)] = by_set.get(tuple(planted), 0) + sequence_weight * np.array(labels)
    return {tokens: by_set for tokens, by_set in table.items() if sum(by_set.values()).sum() > 0}


def posterior(law: PlantedCorrelations, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return all possible sequences, and the posterior of the label for each."""
    table = {tokens: sum(by_set.values()) for tokens, by_set in joint(law, length).items()}
    return np.array(list(table)), np.array([labels / labels.sum() for labels in table.values()])


@pytest.mark.parametrize(
    "placement",
    [LocalPlacement(weights=(0.3, 0.7)), SubsetPlacement(), NonuniformStarts()],
    ids=["local", "subsets", "tilted"],
)
def test_the_bayes_predictor_is_the_posterior_of_the_label(placement, rng):
    for law in (random_law(rng, 3, 2, 3, placement), *(replace(law, placement=placement) for law in (MARKED, HIDDEN))):
        tokens, expected = posterior(law, 5)
        assert BayesPredictor(law).predict(tokens) == pytest.approx(expected, abs=1e-12)


@over_sizes
def test_the_bayes_attention_is_the_posterior_of_the_label(size, rng):
    law = random_law(rng, *size)
    for length in (size[1], 5):
        tokens, expected = posterior(law, length)
        assert build_bayes_attention(law, length).predict(tokens) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("length", [2, 3, 6])
def test_the_bayes_attention_weighs_shapes_and_tuples_like_the_posterior(length):
    law = replace(HIDDEN, placement=LocalPlacement(weights=(0.3, 0.7)))
    tokens, expected = posterior(law, length)
    assert build_bayes_attention(law, length).predict(tokens) == pytest.approx(expected, abs=1e-12)


def test_the_bayes_attention_gives_no_weight_to_sets_without_a_marker_token():
    tokens, expected = posterior(MARKED, 5)
    assert build_bayes_attention(MARKED, 5).predict(tokens) == pytest.approx(expected, abs=1e-12)


def test_the_prediction_for_an_impossible_sequence_is_the_prior_of_the_labels():
    impossible = np.full((1, 6), 2)
    prior = np.array(MARKED.probabilities) @ np.array(MARKED.labels)
    assert BayesPredictor(MARKED).predict(impossible)[0] == pytest.approx(prior)


def test_none_of_100_perturbed_attentions_has_a_smaller_log_loss(rng):
    best, table = build_bayes_attention(HIDDEN, 6), joint(HIDDEN, 6)
    tokens, probability = np.array(list(table)), np.array([sum(by_set.values()) for by_set in table.values()])
    smallest = -(probability * np.log(best.predict(tokens))).sum()
    assert smallest == pytest.approx(bayes_risk(HIDDEN, 6, LogLoss()), abs=1e-12)
    for _ in range(100):
        size = 10 ** rng.uniform(-2, 0)
        values = best.values * np.exp(size * rng.normal(size=best.values.shape))
        other = replace(
            best,
            log_scores=best.log_scores + size * rng.normal(size=best.log_scores.shape),
            values=values / values.sum(axis=2, keepdims=True),
        )
        assert -(probability * np.log(other.predict(tokens))).sum() > smallest


@over_sizes
@pytest.mark.parametrize("loss", [TotalVariationLoss(), LogLoss()], ids=lambda loss: loss.name)
def test_the_bayes_risk_equals_the_enumerated_risk_of_the_posterior(size, loss, rng):
    law = random_law(rng, *size)
    exact = enumerated_risk(law, BayesPredictor(law), 6, loss).mean
    assert bayes_risk(law, 6, loss) == pytest.approx(exact, abs=1e-10)


@pytest.mark.parametrize("law", [MARKED, HIDDEN, SWAPPED], ids=["marked", "hidden", "swapped"])
def test_the_bayes_leakage_is_the_posterior_mass_off_the_planted_set(law):
    planted_mass = sum(
        sum(labels.sum() ** 2 for labels in by_set.values()) / sum(labels.sum() for labels in by_set.values())
        for by_set in joint(law, 5).values()
    )
    assert bayes_risk(law, 5, AttentionLeakageLoss()) == pytest.approx(1 - planted_mass, abs=1e-12)


def test_the_bayes_risk_without_a_local_attention_is_enumerated(rng):
    law = replace(MARKED, placement=SubsetPlacement())
    tokens, expected = posterior(law, 4)
    table = joint(law, 4)
    probability = np.array([sum(by_set.values()).sum() for by_set in table.values()])
    entropy = -probability @ np.where(expected > 0, expected * np.log(np.maximum(expected, 1e-300)), 0).sum(axis=1)
    assert bayes_risk(law, 4, LogLoss()) == pytest.approx(entropy, abs=1e-12)
    assert 0 < bayes_risk(SWAPPED, 4, NormLoss()) < bayes_risk(SWAPPED, 9, NormLoss())
    assert len(tokens) == len(table)


def test_background_hides_the_planted_pair_at_lengths_above_its_likelihood_ratio():
    assert likelihood_ratios(SWAPPED, 16) == pytest.approx(50)
    assert information_horizon(SWAPPED, 16) == pytest.approx(50)
    risks = [bayes_risk(SWAPPED, length, TotalVariationLoss()) for length in (16, 64, 256, 1024)]
    assert risks == pytest.approx([0.1335, 0.2593, 0.4187, 0.4802], abs=1e-4)
    for length, risk in zip((16, 64, 256, 1024), risks, strict=True):
        assert information_leakage(SWAPPED, length) / 2 == pytest.approx(risk, abs=0.025)
    # No attention of the same shape does better on the planted set.
    assert bayes_risk(SWAPPED, 1024, AttentionLeakageLoss()) == pytest.approx(
        information_leakage(SWAPPED, 1024), abs=0.005
    )


def test_the_information_horizon_is_the_exponential_of_the_information_in_the_planted_set():
    law = replace(
        SWAPPED, probabilities=(0.3, 0.7), placement=LocalPlacement(shapes=((0, 1), (0, 2)), weights=(0.2, 0.8))
    )
    p, q = np.array([0.3, 0.7]), np.array([0.2, 0.8])
    nats = p @ np.log(p / 0.01) + q @ np.log(q)
    assert information_horizon(law, 30) == pytest.approx(np.exp(nats))
    assert information_horizon(MARKED, 30) == np.inf
    assert likelihood_ratios(MARKED, 30)[:, 2] == pytest.approx(0.5 * 0.4 / 0.24)


def test_no_random_attention_has_a_smaller_log_loss_than_the_bayes_predictor(rng):
    floor = bayes_risk(SWAPPED, 64, LogLoss())
    for _ in range(5):
        assert laplace_log_loss(SWAPPED, random_attention(rng, 3, 2, 3), 64) > floor


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (SubsetPlacement(), r"'subsets' has no span"),
        (NonuniformStarts(), r"shape \(0, 1\) have starts of unequal probability"),
    ],
    ids=["subsets", "tilted"],
)
def test_a_placement_without_a_relative_bayes_attention_raises(placement, message):
    with pytest.raises(SettingError, match=message):
        build_bayes_attention(replace(SWAPPED, placement=placement), 8)


def test_the_log_loss_of_a_label_with_predicted_probability_0_is_infinite():
    law = replace(SWAPPED, labels=((1.0, 0.0), (1.0, 0.0)))
    wrong = BayesPredictor(replace(SWAPPED, labels=((0.0, 1.0), (0.0, 1.0))))
    assert enumerated_risk(law, wrong, 3, LogLoss()).mean == np.inf
    assert bayes_risk(law, 3, LogLoss()) == pytest.approx(0, abs=1e-12)
    assert laplace_risk(law, build_bayes_attention(law, 300), 300, TotalVariationLoss()) == pytest.approx(0, abs=1e-12)
