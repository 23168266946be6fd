"""Parts of benchmarks/influence_peers.py that need none of the compared packages."""

import numpy as np
import pytest
import torch
from influence_peers import KS, NUM_COPIED, PLANTED_FAR, plant_copy, rank, rank_by_tokens, table
from tests.support.planted_model import PlantedModel, no_effect

from lengthwise.influence.hidden_context import TargetWindow, WindowEvaluator
from lengthwise.influence.measures import KLDivergence, SubsetScorer
from lengthwise.influence.units import split_into_units


def window_of(far, near=8, start=1):
    tokens = np.arange(start + far + near)
    return TargetWindow(start=tokens[:start], far=tokens[start : start + far], near=tokens[start + far :], target=0)


def scorer_of(window, unit):
    units = split_into_units(unit, window.far, lambda token: "")
    return SubsetScorer(
        evaluator=WindowEvaluator(PlantedModel(no_effect, window.num_far_tokens), window),
        mode="strict",
        objective=KLDivergence(torch.zeros(4).log_softmax(0)),
        units=units,
        candidates=np.arange(len(units)),
    )


def test_units_of_equal_value_are_ranked_by_distance():
    assert rank(scorer_of(window_of(20), "span:5"), np.array([0.0, 2.0, 0.0, -1.0])) == [1, 2, 0, 3]


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("unit", ["token", "span:5", "span:7"])
def test_values_of_tokens_reach_the_unit_that_has_the_token(unit, start):
    scorer = scorer_of(window_of(20, start=start), unit)
    for number, far_tokens in enumerate(scorer.units):
        for token in far_tokens:
            values = torch.zeros(start + 28)
            # Values of start and near tokens belong to no unit.
            values[:start], values[-8:], values[start + token] = 9.0, 9.0, 1.0
            assert rank_by_tokens(scorer, values)[0] == number


def test_a_planted_window_repeats_the_start_of_one_unit_and_asks_for_its_next_token():
    window, text = window_of(2 * PLANTED_FAR), np.arange(5000, 6000)
    for seed in range(5):
        unit, planted = plant_copy(window, text, "span:8", seed)
        (place,) = (units := split_into_units("span:8", planted.far, lambda token: ""))[unit : unit + 1]
        copied = planted.far[place]
        assert set(copied.tolist()) <= set(text.tolist())
        assert [*planted.near[-NUM_COPIED:], planted.target] == copied[: NUM_COPIED + 1].tolist()
        others = np.delete(np.arange(PLANTED_FAR), place)
        assert planted.far[others].tolist() == window.far[-PLANTED_FAR:][others].tolist()
        assert len(units) == PLANTED_FAR // 8


def test_the_table_divides_sums_over_the_targets_of_all_methods():
    def row(method, target, short, divergence):
        shared = {"kind": "text", "seconds": 1.0, "forward_tokens": 10, "is_key": True, "is_key_by_our_rule": True}
        return shared | {
            "method": method,
            "target": target,
            "divergence_short": short,
            "divergences": [divergence] * len(KS),
        }

    rows = [
        row("proposed", 0, 3.0, 0.0),
        row("proposed", 1, 1.0, 1.0),
        row("peer", 0, 3.0, 1.0),
        row("peer", 1, 1.0, 1.0),
    ]
    rows.append(row("proposed", 2, 5.0, 5.0))
    lines = table(rows).splitlines()
    assert lines[0] == "2 targets"
    proposed, peer = ([cell.split(" [")[0] for cell in line.strip("| ").split(" | ")] for line in lines[4:6])
    assert proposed[:2] == ["proposed", "0.75"]
    assert peer[:2] == ["peer", "0.50"]
    assert peer[-1] == "0.25"
