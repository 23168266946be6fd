"""Measures on models with a known dependence on far tokens: support recovery and documented failures."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.planted_model import (
    TARGET,
    PlantedModel,
    additive_log_prob,
    conjunction_log_prob,
    redundant_log_prob,
)

from lengthwise.core.errors import SettingError
from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator
from lengthwise.influence.measures import (
    MEASURES,
    AddOneIn,
    AttentionWeight,
    GradientMeasure,
    GreedySelection,
    KLDivergence,
    LeaveOneOut,
    NearestSelection,
    PrefilteredMeasure,
    ProposedGreedy,
    RandomSelection,
    SubsetScorer,
    TargetLoss,
)
from lengthwise.influence.settings import InfluenceSettings
from lengthwise.influence.units import split_into_units

FAR, NEAR = 40, 4
WEIGHTS = {3: 0.9, 17: 0.5, 18: 0.3, 39: 0.7}
RNG = np.random.default_rng(0)
EXACT = {name: entry() for name, entry in MEASURES.items() if entry.exact}
over_modes = pytest.mark.parametrize("mode", ["strict", "masked"])
over_objectives = pytest.mark.parametrize("objective", ["target", "prediction"])


def scorer_of(model: PlantedModel, mode: str = "strict", objective: str = "target") -> SubsetScorer:
    tokens = np.arange(FAR + NEAR)
    window = TargetWindow(start=tokens[:0], far=tokens[:FAR], near=tokens[FAR:], target=TARGET)
    long = model.log_probs(torch.from_numpy(tokens)[None], torch.arange(FAR + NEAR)[None])[0]
    return SubsetScorer(
        evaluator=WindowEvaluator(model, window),
        mode=mode,
        objective=TargetLoss(TARGET) if objective == "target" else KLDivergence(long),
        units=list(np.arange(FAR)[:, None]),
        candidates=np.arange(FAR),
    )


@over_modes
@over_objectives
@pytest.mark.parametrize("measure", EXACT.values(), ids=EXACT)
def test_exact_measures_recover_the_support_of_an_additive_model(measure, objective, mode):
    ranking = measure.select_tokens(
        scorer_of(PlantedModel(additive_log_prob(WEIGHTS), FAR), mode, objective), len(WEIGHTS), RNG
    )
    assert set(ranking.indices) == set(WEIGHTS)


@over_modes
@pytest.mark.parametrize("measure", EXACT.values(), ids=EXACT)
def test_gains_in_an_additive_model_are_its_weights_in_decreasing_order(measure, mode):
    ranking = measure.select_tokens(scorer_of(PlantedModel(additive_log_prob(WEIGHTS), FAR), mode), len(WEIGHTS), RNG)
    assert ranking.indices == (3, 39, 17, 18)
    assert ranking.gains == pytest.approx([0.9, 0.7, 0.5, 0.3], abs=1e-5)


def test_gradient_recovers_the_support_of_an_additive_model():
    ranking = GradientMeasure().select_tokens(scorer_of(PlantedModel(additive_log_prob(WEIGHTS), FAR)), 4, RNG)
    assert ranking.indices == (3, 39, 17, 18)


@over_modes
def test_only_leave_one_out_finds_tokens_that_count_jointly(mode):
    scorer = scorer_of(PlantedModel(conjunction_log_prob(5, 23), FAR), mode)
    for measure in (AddOneIn(), GreedySelection()):
        assert measure.select_tokens(scorer, 1, RNG).gains == pytest.approx([0.0], abs=1e-5)
    ranking = LeaveOneOut().select_tokens(scorer, 2, RNG)
    assert set(ranking.indices) == {5, 23}
    assert ranking.gains == pytest.approx([2.0, 2.0], abs=1e-5)


@over_modes
def test_leave_one_out_misses_copies_and_greedy_selects_one_of_them(mode):
    scorer = scorer_of(PlantedModel(redundant_log_prob(5, 23), FAR), mode)
    assert LeaveOneOut().select_tokens(scorer, 2, RNG).gains == pytest.approx([0.0, 0.0], abs=1e-5)
    assert set(AddOneIn().select_tokens(scorer, 2, RNG).indices) == {5, 23}
    ranking = GreedySelection().select_tokens(scorer, 2, RNG)
    assert ranking.indices[0] == 5
    assert ranking.gains == pytest.approx([2.0, 0.0], abs=1e-5)


def test_attention_weights_ignore_the_effect_of_a_token():
    ranking = AttentionWeight().select_tokens(scorer_of(PlantedModel(additive_log_prob(WEIGHTS), FAR)), 4, RNG)
    assert ranking.indices == (0, 1, 2, 3)


def test_random_selection_runs_no_query_and_repeats_no_token():
    model = PlantedModel(additive_log_prob(WEIGHTS), FAR)
    scorer = scorer_of(model)
    before = model.num_queries
    ranking = RandomSelection().select_tokens(scorer, FAR, np.random.default_rng(1))
    assert sorted(ranking.indices) == list(range(FAR))
    assert model.num_queries == before


def test_units_are_selected_as_a_whole_and_the_nearest_ones_are_the_last():
    model = PlantedModel(additive_log_prob(WEIGHTS), FAR)
    scorer = replace(scorer_of(model), units=np.split(np.arange(FAR), FAR // 2), candidates=np.arange(FAR // 2))
    ranking = GreedySelection().select_tokens(scorer, 3, RNG)
    assert ranking.indices == (1, 19, 8)  # units of the tokens (2, 3), (38, 39) and (16, 17)
    assert ranking.gains == pytest.approx([0.9, 0.7, 0.5], abs=1e-5)
    assert scorer.visibility_mask([1, 8]).nonzero()[0].tolist() == [2, 3, 16, 17]
    assert NearestSelection().select_tokens(scorer, 3, RNG).indices == (19, 18, 17)


def test_the_gradient_of_a_unit_is_the_sum_over_its_tokens():
    scorer = scorer_of(PlantedModel(additive_log_prob(WEIGHTS), FAR))
    pairs = replace(scorer, units=np.split(np.arange(FAR), FAR // 2), candidates=np.arange(FAR // 2))
    expected = scorer.gradient(context="none").reshape(-1, 2).sum(axis=1)
    assert pairs.gradient(context="none") == pytest.approx(expected)


def test_screened_measure_scores_a_tenth_of_the_tokens_and_selects_the_same():
    model = PlantedModel(additive_log_prob(WEIGHTS), FAR)
    scorer = scorer_of(model)
    counts = []
    for measure in (LeaveOneOut(), PrefilteredMeasure(then=LeaveOneOut(), share=0.1)):
        before = model.num_queries
        assert set(measure.select_tokens(scorer, 4, RNG).indices) == set(WEIGHTS)
        counts.append(model.num_queries - before)
    assert counts == [FAR + 1, 5]


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_measures_select_k_distinct_candidates(measure):
    candidates = np.array([4, 8, 15, 16, 23])
    scorer = scorer_of(PlantedModel(additive_log_prob(WEIGHTS), FAR)).with_candidates(candidates)
    ranking = measure().select_tokens(scorer, 3, np.random.default_rng(0))
    assert len(ranking.indices) == len(ranking.gains) == len(set(ranking.indices)) == 3
    assert set(ranking.indices) <= set(candidates.tolist())


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_screened_measure_rejects_an_invalid_share(share):
    with pytest.raises(
        SettingError, match=rf"^invalid share {share} of far tokens; use a number above 0 and at most 1$"
    ):
        PrefilteredMeasure(share=share)


WORDS = ["The", " cat", " sat", ".", " It", " slept", ",", " then", "\n", "Bye", ".", "5"]


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        ("token", WORDS),
        ("span:5", ["The cat", " sat. It slept,", " then\nBye.5"]),
        ("span:12", ["".join(WORDS)]),
        ("word", ["The", " cat", " sat.", " It", " slept,", " then", "\n", "Bye.5"]),
        ("sentence", ["The cat sat.", " It slept, then\n", "Bye.5"]),
    ],
)
def test_units_are_all_tokens_in_order(unit, expected):
    units = split_into_units(unit, np.arange(len(WORDS)), lambda token: WORDS[token])
    assert np.concatenate(units).tolist() == list(range(len(WORDS)))
    assert ["".join(WORDS[token] for token in unit) for unit in units] == expected


@pytest.mark.parametrize("unit", ["", "words", "span:0", "span:-1", "span:1.5", "span:٣"])
def test_an_invalid_unit_raises_an_error(unit):
    with pytest.raises(SettingError, match="unit"):
        InfluenceSettings(far=16, ks=(1,), unit=unit)


def test_more_units_than_the_far_tokens_have_raise_an_error():
    assert InfluenceSettings(far=16, ks=(1, 2), unit="span:9").ks == (1, 2)
    with pytest.raises(SettingError, match="k 3 exceeds the 2 far spans of 9 tokens"):
        InfluenceSettings(far=16, ks=(3,), unit="span:9")


@over_objectives
def test_expected_tokens_are_counted_by_unit(objective):
    scorer = scorer_of(PlantedModel(additive_log_prob(WEIGHTS), FAR), objective=objective)
    expected = np.zeros(FAR)
    expected[TARGET] = 1.0
    if objective == "prediction":
        expected = scorer.objective.log_probs_long.exp().numpy()[:FAR]
    np.testing.assert_allclose(scorer.expected_tokens(), expected, rtol=1e-6)
    pairs = replace(scorer, units=np.split(np.arange(FAR), FAR // 2))
    np.testing.assert_allclose(pairs.expected_tokens(), expected.reshape(-1, 2).sum(axis=1), rtol=1e-6)


def test_a_search_asks_no_more_when_little_is_left_to_gain():
    queries = {}
    for tolerance in (0.0, 0.005):
        model = PlantedModel(additive_log_prob({3: 2.0, 20: 0.02, 30: 0.02}), FAR)
        scorer = scorer_of(model, objective="prediction")
        before = model.num_queries
        ranking = ProposedGreedy(tolerance=tolerance).select_tokens(scorer, 20, RNG)
        assert ranking.indices[0] == 3
        assert len(set(ranking.indices)) == len(ranking.gains) == 20
        queries[tolerance] = model.num_queries - before
    assert queries[0.005] < queries[0.0]


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_a_tolerance_outside_its_range_is_an_error(tolerance):
    with pytest.raises(SettingError, match="tolerance"):
        ProposedGreedy(tolerance=tolerance)
