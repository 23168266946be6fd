"""Measures, units and modes on models with a known dependence on far tokens: recovery and documented failures."""

import numpy as np
import pytest
import torch
from tests.support.planted_model import (
    TARGET,
    PlantedModel,
    TargetLogProb,
    additive_log_prob,
    conjunction_log_prob,
    redundant_log_prob,
)
from torch import Tensor

from lengthwise.influence.hidden_context import MODES, TargetWindow, WindowEvaluator
from lengthwise.influence.measures import MEASURES, KLDivergence, SubsetScorer, TargetLoss
from lengthwise.influence.units import split_into_units

FAR, NEAR = 96, 4
WORD_TOKENS, SENTENCE_TOKENS = 3, 12
UNITS = ("token", "word", "sentence", "span:8")
# Measures that read the model, in the order of the table of docs/influence.md.
INFORMED = ("add_one_in", "leave_one_out", "proposed", "greedy", "screened", "gradient")
GREEDY = ("proposed", "greedy", "screened")
# Tokens of different sentences, and so of different units of every kind.
WEIGHTS = {3: 0.9, 17: 0.5, 65: 0.3, 90: 0.7}
FIRST, SECOND = 29, 62
over_modes = pytest.mark.parametrize("mode", MODES)
over_units = pytest.mark.parametrize("unit", UNITS)
over_objectives = pytest.mark.parametrize("objective", ["target", "prediction"])


def token_text(token: int) -> str:
    """Return the text of the token at this index: words of three tokens, and sentences of four words."""
    text = " a" if token % WORD_TOKENS == 0 else "b"
    return f"{text}." if token % SENTENCE_TOKENS == SENTENCE_TOKENS - 1 else text


def scorer_of(model: PlantedModel, mode: str, unit: str, objective: str = "target") -> SubsetScorer:
    # The planted model tells tokens apart by their position IDs.
    tokens = np.ones(FAR + NEAR, np.int64)
    window = TargetWindow(start=tokens[:0], far=tokens[:FAR], near=tokens[FAR:], target=TARGET)
    long = model.log_probs(torch.from_numpy(tokens)[None], torch.arange(FAR + NEAR)[None])[0]
    units = split_into_units(unit, np.arange(FAR), token_text)
    return SubsetScorer(
        evaluator=WindowEvaluator(model, window),
        mode=mode,
        objective=TargetLoss(TARGET) if objective == "target" else KLDivergence(long),
        units=units,
        candidates=np.arange(len(units)),
    )


def search(measure: str, scorer: SubsetScorer, k: int) -> tuple[list[int], float]:
    """Return the first token of the first k units that a measure selects, and the gain of all of them together."""
    ranking = MEASURES[measure]().select_tokens(scorer, k, np.random.default_rng(0))
    scores = scorer.scores(np.stack([scorer.visibility_mask(subset) for subset in ([], ranking.indices)]))
    return [int(scorer.units[index][0]) for index in ranking.indices], float(scores[0] - scores[1])


def units_of(scorer: SubsetScorer, *tokens: int) -> list[int]:
    """Return the first token of the unit of each token."""
    return [next(int(unit[0]) for unit in scorer.units if token in unit) for token in tokens]


def test_every_measure_has_a_documented_result():
    assert {*INFORMED, "attention", "nearest", "random"} == set(MEASURES)


@over_modes
@over_units
@pytest.mark.parametrize("measure", INFORMED)
@pytest.mark.covering(1)
def test_one_token_is_in_the_first_unit(measure, unit, mode):
    scorer = scorer_of(PlantedModel(additive_log_prob({FIRST: 2.0}), FAR), mode, unit)
    found, gain = search(measure, scorer, 1)
    assert found == units_of(scorer, FIRST)
    assert gain == pytest.approx(2.0, abs=1e-5)


@over_modes
@over_units
@over_objectives
@pytest.mark.parametrize("measure", INFORMED)
@pytest.mark.covering(1)
def test_several_tokens_are_found_in_the_order_of_their_weights(measure, objective, unit, mode):
    scorer = scorer_of(PlantedModel(additive_log_prob(WEIGHTS), FAR), mode, unit, objective)
    found, _ = search(measure, scorer, len(WEIGHTS))
    expected = units_of(scorer, 3, 90, 17, 65)
    # A step of ``proposed`` adds several units.
    assert sorted(found) == sorted(expected)
    assert measure == "proposed" or found == expected


@over_modes
@over_units
@pytest.mark.parametrize("measure", INFORMED)
@pytest.mark.covering(1)
def test_a_run_of_tokens_needs_as_many_units_as_it_overlaps(measure, unit, mode):
    run = range(48, 51)
    scorer = scorer_of(PlantedModel(additive_log_prob(dict.fromkeys(run, 0.6)), FAR), mode, unit)
    expected = sorted(set(units_of(scorer, *run)))
    assert len(expected) == (len(run) if unit == "token" else 1)
    found, gain = search(measure, scorer, len(expected))
    assert sorted(found) == expected
    assert gain == pytest.approx(1.8, abs=1e-5)


@over_modes
@over_units
def test_only_leave_one_out_and_gradients_find_units_that_count_jointly(unit, mode):
    scorer = scorer_of(PlantedModel(conjunction_log_prob(FIRST, SECOND), FAR), mode, unit)
    for measure in ("leave_one_out", "gradient"):
        found, gain = search(measure, scorer, 2)
        assert found == units_of(scorer, FIRST, SECOND)
        assert gain == pytest.approx(2.0, abs=1e-5)
    for measure in ("add_one_in", *GREEDY):
        ranking = MEASURES[measure]().select_tokens(scorer, 1, np.random.default_rng(0))
        assert ranking.gains == pytest.approx([0.0], abs=1e-5)


