"""Task files with a found coupling: written records, runs, and prompts without a coupling."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.cli.test_cli import output_of
from tests.support.small_runs import small_experiment
from tests.tasks.test_jsonl_task import reversals, without_coupling, write_records

import lengthwise as lw
from lengthwise.cli.app import main
from lengthwise.core.errors import (
    CouplingError,
    LengthwiseError,
    PromptError,
    SettingError,
    TaskFileError,
    UnsupportedTaskError,
)
from lengthwise.evaluation.exact_match import EvaluationSettings
from lengthwise.experiments import coupling_methods
from lengthwise.experiments.recipes import quick_version
from lengthwise.experiments.run import load_run, train
from lengthwise.experiments.run_evaluation import (
    certify_run,
    diagnose_run,
    evaluate,
    generate_from_prompt,
    task_with_dependencies,
)
from lengthwise.positions import DiscoveredCoupling, Predicted, Sequential, describe_given_information
from lengthwise.tasks import Copy, JSONLTask
from lengthwise.tasks.coupling.found_coupling import find_coupling_in_examples as find_coupling
from lengthwise.tasks.coupling.pointers import find_needed_tokens, parse_pointer_rule
from lengthwise.tasks.coupling.report import describe_rule_conditions

# The last prompt token of a task file is <mark>.
RULE = ("one", "falling: prompt last -1 -1")
COUPLED_RECORD = {
    "prompt": "1 2 + 3 4",
    "response": "4 6",
    "coupling": [[1, 2, 3, 4, 5, 6, 1, 2, 3], [1, 2, 3, 4, 5, 6, 4, 5, 6]],
    "length": 2,
}


@pytest.fixture
def bare_file(tmp_path):
    """Task file with reversed letters and no coupling."""
    return write_records(tmp_path / "rows.jsonl", without_coupling(reversals(range(1, 7), count=40)))


def test_two_levels_with_numbers_for_mark_and_end_become_the_ids_of_the_next_tokens(tmp_path):
    task = JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", [COUPLED_RECORD])))
    examples = task.records_at(2, np.array([0]))
    # 1 2 + 3 4 <mark> <start> 4 6 end
    assert examples.coupling[:, 0].tolist() == [[2, 3, 4, 5, 6, 7, 2, 3, 4, 8], [2, 3, 4, 5, 6, 7, 5, 6, 7, 8]]


def test_a_prompt_alone_has_no_coupling_in_a_file_with_couplings(tmp_path):
    # The ID of the start token would be unknown.
    task = JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", [COUPLED_RECORD])))
    assert task.example_from_prompt("4 4 + 1 1").coupling is None


FAULTY_COUPLINGS = {
    "[[1, 1], 2]": r"invalid coupling level 2; use a list of integers for every level",
    "[[1, 1], [1, 1, 1, 1]]": r"the levels of the coupling have 2 and 4 numbers; use the same number",
    "[[1, 1, 1]]": r"the coupling has 3 numbers; write 2, .* or 4 with numbers for <mark> and end",
}


@pytest.mark.parametrize("coupling", FAULTY_COUPLINGS)
def test_a_faulty_coupling_with_levels_raises_an_error(coupling, tmp_path):
    record = f'{{"prompt": "a", "response": "b", "coupling": {coupling}}}'
    with pytest.raises(TaskFileError, match=rf"line 1: {FAULTY_COUPLINGS[coupling]}"):
        JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", [record]))).read()


def test_all_records_need_couplings_of_the_same_form(tmp_path):
    records = [{"prompt": "a", "response": "b", "coupling": [1, 1]}, {**COUPLED_RECORD}]
    message = (
        r"line 2: the coupling has 2 levels with numbers for <mark> and end, but 1 level without numbers for <mark> "
        r"and end in the records before it; use the same form in all records"
    )
    with pytest.raises(TaskFileError, match=message):
        JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", records))).read()


def test_couple_writes_the_coupling_that_the_rule_gives(bare_file, tmp_path, capsys):
    out = tmp_path / "coupled.jsonl"
    text = output_of(["couple", str(bare_file), "--out", str(out)], capsys)[0]
    assert "every answer depends on 1 token: prompt token '<mark>' - place -1" in text
    assert "pointers: 1" in text
    task, coupled_task, scheme = JSONLTask(file=str(bare_file)), JSONLTask(file=str(out)), DiscoveredCoupling(rule=RULE)
    for length in task.available_lengths:
        indexes = np.arange(task.num_records(length))
        examples, coupled = task.records_at(length, indexes), coupled_task.records_at(length, indexes)
        assert np.array_equal(scheme.ids_before_gaps(examples), coupled.coupling)
    first = json.loads(out.read_text().splitlines()[0])
    assert first["coupling"] == [[1, 0, 1, 0]]


def test_couple_measures_sparsity_and_locality_at_several_lengths(bare_file):
    task = JSONLTask(file=str(bare_file)).read()
    found = find_coupling(task)
    sparsity, locality = describe_rule_conditions(task, found)
    assert sparsity.startswith("sparsity: an answer needs 2 tokens, with the token before it, at the lengths 1, 4, 6")
    assert locality.startswith("locality: the largest ID distance of a needed token is 0 at the lengths 1, 4, 6")
    # A pointer that moves forward is ever farther from the tokens that reversing needs.
    wrong = replace(found, rule=parse_pointer_rule(("one", "rising: prompt first +1 +0")))
    _, locality, warning = describe_rule_conditions(task, wrong)
    assert re.match(r"locality: .* is 0, \d+, \d+ at the lengths 1, 4, 6", locality)
    assert warning == "these numbers grow with the length, so do not expect correct answers at longer lengths"
    assert "nobody can say whether these numbers grow" in describe_rule_conditions(task, wrong, (3, 6))[-1]


def test_a_key_that_the_rule_finds_in_the_prompt_is_not_far_from_the_answer(tmp_path):
    rng = np.random.default_rng(0)
    rows = []
    for length in [each for each in range(2, 10) for _ in range(100)]:
        keys, values = rng.permutation(list("abcdefghij"))[:length], rng.choice(list("0123456789"), length)
        chosen = int(rng.integers(length))
        table = [symbol for pair in zip(keys.tolist(), values.tolist(), strict=True) for symbol in pair]
        rows.append({"prompt": [*table, str(keys[chosen])], "response": [str(values[chosen])], "length": length})
    task = JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", rows))).read()
    # The distance of the key to its match grows with the table, but the rule gives the ID of the match.
    _, locality = describe_rule_conditions(task, find_coupling(task))
    assert "is 0 at" in locality


def test_couple_reads_a_built_in_task_and_prints_json(capsys):
    document = json.loads(
        output_of(["couple", "copy", "--num-examples", "60", "--lengths", "2,3,4,5", "--json"], capsys)[0]
    )
    assert document["rule"] == ["one", "rising: prompt first +1 +0"]
    assert (document["num_tokens"], document["accuracy"], document["checked_lengths"]) == (1, 1.0, [5])


def refusal_of(arguments, capsys):
    """Return the error of a command that exits with status 2, after the lines of its progress."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    printed = capsys.readouterr()
    first, *_, last = printed.err.splitlines()
    assert (exit_info.value.code, printed.out, first[:6], last[:7]) == (2, "", "search", "error: ")
    return last


