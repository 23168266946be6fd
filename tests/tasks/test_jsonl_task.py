"""Task files: records as examples, errors with line numbers, and runs that are evaluated on another file."""

import hashlib
import json
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_cli import error_of, output_of
from tests.support.cases import decode_tokens
from tests.support.small_runs import (
    equal_tensors,
    folder_contents,
    run_weights,
    small_experiment,
    stop_after,
    training_facts,
)

import lengthwise as lw
from lengthwise.core.errors import PromptError, RunFolderError, SettingError, TaskFileError, TrainingOverlapWarning
from lengthwise.evaluation.exact_match import EvaluationSettings, evaluate_by_length, iter_examples
from lengthwise.experiments.experiment import Experiment, build_decoder, from_dict, to_dict
from lengthwise.experiments.recipes import quick_version
from lengthwise.experiments.run import load_run, train
from lengthwise.experiments.run_evaluation import evaluate, generate_from_prompt
from lengthwise.experiments.run_folder import read_experiment
from lengthwise.positions import Coupled, Predicted, Sequential
from lengthwise.tasks import HasFilesToSave, HasFixedLengths, JSONLTask, Parity, Task, default_lengths
from lengthwise.tasks.jsonl_table import MARK, START
from lengthwise.training.batch import TrainingSampler

Record = Mapping[str, Any]
COUPLED = Coupled(num_position_ids=64)


def write_records(path: Path, records: Iterable[Record | str]) -> Path:
    """Write one line per record; strings are written unchanged."""
    lines = (each if isinstance(each, str) else json.dumps(each) for each in records)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def reversals(lengths: Iterable[int], letters: str = "abc", count: int = 6, seed: int = 0) -> list[Record]:
    """Return records of letters to reverse, with a coupling."""
    rng = np.random.default_rng(seed)
    records = []
    for length in lengths:
        for _ in range(count):
            prompt, places = rng.choice(list(letters), size=length).tolist(), list(range(1, length + 1))
            records.append({"prompt": prompt, "response": prompt[::-1], "coupling": places + places[::-1]})
    return records