@over_modes
@pytest.mark.parametrize("measure", INFORMED)
def test_tokens_that_count_jointly_are_found_if_one_unit_has_both(measure, mode):
    scorer = scorer_of(PlantedModel(conjunction_log_prob(48, 50), FAR), mode, "word")
    found, gain = search(measure, scorer, 1)
    assert found == [48]
    assert gain == pytest.approx(2.0, abs=1e-5)


@over_modes
@over_units
def test_only_leave_one_out_misses_copies(unit, mode):
    scorer = scorer_of(PlantedModel(redundant_log_prob(FIRST, SECOND), FAR), mode, unit)
    for measure in set(INFORMED) - {"leave_one_out"}:
        found, gain = search(measure, scorer, 1)
        assert found == units_of(scorer, FIRST)
        assert gain == pytest.approx(2.0, abs=1e-5)
    ranking = MEASURES["leave_one_out"]().select_tokens(scorer, 2, np.random.default_rng(0))
    assert ranking.gains == pytest.approx([0.0, 0.0], abs=1e-5)
    # Greedy searches look for something else than the copy.
    both = PlantedModel(sum_of(redundant_log_prob(FIRST, SECOND), additive_log_prob({80: 0.5})), FAR)
    scorer = scorer_of(both, mode, unit)
    for measure in ("proposed", "greedy"):
        assert search(measure, scorer, 2)[0] == units_of(scorer, FIRST, 80)
    # A tenth of a few units are fewer than k, so the prefilter leaves no choice.
    has_choice = 0.1 * len(scorer.units) > 2
    assert search("screened", scorer, 2)[0] == units_of(scorer, FIRST, 80 if has_choice else SECOND)
    for measure in ("add_one_in", "gradient"):
        assert search(measure, scorer, 2)[0] == units_of(scorer, FIRST, SECOND)


def sum_of(*log_probs: TargetLogProb) -> TargetLogProb:
    """Return the sum of the effects on a log-probability of -3."""
    return lambda visible: -3.0 + sum(log_prob(visible) + 3.0 for log_prob in log_probs)


@over_modes
@over_units
def test_uninformed_measures_ignore_the_model(unit, mode):
    scorer = scorer_of(PlantedModel(additive_log_prob({FIRST: 2.0}), FAR), mode, unit)
    firsts = [int(each[0]) for each in scorer.units]
    assert search("nearest", scorer, 3)[0] == firsts[:-4:-1]
    # The planted model attends to all tokens equally.
    largest = sorted(firsts, key=lambda first: -len(scorer.units[firsts.index(first)]))
    assert search("attention", scorer, 3)[0] == largest[:3]
    assert len(set(search("random", scorer, 3)[0])) == 3


# Effects through another near token, the largest last, so that ties favor none of them.
RELAYED = {41: 0.3, 53: 0.5, 65: 0.7, 80: 0.9}


def relayed_log_prob(visible: Tensor) -> Tensor:
    """Return the effects through another near token."""
    return additive_log_prob(RELAYED)(visible) + 3.0


# Small effects on the last near token itself.
DISTRACTORS = {0: 0.02, 13: 0.02, 25: 0.02}


@pytest.mark.parametrize("mode", ["strict", "masked"])
@over_units
@pytest.mark.parametrize("direct", [{}, DISTRACTORS], ids=["none", "small"])
@pytest.mark.parametrize("measure", INFORMED)
@pytest.mark.covering(1)
def test_units_that_act_through_other_near_tokens_are_found(measure, direct, unit, mode):
    model = PlantedModel(additive_log_prob(direct), FAR, relayed_log_prob)
    scorer = scorer_of(model, mode, unit)
    found, gain = search(measure, scorer, 4)
    assert sorted(found) == units_of(scorer, *RELAYED)
    assert gain == pytest.approx(2.4, abs=1e-4)


@pytest.mark.parametrize("mode", ["strict", "masked"])
@pytest.mark.parametrize("unit", ["token", "word", "span:8"])
def test_proposals_miss_units_without_a_slope_that_act_through_other_near_tokens(unit, mode):
    small = dict.fromkeys((0, 13, 25, 37, 49), 0.02)
    model = PlantedModel(additive_log_prob(small), FAR, lambda visible: 2.0 * visible[..., 80] ** 3)
    scorer = scorer_of(model, mode, unit)
    for measure in ("add_one_in", "leave_one_out", "greedy"):
        assert search(measure, scorer, 1)[0] == units_of(scorer, 80)
    _, gain = search("proposed", scorer, 1)
    assert gain == pytest.approx(0.02, abs=1e-5)


@over_units
def test_in_decode_mode_other_near_tokens_have_read_everything(unit):
    model = PlantedModel(additive_log_prob({FIRST: 0.5}), FAR, relayed_log_prob)
    scorer = scorer_of(model, "decode", unit)
    for measure in INFORMED:
        ranking = MEASURES[measure]().select_tokens(scorer, 2, np.random.default_rng(0))
        assert units_of(scorer, FIRST) == [int(scorer.units[ranking.indices[0]][0])], measure
        assert ranking.gains[1] == pytest.approx(0.0, abs=1e-5)
        assert search(measure, scorer, 2)[1] == pytest.approx(0.5, abs=1e-5)
