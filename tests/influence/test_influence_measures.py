"""What each measure finds in models whose dependence on far tokens is known, and what it is blind to."""

import numpy as np
import pytest
import torch
from tests.support.planted_model import TARGET, PlantedModel, additive, copies, exclusive_or

from lengthwise.core.errors import SettingError
from lengthwise.influence.measures import (
    MEASURES,
    AddOneIn,
    AttentionWeight,
    Gradient,
    Greedy,
    LeaveOneOut,
    RandomChoice,
    Screened,
)
from lengthwise.influence.probing.objective import Divergence, TargetLoss
from lengthwise.influence.probing.subset_scoring import Probe, Reading
from lengthwise.influence.probing.window import Window

FAR, NEAR = 40, 4
WEIGHTS = {3: 0.9, 17: 0.5, 18: 0.3, 39: 0.7}
RNG = np.random.default_rng(0)
EXACT = {name: entry() for name, entry in MEASURES.items() if entry.exact}
over_modes = pytest.mark.parametrize("mode", ["strict", "masked"])
over_objectives = pytest.mark.parametrize("objective", ["target", "prediction"])


def probe_of(model: PlantedModel, mode: str = "strict", objective: str = "target") -> Probe:
    tokens = np.arange(FAR + NEAR)
    window = Window(start=tokens[:0], far=tokens[:FAR], near=tokens[FAR:], target=TARGET)
    long = model.log_probs(torch.from_numpy(tokens)[None], torch.arange(FAR + NEAR)[None])[0]
    return Probe(
        reading=Reading(model, window),
        mode=mode,
        objective=TargetLoss(TARGET) if objective == "target" else Divergence(long),
        candidates=np.arange(FAR),
    )


@over_modes
@over_objectives
@pytest.mark.parametrize("measure", EXACT.values(), ids=EXACT)
def test_every_exact_measure_recovers_the_support_of_an_additive_model(measure, objective, mode):
    found = measure.choose(probe_of(PlantedModel(additive(WEIGHTS), FAR), mode, objective), len(WEIGHTS), RNG)
    assert set(found.chosen) == set(WEIGHTS)


@over_modes
@pytest.mark.parametrize("measure", EXACT.values(), ids=EXACT)
def test_gains_in_an_additive_model_are_its_weights_largest_first(measure, mode):
    found = measure.choose(probe_of(PlantedModel(additive(WEIGHTS), FAR), mode), len(WEIGHTS), RNG)
    assert found.chosen == (3, 39, 17, 18)
    assert found.gains == pytest.approx([0.9, 0.7, 0.5, 0.3], abs=1e-5)


def test_a_gradient_recovers_the_support_of_an_additive_model():
    found = Gradient().choose(probe_of(PlantedModel(additive(WEIGHTS), FAR)), 4, RNG)
    assert found.chosen == (3, 39, 17, 18)


@over_modes
def test_add_one_in_and_greedy_are_blind_to_what_counts_jointly_and_leave_one_out_is_not(mode):
    probe = probe_of(PlantedModel(exclusive_or(5, 23), FAR), mode)
    for blind in (AddOneIn(), Greedy()):
        assert blind.choose(probe, 1, RNG).gains == pytest.approx([0.0], abs=1e-5)
    found = LeaveOneOut().choose(probe, 2, RNG)
    assert set(found.chosen) == {5, 23}
    assert found.gains == pytest.approx([2.0, 2.0], abs=1e-5)


@over_modes
def test_leave_one_out_is_blind_to_copies_and_greedy_takes_one_of_them(mode):
    probe = probe_of(PlantedModel(copies(5, 23), FAR), mode)
    assert LeaveOneOut().choose(probe, 2, RNG).gains == pytest.approx([0.0, 0.0], abs=1e-5)
    assert set(AddOneIn().choose(probe, 2, RNG).chosen) == {5, 23}
    found = Greedy().choose(probe, 2, RNG)
    assert found.chosen[0] == 5
    assert found.gains == pytest.approx([2.0, 0.0], abs=1e-5)


def test_attention_does_not_know_what_the_value_of_a_token_does():
    chosen = AttentionWeight().choose(probe_of(PlantedModel(additive(WEIGHTS), FAR)), 4, RNG).chosen
    assert chosen == (0, 1, 2, 3)


def test_a_random_choice_asks_nothing_and_repeats_no_token():
    model = PlantedModel(additive(WEIGHTS), FAR)
    probe = probe_of(model)
    before = model.rows_asked
    found = RandomChoice().choose(probe, FAR, np.random.default_rng(1))
    assert sorted(found.chosen) == list(range(FAR))
    assert model.rows_asked == before


def test_screening_asks_about_a_tenth_of_the_tokens_and_finds_the_same():
    model = PlantedModel(additive(WEIGHTS), FAR)
    probe = probe_of(model)
    counts = []
    for measure in (LeaveOneOut(), Screened(then=LeaveOneOut(), share=0.1)):
        before = model.rows_asked
        assert set(measure.choose(probe, 4, RNG).chosen) == set(WEIGHTS)
        counts.append(model.rows_asked - before)
    assert counts == [FAR + 1, 5]


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_a_measure_chooses_as_many_as_asked_for_among_its_candidates(measure):
    candidates = np.array([4, 8, 15, 16, 23])
    probe = probe_of(PlantedModel(additive(WEIGHTS), FAR)).among(candidates)
    found = measure().choose(probe, 3, np.random.default_rng(0))
    assert len(found.chosen) == len(found.gains) == len(set(found.chosen)) == 3
    assert set(found.chosen) <= set(candidates.tolist())


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_screening_refuses_what_is_no_share(share):
    with pytest.raises(SettingError, match=rf"not {share}; use 0.1, or up to 1"):
        Screened(share=share)