def without_coupling(records: Iterable[Record]) -> list[Record]:
    """Return the records without their coupling."""
    return [{key: value for key, value in record.items() if key != "coupling"} for record in records]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Task file with coupled records of lengths 1 to 4."""
    return write_records(tmp_path / "rows.jsonl", reversals(range(1, 5)))


def sample_texts(task: JSONLTask, length: int, rng: np.random.Generator, size: int = 1) -> list[str]:
    """Sample sequences as text."""
    return [" ".join(decode_tokens(task, tokens)) for tokens in task.sample(length=length, size=size, rng=rng).tokens]


def task_of(tmp_path: Path, *records: Record) -> JSONLTask:
    """Return a task with these records."""
    return JSONLTask(file=str(write_records(tmp_path / "only.jsonl", records)))


def test_a_task_file_satisfies_the_protocols_for_run_files_and_lengths_and_parity_does_not():
    assert isinstance(JSONLTask(), Task)
    assert isinstance(JSONLTask(), HasFilesToSave)
    assert isinstance(JSONLTask(), HasFixedLengths)
    assert not isinstance(Parity(), HasFilesToSave | HasFixedLengths)


def test_an_example_is_prompt_mark_start_response_and_end(tmp_path, rng):
    task = task_of(tmp_path, {"prompt": " go  left ", "response": "left"})
    examples = task.sample(length=2, size=1, rng=rng)
    assert decode_tokens(task, examples.tokens[0]) == ["go", "left", MARK, START, "left", "end"]
    assert (examples.prompt_length.tolist(), examples.is_answer[0].tolist()) == ([4], [False] * 4 + [True] * 2)
    assert task.vocabulary == ("go", "left", MARK, START, "end")
    assert examples.coupling is examples.step_index is examples.depends_on is None


def test_the_tokens_of_a_list_are_used_unchanged(tmp_path, rng):
    task = task_of(tmp_path, {"prompt": ["go left", "="], "response": [" ", "é"]})
    assert task.vocabulary[:4] == ("go left", "=", " ", "é")


def test_records_of_one_length_may_have_different_prompt_and_response_lengths(tmp_path, rng):
    records = [
        {"prompt": "a", "response": "b b b", "length": 7, "coupling": [1, 1, 1, 1]},
        {"prompt": "a a a", "response": "b", "length": 7, "coupling": [1, 2, 3, 1]},
    ]
    task = task_of(tmp_path, *records)
    assert task.available_lengths == (7,)
    examples = task.sample(length=7, size=20, rng=rng)
    sequences = {" ".join(decode_tokens(task, tokens)) for tokens in examples.tokens}
    short, long = f"a {MARK} {START} b b b end", f"a a a {MARK} {START} b end"
    assert sequences == {short, long}
    # The fill after an end token is never scored.
    both = sorted({tuple(mask) for mask in examples.is_answer.tolist()})
    assert both == [(False,) * 5 + (True,) * 2, (False,) * 3 + (True,) * 4]
    records.insert(0, {"prompt": "a", "response": "b", "length": 7, "coupling": [1, 1]})
    examples = task_of(tmp_path, *records).sample(length=7, size=20, rng=rng)
    assert (examples.is_answer.sum(axis=1) == examples.response_end - examples.prompt_length + 1).all()
    assert set(examples.response_end.tolist()) == {4, 6}


def test_records_of_a_length_are_sampled_uniformly_with_replacement(tmp_path, rng):
    records = [{"prompt": [letter], "response": [letter]} for letter in "abcd"]
    counts = Counter(sample_texts(task_of(tmp_path, *records), 1, rng, size=4_000))
    assert len(counts) == 4
    assert all(900 < count < 1_100 for count in counts.values())


def test_evaluation_uses_each_record_at_most_once(tmp_path):
    records = [{"prompt": list(letters), "response": ["x"], "length": 1} for letters in product("abcd", repeat=3)]
    # A repeated record counts once.
    task = task_of(tmp_path, *records, *records[:9])
    assert task.num_records(1) == 64

    def prompts(total: int, seed: int = 0) -> list[bytes]:
        blocks = [examples for examples, _ in iter_examples(task, Sequential(), 1, total, seed)]
        return [tokens.tobytes() for examples in blocks for tokens in examples.tokens]

    assert len(prompts(20_000)) == len({*prompts(20_000)}) == 64
    assert len(prompts(10)) == len({*prompts(10)}) == 10
    assert prompts(10) == prompts(20)[:10] != prompts(10, seed=1)
    decoder = build_decoder(small_experiment(task, Sequential()))
    settings = EvaluationSettings(lengths=(1,), num_examples=(20_000,))
    reports = []
    (result,) = tuple(
        evaluate_by_length(decoder, task, Sequential(), settings, report=lambda *each: reports.append(each))
    )
    # The width of an interval for 64 records.
    assert (result.num_examples, reports[-1]) == (64, (1, 64, 64))
    assert result.high - result.low > 0.05


def test_evaluation_on_training_records_gives_a_warning(file, tmp_path):
    experiment = replace(small_experiment(JSONLTask(file=str(file)), Sequential()), train_lengths=(1, 3))
    run = train(experiment, tmp_path / "run", device="cpu")
    assert run is not None
    settings = replace(experiment.evaluation, lengths=(3, 4))
    with pytest.warns(
        TrainingOverlapWarning,
        match=r"^some or all records of length 3 were in the training data; use held-out records with --task",
    ):
        rows = evaluate(run, settings)
    assert [(row["num_rows"], row["num_examples"], row["seen_in_training"]) for row in rows] == [
        (6, 6, True),
        (6, 6, False),
    ]
    # With this seed, no record is in the training file.
    test = JSONLTask(file=str(write_records(tmp_path / "test.jsonl", reversals([3, 4], seed=23))))
    rows = evaluate(load_run(tmp_path / "run", overrides={"task": test}, device="cpu"), settings)
    assert not any(row["seen_in_training"] for row in rows)
    # One training record among others.
    mixed = [*reversals([3, 4], seed=23), *reversals(range(1, 5))[-12:-11]]
    leaking = JSONLTask(file=str(write_records(tmp_path / "mixed.jsonl", mixed)))
    with pytest.warns(TrainingOverlapWarning, match=r"^some or all records of length 3 were in the training data"):
        evaluate(load_run(tmp_path / "run", overrides={"task": leaking}, device="cpu"), settings)
    # The training file under another name.
    again = JSONLTask(file=str(write_records(tmp_path / "again.jsonl", reversals(range(1, 5)))))
    with pytest.warns(TrainingOverlapWarning):
        evaluate(load_run(tmp_path / "run", overrides={"task": again}, device="cpu"), settings)


def test_default_lengths_of_training_and_evaluation_are_those_of_the_file(tmp_path):
    task = JSONLTask(file=str(write_records(tmp_path / "some.jsonl", reversals([2, 5, 9]))))
    experiment = lw.experiment(task, "sequential")
    assert (experiment.train_lengths, experiment.evaluation.lengths) == ((2, 9), (2, 5, 9))
    small = quick_version(experiment)
    assert (small.train_lengths, small.evaluation.lengths) == ((2, 2), (2, 5))
    many = JSONLTask(file=str(write_records(tmp_path / "many.jsonl", reversals(range(1, 101), count=1))))
    lengths = default_lengths(many)
    assert (len(lengths), lengths[0], lengths[-1]) == (12, 1, 100)


def test_the_token_before_an_answer_has_the_number_of_the_answer(tmp_path, rng):
    record = {"prompt": "a b c", "response": "x y", "coupling": [4, 5, 9, 5, 4]}
    examples = task_of(tmp_path, record).sample(length=3, size=1, rng=rng)
    start, answers = 4, (5, 6)
    ids = examples.coupling[0, 0]
    assert ids[start] == ids[1]
    assert ids[answers[0]] == ids[0]
    # The last answer has the number of the mark, which no other token has.
    assert ids[answers[1]] == ids[3]
    assert len({*ids[:4].tolist(), ids[-1]}) == 5


@pytest.mark.parametrize(
    ("responses", "beyond"),
    [([[0], [1, 0], [2, 1, 0]], "below"), ([[0], [0, 1], [0, 1, 2]], "above"), ([[0], [0, 0]], "above")],
    ids=["falling", "rising", "one number"],
)
def test_the_number_of_the_mark_is_beyond_the_last_number_in_reading_order(responses, beyond, tmp_path, rng):
    records = [
        {"prompt": ["a"] * (max(read) + 1), "response": ["a"] * len(read), "length": len(read)}
        | {"coupling": [*range(max(read) + 1), *read]}
        for read in responses
    ]
    for length in range(1, len(responses) + 1):
        examples = task_of(tmp_path, *records).sample(length=length, size=1, rng=rng)
        (prompt_length,), (ids,) = examples.prompt_length, examples.coupling[0]
        prompt, mark = ids[: prompt_length - 2], ids[prompt_length - 2]
        assert mark == (prompt.min() - 1 if beyond == "below" else prompt.max() + 1)
        assert ids.min() >= 0


def test_a_length_without_records_raises_an_error_with_the_available_lengths(tmp_path, rng):
    task = task_of(tmp_path, *without_coupling(reversals([2, 3, 4, 7, 9, 10])))
    with pytest.raises(SettingError, match=r"only\.jsonl has no records of length 5; use one of 2-4, 7, 9-10$"):
        task.sample(length=5, size=1, rng=rng)
    many = task_of(tmp_path, *without_coupling(reversals(range(1, 60, 2), count=1)))
    with pytest.raises(SettingError, match=r"use one of 1, 3, 5, 7, 9, 11, \.\.\., 49, 51, 53, 55, 57, 59$"):
        many.sample(length=2, size=1, rng=rng)


def test_training_samples_the_available_lengths_and_needs_both_ends_of_the_range(tmp_path):
    task = task_of(tmp_path, *without_coupling(reversals([1, 2, 4, 5, 8])))
    sampler = TrainingSampler(task=task, scheme=Sequential(), lengths=(2, 5), batch_size=2, seed=0)
    lengths = {batch.length for step in range(40) for batch in sampler.batches(step)}
    # The length of a batch is that of its longest examples.
    assert lengths == {2, 4, 5}
    for ends, missing in (((3, 4), 3), ((2, 3), 3), ((3, 3), 3), ((2, 9), 9)):
        with pytest.raises(SettingError, match=rf"has no records of length {missing}; .* 1-2, 4-5, 8$"):
            train(replace(small_experiment(task, Sequential()), train_lengths=ends), tmp_path / "run", device="cpu")
        assert not (tmp_path / "run").exists()


GOOD = '{"prompt": "a b", "response": "b a", "coupling": [1, 2, 2, 1]}'
MALFORMED = {
    "a b": r"invalid record \(Expecting value.*\); write one JSON object per line, such as \{\"prompt",
    '{"prompt": "a b"': r"invalid record \(",
    "[" * 100_000: r"invalid record \(",
    '["a b", "b a"]': r"invalid record \(it is a list, not an object\); write one JSON object per line",
    "7": r"invalid record \(it is a number, not an object\)",
    '{"prompt": "a b"}': r'the record has no "response"; write one object such as',
    '{"response": "a b"}': r'the record has no "prompt"; write',
    '{"prompt": 5, "response": "a"}': r"invalid prompt 5; use a list of tokens, or a string",
    '{"prompt": "a", "response": null}': r"invalid response null; use a list",
    '{"prompt": ["a", 3], "response": "a"}': r"invalid token 3 in the prompt; use non-empty strings",
    '{"prompt": ["a", ""], "response": "a"}': r'invalid token "" in the prompt; use non-empty',
    '{"prompt": "a", "response": []}': r"the response is empty; write at least one token",
    '{"prompt": "a", "response": "  "}': r"the response is empty",
    '{"prompt": "", "response": "a"}': r"the prompt is empty",
    '{"prompt": "a", "response": "b", "couplng": [1, 1]}': r"unknown key 'couplng'; did you mean 'coupling'\? known: ",
    '{"prompt": "a", "response": "b"}': r"the record has no coupling, unlike the records before it; add a coupling to",
    '{"prompt": "a", "response": "b", "coupling": 1}': r"invalid coupling 1; use a list of integers",
    '{"prompt": "a", "response": "b", "coupling": [1, 2, 3]}': (
        r"the coupling has 3 numbers; write 2, one for each token of the prompt \(1\) and of the response \(1\)"
    ),
    '{"prompt": "a", "response": "b", "coupling": [1, 1.0]}': r"invalid coupling number 1.0; use an integer from 0 to",
    '{"prompt": "a", "response": "b", "coupling": [1, true]}': r"invalid coupling number true; use an integer from 0",
    '{"prompt": "a", "response": "b", "coupling": [-1, 1]}': r"invalid coupling number -1; use an integer from 0 to",
    '{"prompt": "a", "response": "b", "coupling": [1, 9999999999]}': r"invalid coupling number 9999999999; use",
    '{"prompt": "a", "response": "b", "coupling": [1, 1], "length": 0}': r"invalid length 0; use a positive integer",
    '{"prompt": "a", "response": "b", "coupling": [1, 1], "length": "1"}': r'invalid length "1"; use',
    '{"prompt": "a end", "response": "b", "coupling": [1, 1, 1]}': (
        r"the task adds the token 'end' to every response; remove or rename this token"
    ),
    '{"prompt": "a <mark>", "response": "b", "coupling": [1, 1, 1]}': r"the task adds the token '<mark>' to every",
}


@pytest.mark.parametrize(("line", "text"), MALFORMED.items(), ids=[text[:50] for text in MALFORMED.values()])
def test_a_malformed_record_raises_an_error_with_its_line(line, text, tmp_path, rng):
    task = JSONLTask(file=str(write_records(tmp_path / "bad.jsonl", [GOOD, "", GOOD, line, GOOD])))
    with pytest.raises(TaskFileError, match=rf"^{tmp_path}/bad\.jsonl line 4: {text}") as caught:
        task.sample(length=2, size=1, rng=rng)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_coupling_only_in_later_records_raises_an_error_with_the_line(tmp_path):
    path = write_records(tmp_path / "bad.jsonl", ['{"prompt": "a", "response": "b"}', GOOD])
    with pytest.raises(
        TaskFileError, match=r"line 2: the record has a coupling, unlike the records before it; add a coupling to"
    ):
        _ = JSONLTask(file=str(path)).vocabulary


def test_invalid_utf_8_and_an_empty_file_raise_an_error(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD.encode() + b'\n{"prompt": "\xff", "response": "a"}\n')
    with pytest.raises(TaskFileError, match=r"line 2: the text is not in UTF-8; save the file with the encoding UTF-8"):
        _ = JSONLTask(file=str(path)).vocabulary
    path.write_bytes(b"\n \n")
    with pytest.raises(TaskFileError, match=r"bad\.jsonl has no records; write one per line, such as \{\"prompt\""):
        _ = JSONLTask(file=str(path)).vocabulary


def test_windows_line_ends_and_a_byte_order_mark_are_accepted(tmp_path, rng):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.encode() + b"\r\n" + GOOD.encode())
    assert sample_texts(JSONLTask(file=str(path)), 2, rng) == [f"a b {MARK} {START} b a end"]


def test_the_saved_task_has_the_absolute_path_and_the_digest_of_the_file(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    task = JSONLTask(file="rows.jsonl")
    tree_of_task = to_dict(task)
    assert tree_of_task == {"name": "rows", "file": str(file), "digest": task.digest}
    assert from_dict(to_dict(Experiment(task=task))).task == task
    assert replace(task, run_folder="somewhere") == task
    other = write_records(file.parent / "other.jsonl", reversals([1]))
    assert JSONLTask(file=str(other)).digest != task.digest


def test_pickling_the_task_does_not_include_the_parsed_records(file, rng):
    task = JSONLTask(file=str(file))
    before = pickle.dumps(task)
    texts = sample_texts(task, 3, rng)
    assert pickle.dumps(task) == before
    assert sample_texts(pickle.loads(before), 3, np.random.default_rng(0)) == texts


def test_creating_a_task_from_a_missing_file_raises_an_error(tmp_path):
    with pytest.raises(
        TaskFileError, match=r"none\.jsonl cannot be read \(No such file or directory\); pass the path of a readable"
    ):
        JSONLTask(file=str(tmp_path / "none.jsonl"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(TaskFileError, match=r"folder\.jsonl cannot be read \(Is a directory\)"):
        JSONLTask(file=str(tmp_path / "folder.jsonl"))


@pytest.mark.parametrize("scheme", [COUPLED, Predicted(num_position_ids=64), Sequential()], ids=lambda each: each.name)
def test_a_run_on_a_task_file_loads_and_evaluates_on_another_file(scheme, file, tmp_path):
    experiment = small_experiment(JSONLTask(file=str(file)), scheme)
    run = train(experiment, tmp_path / "run", device="cpu")
    loaded = load_run(tmp_path / "run", device="cpu")
    assert loaded.experiment == experiment
    assert equal_tensors(loaded.decoder.state_dict(), run.decoder.state_dict())
    # The letters appear in another order, and their token IDs stay those of the run. All lengths are new.
    test = JSONLTask(file=str(write_records(tmp_path / "test.jsonl", reversals([6, 9], letters="ca"))))
    run_on_test = load_run(tmp_path / "run", overrides={"task": test}, device="cpu")
    assert run_on_test.experiment.task.vocabulary == experiment.task.vocabulary != test.vocabulary
    assert equal_tensors(run_on_test.decoder.state_dict(), run.decoder.state_dict())
    rows = evaluate(run_on_test, replace(experiment.evaluation, lengths=(6, 9)))
    assert [(row["length"], row["task"]) for row in rows] == [(6, "rows"), (9, "rows")]
    # A result row contains the file.
    digest = hashlib.sha256((tmp_path / "test.jsonl").read_bytes()).hexdigest()
    assert {(row["file"], row["file_sha256"]) for row in rows} == {(str(tmp_path / "test.jsonl"), digest)}
    assert all(datetime.fromisoformat(row["time"]).tzinfo == UTC for row in rows)


def test_a_token_that_is_not_in_the_training_file_raises_an_error_with_its_line(file, tmp_path):
    train(small_experiment(JSONLTask(file=str(file)), COUPLED, steps=1), tmp_path / "run", device="cpu")
    records = [*reversals([2], count=3), {"prompt": "a z", "response": "z a", "coupling": [1, 2, 2, 1]}]
    test = JSONLTask(file=str(write_records(tmp_path / "test.jsonl", records)))
    with pytest.raises(TaskFileError, match=r"test\.jsonl line 4: the token 'z' is not one of the 3 tokens of the run"):
        load_run(tmp_path / "run", overrides={"task": test}, device="cpu")


def test_a_run_generates_answers_without_its_file(file, tmp_path):
    run = train(small_experiment(JSONLTask(file=str(file)), Sequential()), tmp_path / "run", device="cpu")
    assert run is not None
    (record,) = reversals([4], count=1)
    write_records(file, [*reversals(range(1, 5)), record])
    file.unlink()
    loaded = load_run(tmp_path / "run", device="cpu")
    answer = generate_from_prompt(loaded, "a b c", max_new_tokens=5)
    assert (answer.expected, answer.correct) == ([], None)
    assert 1 <= len(answer.tokens) <= 5
    with pytest.raises(
        PromptError,
        match=r"invalid symbol 'z' in a prompt of rows; write tokens of its file with spaces .*, such as c b a",
    ):
        generate_from_prompt(loaded, "a z")
    with pytest.raises(TaskFileError, match=r"rows\.jsonl cannot be read \(No such file"):
        evaluate(loaded, run.experiment.evaluation)


@pytest.mark.parametrize("scheme", [COUPLED, Predicted(num_position_ids=64)], ids=lambda each: each.name)
def test_a_prompt_of_a_record_has_an_expected_answer_and_another_prompt_raises_an_error(scheme, file, tmp_path):
    run = train(small_experiment(JSONLTask(file=str(file)), scheme), tmp_path / "run", device="cpu")
    assert run is not None
    prompt = json.loads(file.read_text().splitlines()[-1])["prompt"]
    answer = generate_from_prompt(run, " ".join(prompt))
    assert answer.expected == [*prompt[::-1], "end"]
    assert answer.correct is not None
    with pytest.raises(
        PromptError, match=r"needs the coupling of prompt 'a a a a a a', which is unknown; use a prompt with a known"
    ):
        generate_from_prompt(run, "a a a a a a")


def test_a_prompt_can_be_a_whole_record_and_an_invalid_record_raises_an_error(file, tmp_path):
    run = train(small_experiment(JSONLTask(file=str(file)), COUPLED), tmp_path / "run", device="cpu")
    assert run is not None
    file.unlink()
    record = '{"prompt": "a a b a c", "response": "c a b a a", "coupling": [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]}'
    answer = generate_from_prompt(load_run(tmp_path / "run", device="cpu"), record)
    assert answer.expected == ["c", "a", "b", "a", "a", "end"]
    assert answer.correct is not None
    with pytest.raises(
        TaskFileError, match=r"^the prompt line 1: the coupling has 1 numbers; write 2, one for each token"
    ):
        generate_from_prompt(run, '{"prompt": "a", "response": "c", "coupling": [1]}')
    with pytest.raises(PromptError, match=r"invalid symbol '\{' in a prompt of rows"):
        generate_from_prompt(run, '{ "a"')


def test_a_file_that_changed_after_training_raises_an_error(file, tmp_path):
    experiment = small_experiment(JSONLTask(file=str(file)), COUPLED)
    train(experiment, tmp_path / "run", device="cpu")
    content = file.read_text()
    write_records(file, reversals(range(1, 5), seed=1))
    with pytest.raises(TaskFileError, match=r"rows\.jsonl has changed since the task was created; restore"):
        evaluate(load_run(tmp_path / "run", device="cpu"), experiment.evaluation)
    # Passed again, it is another file for evaluation.
    changed_run = load_run(tmp_path / "run", overrides={"task": JSONLTask(file=str(file))}, device="cpu")
    evaluate(changed_run, replace(experiment.evaluation, lengths=(4,)))
    file.write_text(content)
    with pytest.warns(TrainingOverlapWarning):
        evaluate(load_run(tmp_path / "run", device="cpu"), replace(experiment.evaluation, lengths=(4,)))


def test_a_stopped_run_on_a_task_file_resumes_to_the_same_weights(file, tmp_path):
    experiment = small_experiment(JSONLTask(file=str(file)), COUPLED)
    train(experiment, tmp_path / "whole", device="cpu")
    assert train(experiment, tmp_path / "stopped", device="cpu", stop=stop_after(6)) is None
    train(read_experiment(tmp_path / "stopped"), tmp_path / "stopped", device="cpu", resume=True)
    assert equal_tensors(run_weights(tmp_path / "stopped"), run_weights(tmp_path / "whole"))
    assert training_facts(tmp_path / "stopped") == training_facts(tmp_path / "whole")


def test_a_run_of_another_task_does_not_load_with_a_task_file(file, tmp_path):
    train(small_experiment(steps=1), tmp_path / "run", device="cpu")
    with pytest.raises(
        TaskFileError, match=r"run was not trained on a task file \(it has no rows\.json\); use the task of"
    ):
        load_run(tmp_path / "run", overrides={"task": JSONLTask(file=str(file))}, device="cpu")


def test_a_damaged_file_of_token_names_raises_an_error(file, tmp_path):
    train(small_experiment(JSONLTask(file=str(file)), COUPLED, steps=1), tmp_path / "run", device="cpu")
    for content in ("", "[]", "{}", '{"symbols": 3, "coupled": true, "falls": true}'):
        (tmp_path / "run/rows.json").write_text(content)
        with pytest.raises(TaskFileError, match=r"run/rows\.json cannot be read \(.*\); train the run again"):
            load_run(tmp_path / "run", device="cpu")


def test_token_names_in_another_order_raise_an_error(file, tmp_path):
    experiment, names = small_experiment(JSONLTask(file=str(file)), COUPLED, steps=2), tmp_path / "run/rows.json"
    train(experiment, tmp_path / "run", device="cpu", stop=stop_after(1))
    facts = json.loads(names.read_text())
    names.write_text(json.dumps({**facts, "symbols": facts["symbols"][::-1]}))
    with pytest.raises(RunFolderError, match=r"rows\.json has changed since training \(its digest differs\)"):
        train(experiment, tmp_path / "run", device="cpu", resume=True)
    names.write_text(json.dumps(facts) + "\n")
    train(experiment, tmp_path / "run", device="cpu", resume=True)
    names.write_text(json.dumps({**facts, "symbols": facts["symbols"][::-1]}))
    with pytest.raises(RunFolderError, match=r"rows\.json has changed since training \(its digest differs\)"):
        load_run(tmp_path / "run", device="cpu")


def test_experiment_for_accepts_a_task_object(file):
    task = JSONLTask(file=str(file))
    assert lw.experiment(task, "coupled", "rotary") == lw.experiment(str(file), "coupled", "rotary")
    assert lw.experiment(task, "coupled", "rotary").task is task
    ours = lw.experiment(Parity(coupling="same"), "coupled")
    assert ours == replace(lw.experiment("parity", "coupled"), task=Parity(coupling="same"))


QUICK = ["--quick", "--device", "cpu"]


@pytest.mark.slow
def test_the_command_line_trains_evaluates_and_compares_on_task_files(file, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    write_records(tmp_path / "test.jsonl", reversals([3, 8]))
    flags = ["--scheme", "coupled", "--encoding", "rotary", "--train-lengths", "1:3", *QUICK]
    output_of(["train", "--task", "rows.jsonl", *flags, "--out", "run"], capsys)
    flags_of_test = ["--lengths", "3,8", "--num-examples", "4", "--device", "cpu", "--json"]
    document = json.loads(output_of(["evaluate", "run", "--task", "test.jsonl", *flags_of_test], capsys)[0])
    assert [row["length"] for row in document["results"]] == [3, 8]
    # The default lengths are those of the file.
    quickly = ["--num-examples", "4", "--device", "cpu", "--json"]
    document = json.loads(output_of(["evaluate", "run", "--task", "test.jsonl", *quickly], capsys)[0])
    assert [row["length"] for row in document["results"]] == [3, 8]
    output_of(["export", "test.jsonl", "--format", "lm-eval", "--shots", "0", "--out", "harness"], capsys)
    assert {path.name for path in (tmp_path / "harness").glob("rows_*.yaml")} == {"rows_3.yaml", "rows_8.yaml"}
    # A diagnosis uses the distinct records of another file, which needs some of the longest training length.
    diagnosis = ["diagnose", "run", "--length", "8", "--task"]
    document = json.loads(output_of([*diagnosis, "test.jsonl", "--json"], capsys)[0])
    assert [(each["length"], each["num_examples"]) for each in document["by_length"]] == [(3, 4), (8, 6)]
    write_records(tmp_path / "long.jsonl", reversals([8]))
    assert "the task file has no records of length 3, the longest training length" in error_of(
        [*diagnosis, "long.jsonl"], capsys
    )
    rows = ["--rows", "coupled/rotary,sequential/nope", "--train-lengths", "1:2", "--lengths", "2,4", *QUICK]
    document = json.loads(output_of(["compare", "--task", "rows.jsonl", *rows, "--out", "both", "--json"], capsys)[0])
    assert [(row["row"], row["length"]) for row in document["results"]] == [
        (label, length) for label in ("coupled/rotary", "sequential/nope") for length in (2, 4)
    ]
    # Training with --resume does not change a finished run.
    before = folder_contents(tmp_path / "run")
    output_of(["train", "--task", "rows.jsonl", *flags, "--resume", "--out", "run"], capsys)
    assert folder_contents(tmp_path / "run") == before


def test_invalid_task_files_exit_with_status_2_and_write_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_records(tmp_path / "bad.jsonl", [GOOD, "{}"])
    write_records(tmp_path / "short.jsonl", without_coupling(reversals([1, 2])))
    before = folder_contents(tmp_path)
    for task, flags, text in (
        ("bad.jsonl", [], 'bad.jsonl line 2: the record has no "prompt"; write one object such as'),
        ("none.jsonl", [], "none.jsonl cannot be read (No such file or directory); pass the path of a readable"),
        (
            "short.jsonl",
            ["--train-lengths", "1:20"],
            "short.jsonl has no records of length 20; use one of 1-2",
        ),
        ("short.jsonl", [], "this task declares no coupling; use the scheme sequential"),
    ):
        assert text in error_of(["train", "--task", task, "--scheme", "coupled", *flags, "--out", "run"], capsys)
        assert folder_contents(tmp_path) == before
    flags = ["--task", "short.jsonl", "--lengths", "20", "--rows", "sequential/rotary", "--workers", "1"]
    assert "has no records of length 20; use one of 1-2" in error_of(["compare", *flags, "--out", "both"], capsys)
    certify = ["certify", "short.jsonl", "--train-lengths", "1:2", "--lengths", "3"]
    assert "does not declare which tokens its answers depend on" in error_of(certify, capsys)
    assert folder_contents(tmp_path) == before
