"""Tests of couplings that are found with the answers of a model."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tasks.coupling.test_find_coupling import CopyOfDoubledPrompt
from tests.tasks.test_jsonl_task import write_records

import lengthwise as lw
from lengthwise.core.defaults import DEPENDENCE, MODEL
from lengthwise.core.errors import AmbiguousCouplingError, CouplingError, SettingError, TooFewExamplesError
from lengthwise.experiments import coupling_methods
from lengthwise.tasks import Copy, JSONLTask, Parity
from lengthwise.tasks.coupling.answer_steps import build_answer_steps, join_steps
from lengthwise.tasks.coupling.found_coupling import find_coupling_in_steps
from lengthwise.tasks.examples import Examples

RULE = ("one", "rising: prompt first +1 +0")


def parity_steps(lengths, size, shift=0):
    """Return answers of parity; with a shift, the last answer of each sequence is wrong."""
    parts = []
    for length in lengths:
        examples = Parity().sample(length=length, size=size, rng=np.random.default_rng(length + shift))
        tokens = examples.tokens.copy()
        if shift:
            tokens[:, -2] = 1 - tokens[:, -2]
        parts.append(build_answer_steps(replace(examples, tokens=tokens), length))
    return join_steps(parts)


def separated_steps(lengths, size, constant):
    """Return answers that copy a prompt token, then write a separator; it follows the token unless it is constant."""
    parts, rng = [], np.random.default_rng(0)
    for length in lengths:
        letters = rng.integers(0, 3, size=(size, length))
        separators = np.full_like(letters, 4) if constant else 4 + letters % 2
        response = np.stack([letters, separators], axis=2).reshape(size, -1)
        ends = [np.full((size, 1), token) for token in (3, 3, 6)]
        tokens = np.concatenate([letters, *ends[:2], response, ends[2]], axis=1)
        parts.append(build_answer_steps(Examples.with_prompt_length(tokens, length + 2), length))
    return join_steps(parts)


def test_the_answers_of_a_model_give_the_rule_and_the_records_check_it():
    found = find_coupling_in_steps(
        parity_steps((2, 3, 4, 5), 200), Parity().vocabulary, records=parity_steps((3, 8), 4)
    )
    assert found.rule.saved_texts == RULE
    assert (found.method, found.checked_lengths, found.checked_accuracy) == (MODEL, (8,), 1.0)


def test_records_that_follow_another_rule_refuse_the_rule_of_a_model():
    steps, records = parity_steps((2, 3, 4, 5), 200), parity_steps((7, 8), 40, shift=1)
    with pytest.raises(CouplingError, match=r"the rule of the other examples is wrong for \d+\.\d% .* at length 7"):
        find_coupling_in_steps(steps, Parity().vocabulary, records=records)


def test_one_wrong_record_refuses_the_rule_of_a_model():
    steps, records = parity_steps((2, 3, 4, 5), 200), parity_steps((3, 8), 40)
    wrong = records.tokens.copy()
    wrong[-1, records.prompt_lengths[-1]] = 1 - wrong[-1, records.prompt_lengths[-1]]
    with pytest.raises(CouplingError, match=r"the rule of the other examples is wrong for 0\.\d% .* at length 8"):
        find_coupling_in_steps(steps, Parity().vocabulary, records=replace(records, tokens=wrong))


@pytest.mark.slow
def test_constant_answers_of_a_model_are_checked_too():
    # Every second answer is a constant in the model's answers, but not in the records.
    steps, records = separated_steps((2, 3, 4, 5), 200, constant=True), separated_steps((3, 8), 40, constant=False)
    with pytest.raises(CouplingError, match=r"the rule of the other examples is wrong for \d+\.\d% of the answers"):
        find_coupling_in_steps(steps, tuple("0123456"), records=records)


def test_a_model_needs_records_of_several_lengths():
    steps = parity_steps((2, 3, 4, 5), 200)
    with pytest.raises(CouplingError, match=r"all examples have the same length; use examples of at least two"):
        find_coupling_in_steps(steps, Parity().vocabulary, records=parity_steps((8,), 40))
    with pytest.raises(TooFewExamplesError, match=r"no examples are longer than those that the model learned; add"):
        find_coupling_in_steps(steps, Parity().vocabulary, records=parity_steps((4, 5), 8))


def test_auto_asks_a_model_only_if_the_examples_are_too_few(tmp_path, monkeypatch):
    records = [{"prompt": "a b c"[: 2 * n - 1], "response": "a b c"[: 2 * n - 1]} for n in (1, 2, 3)]
    task = JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", records)))
    asked = []

    def refuse(*args, error=TooFewExamplesError, **settings):
        raise error("reason")

    def ask(*args, **settings):
        asked.append(args)
        raise CouplingError("the model does not fit")

    monkeypatch.setattr(coupling_methods, "sample_model_answers", ask)
    monkeypatch.setattr(coupling_methods, "find_coupling_in_examples", refuse)
    with pytest.raises(CouplingError, match="the model does not fit"):
        lw.find_coupling(task)
    with pytest.raises(TooFewExamplesError, match="reason"):
        lw.find_coupling(task, method=DEPENDENCE)
    # A task with a sampler can draw more examples.
    with pytest.raises(TooFewExamplesError, match="reason"):
        lw.find_coupling(Parity())
    assert len(asked) == 1
    monkeypatch.setattr(coupling_methods, "find_coupling_in_examples", lambda *a, **s: refuse(error=CouplingError))
    with pytest.raises(CouplingError, match="reason"):
        lw.find_coupling(task)
    assert len(asked) == 1


def test_no_model_decides_between_two_explanations(monkeypatch):
    monkeypatch.setattr(coupling_methods, "sample_model_answers", lambda *args, **settings: pytest.fail("asked"))
    with pytest.raises(AmbiguousCouplingError, match="two sets of tokens explain every answer equally well"):
        lw.find_coupling(CopyOfDoubledPrompt(), (2, 3, 4, 5, 6), method=MODEL, num_per_length=100)


def test_an_unknown_method_raises_an_error():
    with pytest.raises(SettingError, match=r"method 'guess' is unknown; choose one of auto, dependence, model"):
        lw.find_coupling(Parity(), method="guess")


def test_a_model_that_does_not_fit_its_examples_is_refused(monkeypatch):
    monkeypatch.setattr(coupling_methods, "TRAINING", replace(coupling_methods.TRAINING, steps=2, cooldown_steps=1))
    reported = []
    with pytest.raises(CouplingError, match=r"trained on the lengths 2 to 6 answers \d+% of \d+ other examples"):
        lw.find_coupling(Parity(), method=MODEL, num_per_length=40, report=reported.append)
    # Each stage has its own total, and so has the training.
    assert all(row["done"] <= row["total"] for row in reported)
    assert [row["total"] for row in reported if "loss" in row["stage"]] == [2]


@pytest.mark.slow
def test_a_model_finds_the_rule_of_copying():
    found = lw.find_coupling(Copy(), method=MODEL, num_per_length=300)
    assert found.rule.saved_texts == RULE
    assert found.method == MODEL
    assert found.checked_lengths == (7, 8)


@pytest.mark.parametrize("settings", [{"lengths": []}, {"num_per_length": 0}, {"num_per_length": -3}])
def test_a_search_without_examples_raises_an_error(settings):
    with pytest.raises(SettingError, match="at least"):
        lw.find_coupling(Parity(), **settings)
