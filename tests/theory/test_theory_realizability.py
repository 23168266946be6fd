"""Realizability: a witness with zero risk, or the proof that no predictor has zero risk."""

from dataclasses import replace

import pytest
from tests.support.planted_laws import random_attention, random_law, single_tokens

from lengthwise.core.errors import SettingError
from lengthwise.tasks import PlantedCorrelations
from lengthwise.tasks.planted.placement import LengthDependentPlacement, LocalPlacement, SubsetPlacement
from lengthwise.theory.risk.bayes import (
    ZERO_RISK,
    BayesPredictor,
    build_bayes_attention,
    build_posterior_witness,
    check_bayes_realizability,
    check_realizability,
)
from lengthwise.theory.risk.exact_risk import AttentionLeakageLoss, NormLoss, TotalVariationLoss, enumerated_risk

NEAR, FAR = (LocalPlacement(shapes=(shape,), weights=(1.0,)) for shape in ((0, 1), (0, 2)))
# The background contains every token, so it may imitate the planted pair.
AMBIGUOUS = PlantedCorrelations(
    background=(0.5, 0.5),
    tuples=((0, 0), (1, 1)),
    probabilities=(0.5, 0.5),
    labels=((1.0, 0.0), (0.0, 1.0)),
    placement=NEAR,
)


@pytest.mark.parametrize("loss", [TotalVariationLoss(), NormLoss(), AttentionLeakageLoss()], ids=lambda loss: loss.name)
def test_a_law_with_marked_tokens_is_realized_by_its_posterior(loss):
    lengths = (3, 6)
    found = check_realizability(
        PlantedCorrelations(), build_posterior_witness(PlantedCorrelations(), lengths), lengths, loss
    )
    assert found.holds
    assert found.delta == pytest.approx(0, abs=ZERO_RISK)
    assert found.found == "a witness has risk 0 at 2 lengths from 3 to 6"
    assert check_bayes_realizability(PlantedCorrelations(), (1024,)).found == "a witness has risk 0 at length 1024"


@pytest.mark.parametrize("loss", [TotalVariationLoss(), NormLoss(), AttentionLeakageLoss()], ids=lambda loss: loss.name)
def test_a_law_whose_background_imitates_the_planted_pair_is_realized_by_no_predictor(loss):
    lengths = (4, 5)
    found = check_realizability(AMBIGUOUS, build_bayes_attention(AMBIGUOUS, 5), lengths, loss)
    assert found.holds is False
    least = {length: enumerated_risk(AMBIGUOUS, BayesPredictor(AMBIGUOUS), length, loss).mean for length in lengths}
    assert found.found == f"no predictor has risk 0 at length 4; the risk of the true posterior is {least[4]:.4g}"
    assert found.delta == pytest.approx(max(least.values()))
    assert check_bayes_realizability(AMBIGUOUS, (2,)).holds


def test_no_head_has_zero_risk_where_the_check_denies_it(rng):
    denied = 0
    for _ in range(6):
        law = random_law(rng, 3, 2, 3)
        if check_bayes_realizability(law, (4,)).holds is False:
            denied += 1
            heads = [random_attention(rng, 3, 2, 3, spread=8.0) for _ in range(10)]
            assert min(enumerated_risk(law, head, 4, TotalVariationLoss()).mean for head in heads) > ZERO_RISK
    assert denied > 2


def test_a_failed_witness_decides_nothing_if_another_predictor_has_zero_risk():
    law, leaky = single_tokens(0.5)
    found = check_realizability(law, leaky, (2, 5))
    assert found.holds is None
    # Four fillers of score 0.5 have 2 / 3 of the attention.
    assert found.delta == pytest.approx(2 / 3)
    assert found.found == "this witness has risk 0.6667 at length 5; another predictor has risk 0"


def test_the_posterior_witness_is_one_head_for_lengths_with_different_shapes():
    law = replace(PlantedCorrelations(), placement=LengthDependentPlacement(until=(8,), laws=(NEAR, FAR)))
    assert check_realizability(law, build_bayes_attention(law, 8), (8, 16)).holds is None
    assert check_realizability(law, build_bayes_attention(law, 16), (8, 16)).holds is None
    witness = build_posterior_witness(law, (8, 16))
    assert witness.shapes.tolist() == [[0, 1], [0, 2]]
    assert check_realizability(law, witness, (8, 16)).holds


def test_the_posterior_witness_of_one_shape_is_the_posterior(rng):
    witness = build_posterior_witness(AMBIGUOUS, (4, 6))
    for length in (4, 6, 7):
        tokens = rng.integers(0, 2, size=(16, length))
        assert witness.predict(tokens) == pytest.approx(BayesPredictor(AMBIGUOUS).predict(tokens))


def test_a_law_without_a_span_has_an_unknown_result_with_the_reason():
    found = check_bayes_realizability(PlantedCorrelations(placement=SubsetPlacement()), (4, 8))
    assert (found.holds, found.delta) == (None, None)
    assert found.found.startswith("no witness was checked: placement 'subsets' has no span")


def test_witnesses_outside_of_the_class_raise_an_error():
    wide = build_posterior_witness(replace(PlantedCorrelations(), placement=FAR), (8,))
    with pytest.raises(SettingError, match=r"a span of 3 tokens, so it is outside of the class with span 2; use"):
        check_realizability(replace(PlantedCorrelations(), placement=NEAR), wide, (8,))
    _, single = single_tokens(0.5)
    with pytest.raises(SettingError, match=r"reads sets of 1 of 2 tokens, but the law plants 2 of 4; use a witness"):
        check_realizability(PlantedCorrelations(), single, (8,))
    with pytest.raises(SettingError, match=r"no lengths to check the witness at; use at least one length"):
        check_realizability(PlantedCorrelations(), wide, ())