def test_couple_shows_what_it_tries_and_stops_after_its_time(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [
        {"prompt": rng.choice(list("ab"), length).tolist(), "response": rng.choice(list("ab"), length).tolist()}
        for length in (3, 4, 5)
        for _ in range(40)
    ]
    command = ["couple", str(write_records(tmp_path / "random.jsonl", rows)), "--max-tokens", "1"]
    assert "limit of time" in refusal_of([*command, "--minutes", "1e-7"], capsys)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(command)
    assert re.search(r"trying single tokens of \d+ for every answer  0/\d+", capsys.readouterr().err)
    assert "minutes 0" in refusal_of([*command, "--minutes", "0"], capsys)


def test_couple_reports_refusals_and_invalid_names(tmp_path, capsys):
    rng = np.random.default_rng(0)
    letters = [
        {"prompt": rng.choice(list("ab"), length).tolist(), "response": rng.choice(list("ab"), length).tolist()}
        for length in (3, 4, 5)
        for _ in range(60)
    ]
    file = write_records(tmp_path / "random.jsonl", letters)
    assert "no set of few tokens explains the answers" in refusal_of(["couple", str(file), "--max-tokens", "2"], capsys)
    assert "use a name that ends in .jsonl" in refusal_of(
        ["couple", str(file), "--out", str(tmp_path / "rows.json")], capsys
    )


def test_the_scheme_discovered_trains_on_a_file_and_tests_on_another_one(bare_file, tmp_path, capsys):
    command = ["train", "--task", str(bare_file), "--scheme", "discovered", "--quick", "--out", str(tmp_path / "run")]
    assert "found a coupling in the examples" in output_of(command, capsys)[1]
    assert "20 steps" in output_of([*command, "--resume"], capsys)[0]
    test_file = write_records(tmp_path / "test.jsonl", without_coupling(reversals([9], seed=1)))
    run = load_run(tmp_path / "run", overrides={"task": JSONLTask(file=str(test_file))})
    assert run.experiment.scheme.rule == RULE
    (row,) = evaluate(run, EvaluationSettings(lengths=(9,), num_examples=(4,)))
    assert (row["scheme"], row["given"]) == ("discovered", "ID range")
    # Nothing is known about the prompt: neither its answer nor its coupling. The pointer starts at its last token.
    answer = generate_from_prompt(run, "a b c c b a a", max_new_tokens=3)
    assert answer.tokens
    assert answer.correct is None


@pytest.mark.slow
def test_a_found_rule_names_the_tokens_that_the_answers_of_a_file_run_need(bare_file, tmp_path):
    train(lw.experiment(str(bare_file), "discovered", quick=True), tmp_path / "run", device="cpu")
    longer = write_records(tmp_path / "test.jsonl", without_coupling(reversals([4, 9], seed=1)))
    run = load_run(tmp_path / "run", overrides={"task": JSONLTask(file=str(longer))})
    examples = task_with_dependencies(run.experiment).records_at(9, np.arange(2))
    needed = examples.depends_on.max(axis=2)
    # Nine letters, <mark>, <start>, and the letters again from the last one on.
    assert needed[:, 11:20].tolist() == [[8, 7, 6, 5, 4, 3, 2, 1, 0]] * 2
    found = diagnose_run(run, 9, num_examples=4)
    assert (found.skip_reason, found.by_length[-1].length) == (None, 9)
    # The untrained run does not fit, but it is no longer refused for a missing support.
    assert certify_run(run, [9]).refusal.startswith("the run does not fit")
    plain = replace(run.experiment, scheme=Sequential())
    assert task_with_dependencies(plain) is plain.task


def test_the_support_of_a_rule_is_that_which_a_task_declares():
    task, rule = Copy(), parse_pointer_rule(("one", "rising: prompt first +1 +0"))
    examples = task.sample(length=7, size=3, rng=np.random.default_rng(0))
    depends_on = find_needed_tokens(rule.locators, rule.division, examples)
    letters = examples.is_answer & (examples.tokens != task.vocabulary.index("end"))
    assert (depends_on.max(axis=2) == examples.depends_on.max(axis=2))[letters].all()


def test_a_file_whose_rule_counts_from_a_token_is_trained_on(tmp_path):
    rng = np.random.default_rng(0)
    records = []
    for length in [each for each in range(1, 6) for _ in range(40)]:
        first, second = rng.choice(list("abc"), size=(2, length))
        records.append({"prompt": [*first, "|", *second], "response": second.tolist(), "length": length})
    experiment = lw.experiment(str(write_records(tmp_path / "rows.jsonl", records)), "discovered")
    assert "#" in experiment.scheme.rule[1]
    run = train(quick_version(experiment), tmp_path / "run", device="cpu")
    assert experiment.scheme.num_levels == 1
    assert generate_from_prompt(run, "a b | c a", max_new_tokens=2).tokens


def test_the_scheme_discovered_finds_the_coupling_of_a_built_in_task():
    experiment = lw.experiment("copy", "discovered")
    assert experiment.scheme.rule == ("one", "rising: prompt first +1 +0")
    assert experiment.scheme.num_position_ids == lw.experiment("copy", "predicted").scheme.num_position_ids


def test_discovered_settings_carry_the_found_rule(bare_file):
    experiment = lw.experiment(str(bare_file), "discovered")
    assert experiment.scheme.rule == find_coupling(JSONLTask(file=str(bare_file))).rule.saved_texts == RULE


def test_a_found_coupling_counts_as_given_nothing(bare_file):
    task = JSONLTask(file=str(bare_file))
    assert describe_given_information(task, Predicted()) == "ID range, coupling"
    assert describe_given_information(task, DiscoveredCoupling(rule=RULE)) == "ID range"


def test_a_rule_replaces_the_coupling_of_the_records(tmp_path):
    # Otherwise, the result rows would say that nobody supplied the coupling that the run used.
    given = write_records(
        tmp_path / "given.jsonl", [{"prompt": "a b c", "response": "c b a", "coupling": [7, 7, 7, 7, 7, 7]}]
    )
    examples = JSONLTask(file=str(given)).records_at(3, np.array([0]))
    assert DiscoveredCoupling(rule=RULE).ids_before_gaps(examples)[:, 0].tolist() == [[2, 3, 4, 1, 4, 3, 2, 1, 5]]


RULES = {
    "one": RULE,
    "first apart": ("first", "rising: prompt first +1 +1; prompt first +1 +0"),
    # Level 1 of the first step has what the second step needs.
    "in turn": ("period 2", "rising: prompt first +1 +0; ", "rising: ; prompt last -1 -1"),
    "the prompt twice": ("split whole", "rising: prompt first +1 +0; ", "rising: ; prompt first +1 +0"),
    "every second token first": ("split half down", "rising: prompt first +2 +1; ", "rising: ; prompt first +2 +0"),
    "a match of the prompt": ("first", "rising: ; match prompt 0 anywhere 0 +1"),
    "a match of an answer": ("first", "rising: ; match answer 1 anywhere 0 +1"),
}


@pytest.mark.parametrize("name", RULES)
def test_an_unknown_prompt_has_the_ids_of_the_same_prompt_with_its_answers(name, tmp_path):
    scheme, prompts = DiscoveredCoupling(rule=RULES[name]), ["a b", "f e d c b a", "b b a c c h g a"]
    records = [{"prompt": prompt, "response": prompt[::-1]} for prompt in prompts]
    task = JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", records)))
    for prompt in prompts:
        known = task.example_from_prompt(prompt)
        end = int(known.prompt_length[0])
        tokens = np.where(np.arange(known.tokens.shape[1]) < end, known.tokens, task.vocabulary.index("end"))
        unknown = replace(known, tokens=tokens, is_answer=np.zeros_like(known.is_answer))
        expected = scheme.ids_before_gaps(known)[:, :, :end]
        assert np.array_equal(scheme.ids_before_gaps(unknown)[:, :, :end], expected)
        assert expected.min() >= 1


def test_a_prompt_without_the_token_that_the_rule_counts_from_raises_an_error(tmp_path):
    records = [{"prompt": "a + b", "response": "b"}, {"prompt": "a b", "response": "b"}]
    task = JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", records)))
    plus = task.vocabulary.index("+")
    scheme = DiscoveredCoupling(rule=("one", f"rising: prompt #{plus}.0 +1 +1"))
    assert scheme.ids_before_gaps(task.example_from_prompt("a + b"))[0, 0, 4] == 4
    with pytest.raises(PromptError, match=r"a prompt has fewer than 1 tokens with the number 1, from which the found"):
        scheme.ids_before_gaps(task.example_from_prompt("a b"))


def test_invalid_settings_and_tasks_with_several_answers_raise_an_error(capsys):
    assert "max_tokens 0 is too small; use at least 1" in refusal_of(["couple", "copy", "--max-tokens", "0"], capsys)
    assert "task text has several valid answers per prompt" in refusal_of(["couple", "text"], capsys)


INVALID_RULES = {
    (): "invalid division ''",
    ("period x", "rising: prompt first +1 +0"): "invalid division 'period x'",
    ("one",): "has no level",
    ("one", "prompt first +1 +0"): "invalid level 'prompt first",
    ("period 2", "rising: prompt first +1 +0"): "invalid level 'rising: prompt first",
    ("one", "rising: prompt first"): "invalid locator 'prompt first'",
    ("one", "rising: prompt foo +1 +0"): "invalid locator 'prompt foo",
    ("one", "rising: prompt #x.y +1 +0"): "invalid locator 'prompt #x.y",
    ("one", "rising: match foo 1 anywhere 0 +1"): "invalid locator 'match foo 1",
    ("one", "rising: match answer 1 near 0 +1"): "invalid locator 'match answer 1 near",
    ("one", "rising: march first +1 +0"): "invalid locator 'march",
}


@pytest.mark.parametrize("rule", INVALID_RULES)
def test_an_invalid_rule_raises_an_error(rule):
    with pytest.raises(SettingError, match=f"{INVALID_RULES[rule]}.*; use a coupling that lengthwise couple"):
        DiscoveredCoupling(rule=rule)


def test_a_run_with_a_rule_can_resume_and_loads_without_its_file(bare_file, tmp_path):
    task = JSONLTask(file=str(bare_file))
    run = train(
        small_experiment(task, DiscoveredCoupling(num_position_ids=64, rule=RULE)), tmp_path / "run", device="cpu"
    )
    assert run is not None
    bare_file.unlink()
    loaded = load_run(tmp_path / "run", device="cpu")
    assert loaded.experiment.scheme.rule == RULE
    assert generate_from_prompt(loaded, "a b b").correct is None


def test_a_file_without_coupling_and_rule_still_needs_a_coupling(bare_file, tmp_path):
    task = JSONLTask(file=str(bare_file))
    with pytest.raises(UnsupportedTaskError):
        train(small_experiment(task, Predicted(num_position_ids=64)), tmp_path / "run", device="cpu")
    assert train(small_experiment(task, Sequential()), tmp_path / "run", device="cpu") is not None


@pytest.mark.slow
def test_the_search_reads_the_records_of_a_file_with_training_lengths_only(tmp_path, monkeypatch):
    # A model that is not trained finds no coupling either.
    monkeypatch.setattr(coupling_methods, "TRAINING", replace(coupling_methods.TRAINING, steps=1))
    short = without_coupling(reversals(range(1, 7), count=15))
    # A longer record repeats its prompt, so no rule explains all records.
    long = [{**record, "response": record["prompt"]} for record in without_coupling(reversals(range(7, 11), count=15))]
    file = str(write_records(tmp_path / "rows.jsonl", [*short, *long]))
    alone = lw.experiment(str(write_records(tmp_path / "short.jsonl", short)), "discovered").scheme
    assert lw.experiment(file, "discovered", train_lengths=(1, 6)).scheme == alone
    with pytest.raises(CouplingError):
        lw.experiment(file, "discovered")
    with pytest.raises(LengthwiseError, match="length 20"):
        lw.experiment(file, "discovered", train_lengths=(20, 30))
    with pytest.raises(LengthwiseError, match="training lengths 6:1 are reversed"):
        lw.experiment(file, "discovered", train_lengths=(6, 1))
