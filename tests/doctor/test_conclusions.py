"""Conclusions from planted measurements: the planted failure and cause are found, and noise is "cannot tell"."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.text_models import byte_tokenizer, tiny_model

from lengthwise.doctor.changes import DROPPED, RESTORED, Change
from lengthwise.doctor.conclusions import Findings
from lengthwise.doctor.measurements import BAND, CACHE, LOSS, NEEDLE, PUBLISHED, Subject
from lengthwise.doctor.plan import Plan
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.hf.language_models import LanguageModel
from lengthwise.hf.tokenization import HFTokenizerAdapter

TINY = LanguageModel(model=CausalLM(tiny_model("llama"), "tiny"), codec=HFTokenizerAdapter(byte_tokenizer(), "tiny"))
LENGTHS, TRAINED = (128, 256, 512, 1024), 512
REPAIR = Change(name="YaRN 2x", cause="its angles are new", edit={"rope_parameters": {"factor": 2.0}})
START = Change(name="start token 1", cause="its tokenizer omits it", first_token=1, everywhere=True)
THETA = Change(name="rope_theta 500,000", cause="its theta is another", edit={"rope_theta": 5e5}, everywhere=True)
WITHOUT_MIDDLE = Change(name=DROPPED, cause="more tokens disturb it", kept_first=64)
ANGLES = Change(name=RESTORED, cause="its angles in memory are others")
OTHER = Change(name="log-length scaling", cause="its attention spreads", edit={"log_length_from": 512})


def plant(increase, *, documents=8, noise=0.0, changes=(), cost=None, bands=(), cache=(), needles=None):
    """Return findings with mean losses 3 plus ``increase`` by length, and with gains by change at the last length.

    ``cost`` is the increase of the loss at the length before the last with the first change.
    """
    rng, values = np.random.default_rng(0), {}
    for index in range(documents):
        level = 3 + rng.normal()
        for length, extra in zip(LENGTHS, increase, strict=True):
            values[LOSS, index, length, PUBLISHED] = level + extra + noise * rng.normal()
        for change, gain in changes:
            values[LOSS, index, LENGTHS[-1], change.name] = level + increase[-1] - gain + noise * rng.normal()
        if cost is not None:
            before_last = values[LOSS, index, LENGTHS[-2], PUBLISHED]
            values[LOSS, index, LENGTHS[-2], changes[0][0].name] = before_last + cost + noise * rng.normal()
        for near, length, gain in bands:
            values[BAND, index, length, near, "other"] = values[LOSS, index, length, PUBLISHED] + gain
        for name, share in needles or ():
            values[NEEDLE, index, name] = [number < round(4 * share) for number in range(4)]
        if cache:
            divergences = {name: [1 - share for share in shares] for name, shares in cache}
            values[CACHE, index, 512] = {"far": 64, "tokens": [8, 16, 32], "nothing": 1.0, "divergences": divergences}
    plan = Plan(lengths=LENGTHS, documents=documents, trained=TRAINED, num_targets=16)
    used = [change for change, _ in changes]
    subject = Subject(language_model=TINY, trained=TRAINED, max_length=None, changes=used, impossible=())
    return Findings(values=values, plan=plan, subject=subject, own_tokens=[2048] * documents, seed=0)


def test_a_model_that_breaks_after_its_trained_context_is_found():
    findings = plant((0.0, -0.1, -0.1, 0.8), noise=0.005, changes=[(REPAIR, 0.85), (OTHER, 0.1)])
    assert (findings.works_to, findings.fails_at) == (512, 1024)
    why, change = findings.why_box(), findings.change_box()
    assert why["cause"] == REPAIR.cause
    assert why["rows"][0]["share"]["value"] == pytest.approx(0.85 / 0.9, abs=0.02)
    assert why["lost"]["low"] < 0.9 < why["lost"]["high"]
    assert change["lines"] == REPAIR.lines()
    assert findings.answers({"works": findings.works_box(), "needs": why, "change": change})[0]["answer"][:3] == "No."


def test_an_unclear_short_length_is_no_failure():
    findings = plant((0.0, 0.0, 0.0, 0.8), noise=0.001, changes=[(REPAIR, 0.8)])
    for index in range(8):
        findings.values[LOSS, index, 128, PUBLISHED] += (-1) ** index
    assert [row.get("verdict") for row in findings.length_rows][1] == "cannot tell"
    assert (findings.works_to, findings.no_failure_to, findings.fails_at) == (None, 512, 1024)
    assert "Nothing fails clearly up to 512 tokens" in findings.works_box()["sentence"]
    assert "limit the input to 512 tokens" in findings.change_box()["sentence"]


def test_a_healthy_model_needs_no_change():
    findings = plant((0.0, -0.1, -0.1, -0.1), noise=0.005)
    assert (findings.works_to, findings.fails_at) == (1024, None)
    assert findings.change_box()["lines"] == []
    assert findings.why_box()["cause"] is None


def test_a_model_without_positions_for_twice_its_context_cannot_be_fed_it():
    findings = plant((0.0, -0.1, -0.1, -0.1), noise=0.005)
    findings = replace(findings, subject=replace(findings.subject, max_length=TRAINED))
    boxes = {"works": findings.works_box(), "needs": findings.needs_box(), "change": findings.change_box()}
    assert "only 512 positions" in findings.answers(boxes)[0]["answer"]


@pytest.mark.parametrize(("documents", "noise"), [(4, 0.005), (8, 2.0)])
def test_few_documents_or_noise_give_no_conclusion(documents, noise):
    findings = plant((0.0, 0.0, 0.0, 0.5), documents=documents, noise=noise, changes=[(REPAIR, 0.5)])
    assert findings.fails_at is None
    assert "annot tell" in findings.works_box()["sentence"]
    assert findings.why_box()["cause"] is None
    assert findings.change_box()["lines"] == []


def test_two_causes_with_equal_gains_are_not_distinguished():
    findings = plant((0.0, 0.0, 0.0, 0.8), noise=0.01, changes=[(REPAIR, 0.7), (OTHER, 0.7)])
    assert findings.fails_at == 1024
    assert findings.why_box()["cause"] is None


@pytest.mark.parametrize("fault", [START, THETA], ids=["start", "theta"])
@pytest.mark.parametrize(
    ("gain", "increase", "repair"), [(0.3, 0.0, 0.0), (0.0, 0.0, 0.0), (0.3, 0.8, 0.7), (0, 0.8, 0.7)]
)
def test_a_fault_at_all_lengths_comes_before_a_cause_at_one_length(fault, gain, increase, repair):
    findings = plant((0.0, 0.0, 0.0, increase), noise=0.005, changes=[(REPAIR, repair)])
    values = dict(findings.values)
    for index in range(8):
        for change in (START, THETA):
            better = gain if change is fault else 0.0
            values[LOSS, index, LENGTHS[0], change.name] = values[LOSS, index, LENGTHS[0], PUBLISHED] - better
    subject = replace(findings.subject, changes=[REPAIR, START, THETA])
    findings = replace(findings, values=values, subject=subject)
    why, change = findings.why_box(), findings.change_box()
    assert why["cause"] == (fault.cause if gain else REPAIR.cause if repair else None)
    assert change["lines"] == (fault.lines() if gain else REPAIR.lines() if repair else [])
    assert (fault.name in change["sentence"]) == (gain > 0)


@pytest.mark.parametrize(
    ("gain", "cost", "gain_without_middle", "cause"),
    [
        # The edit has a cost of 0.4 at any length, and the rest of the increase is gone.
        (0.5, 0.4, 0.9, REPAIR.cause),
        (0.85, 0.0, 0.9, REPAIR.cause),
        # The increase stays with the edit.
        (0.1, 0.0, 0.9, WITHOUT_MIDDLE.cause),
        (0.1, -0.1, 0.9, WITHOUT_MIDDLE.cause),
        # Half of the increase stays, or the cost was not measured.
        (0.45, 0.0, 0.9, None),
        (0.45, None, 0.9, None),
        (0.0, None, 0.9, WITHOUT_MIDDLE.cause),
    ],
)
def test_inputs_without_the_middle_explain_what_edits_leave(gain, cost, gain_without_middle, cause):
    changes = [(REPAIR, gain), (WITHOUT_MIDDLE, gain_without_middle)]
    findings = plant((0.0, 0.0, 0.0, 0.9), noise=0.005, changes=changes, cost=cost)
    assert findings.why_box()["cause"] == cause


@pytest.mark.parametrize(
    ("gain", "gain_without_middle", "cause"),
    [(0.9, 0.0, ANGLES.cause), (0.9, 0.9, ANGLES.cause), (0.5, 0.0, ANGLES.cause), (1.2, 0.0, REPAIR.cause)],
)
def test_an_edit_explains_more_than_the_angles_that_it_restores_or_nothing(gain, gain_without_middle, cause):
    changes = [(REPAIR, gain), (ANGLES, 0.9), (WITHOUT_MIDDLE, gain_without_middle)]
    findings = plant((0.0, 0.0, 0.0, 1.3), noise=0.005, changes=changes)
    assert findings.why_box()["cause"] == cause
    assert findings.change_box()["lines"] == []


def test_a_single_measured_change_is_named_with_a_reserve():
    findings = plant((0.0, 0.0, 0.0, 0.9), noise=0.005, changes=[(REPAIR, 0.85)])
    assert "another cause" not in findings.why_box()["sentence"]
    subject = replace(findings.subject, changes=[REPAIR, OTHER])
    assert "another cause" in replace(findings, subject=subject).why_box()["sentence"]


def test_changes_without_a_gain_name_no_cause():
    findings = plant((0.0, 0.0, 0.0, 0.8), noise=0.01, changes=[(REPAIR, 0.0), (OTHER, -0.3)])
    assert findings.why_box()["cause"] is None
    assert findings.change_box()["lines"] == []


@pytest.mark.parametrize(
    ("gains", "needed"), [((0.5, 0.3), 512), ((0.5, 0.0), 256), ((0.0, 0.0), 128), ((0.0, 0.3), 512)]
)
def test_texts_need_the_last_band_with_a_gain(gains, needed):
    bands = [(128, 256, gains[0]), (256, 512, gains[1])]
    assert plant((0.0,) * 4, noise=0.001, bands=bands).needs_box()["needed_to"] == needed


@pytest.mark.parametrize("documents", [2, 8])
def test_bands_without_a_clear_gain_are_unclear_with_few_and_with_many_documents(documents):
    findings = plant((0.0,) * 4, noise=0.001, documents=documents, bands=[(128, 256, 0.0), (256, 512, 0.0)])
    for index in range(documents):
        findings.values[BAND, index, 512, 256, "other"] += (-1) ** index
    box = findings.needs_box()
    assert box["needed_to"] is None
    assert "cannot tell" in box["sentence"]
    assert ("at most" in box["sentence"]) == (documents == 8)


def test_fewer_needles_end_the_context_that_works():
    shares = dict(zip(LENGTHS, (1.0, 1.0, 0.25, 0.25), strict=True))
    assert plant((0.0,) * 4, noise=0.001, needles=shares.items()).works_to == 256
    # A length with a worse loss and fewer needles fails by its loss.
    at_last = dict(zip(LENGTHS, (1.0, 1.0, 1.0, 0.25), strict=True))
    worse = plant((0.0, 0.0, 0.0, 0.9), noise=0.001, needles=at_last.items())
    assert (worse.works_to, worse.fails_at) == (512, 1024)
    both = plant((0.0, 0.0, 0.0, 0.9), noise=0.001, needles=shares.items())
    assert (both.works_to, both.fails_at) == (256, 1024)
    assert "512 tokens, it finds fewer needles than at 256" in both.works_box()["sentence"]
    # At chance, a model never found them.
    assert plant((0.0,) * 4, noise=0.001, needles=[(length, 0.25) for length in LENGTHS]).works_to == 1024


def test_the_cache_budget_is_the_smallest_number_of_tokens_that_keeps_the_effect():
    names = ("attention", "key norm", "nearest", "random")
    cache = [("exact search", (0.5, 0.92, 0.99)), *((name, (0.1, 0.2, 0.93)) for name in names)]
    rows = plant((0.0,) * 4, cache=cache).keep_box()["rows"]
    assert [row["budgets"][0]["k"] for row in rows] == [16, 32, 32, 32, 32]
    assert [row["budgets"][1]["beyond"] for row in rows] == [False, True, True, True, True]
