"""Searches for a coupling in data with many symbols, answers or tokens end early and take little memory."""

import tracemalloc

import numpy as np
import pytest
from tests.cli.test_cli import output_of
from tests.tasks.test_jsonl_task import write_records

from lengthwise.core.errors import CouplingError, SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.tasks import Addition, Copy, JSONLTask, VariableAssignment
from lengthwise.tasks.coupling.dependence_search import SearchProgress, most_frequent_answers
from lengthwise.tasks.coupling.found_coupling import find_coupling_in_examples, sample_task_answers
from lengthwise.tasks.coupling.report import NUM_EXAMPLES, _measure_conditions

MAX_PEAK = 1 << 30
SYMBOLS = [f"s{number}" for number in range(40)]


def permutations(rng, count):
    """Return permutations of all symbols, followed by some tokens, with random answers."""
    for _ in range(count):
        prompt = [*rng.permutation(SYMBOLS).tolist(), *["pad"] * int(rng.integers(4))]
        yield {"prompt": prompt, "response": rng.permutation(SYMBOLS).tolist()}


def words(rng, count):
    """Return short rows of very many words, and their reversals."""
    for _ in range(count):
        prompt = [f"w{number}" for number in rng.integers(0, 50_000, int(rng.integers(2, 9)))]
        yield {"prompt": prompt, "response": prompt[::-1]}


def search(path, records, **settings):
    """Return the coupling of records or the error, with the peak of the memory."""
    task = JSONLTask(file=str(write_records(path, records))).read()
    tracemalloc.start()
    try:
        return find_coupling_in_examples(task, **settings), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_permutations_of_many_symbols_are_decided_with_little_work_and_memory(tmp_path):
    progress = SearchProgress(max_work=2e7)
    with pytest.raises(CouplingError, match="limit of time or work"):
        search(tmp_path / "rows.jsonl", permutations(np.random.default_rng(0), 400), progress=progress)
    # The last set exceeds the limit.
    assert progress.work < 2.2e7


def test_the_symbols_of_permutations_are_no_anchors(tmp_path):
    stages = []
    progress = SearchProgress(max_work=1e6, report=stages.append)
    with pytest.raises(CouplingError):
        search(tmp_path / "rows.jsonl", permutations(np.random.default_rng(0), 400), progress=progress)
    assert 0 < max(each["total"] for each in stages) < 200_000


def test_many_words_are_no_table(tmp_path):
    found, peak = search(tmp_path / "rows.jsonl", words(np.random.default_rng(0), 4000))
    assert found.num_tokens == 1
    assert peak < MAX_PEAK / 4


def test_long_and_many_records_together_raise_an_error_before_the_search(tmp_path):
    records = [{"prompt": ["a"] * number, "response": "a"} for number in (*range(1, 40), 500_000)]
    with pytest.raises(SettingError, match="--lengths"):
        search(tmp_path / "rows.jsonl", records)


def test_very_many_answers_are_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr("lengthwise.tasks.coupling.found_coupling.MAX_ANSWERS", 2000)
    rng = np.random.default_rng(0)
    prompts = [rng.choice(list("abcdef"), size=length).tolist() for length in (20, 21, 22, 23) for _ in range(100)]
    task = JSONLTask(file=str(write_records(tmp_path / "rows.jsonl", [{"prompt": p, "response": p} for p in prompts])))
    assert 1800 < len(sample_task_answers(task, None, 0, 0)) <= 2000


def test_the_most_frequent_answer_of_each_code_is_that_of_a_table():
    rng = np.random.default_rng(0)
    codes, target = rng.integers(0, 50, 400), rng.integers(0, 7, 400)
    table = np.zeros((51, 7), dtype=int)
    np.add.at(table, (codes, target), 1)
    expected = np.where(table.sum(axis=1) > 0, table.argmax(axis=1), -1)
    assert np.array_equal(most_frequent_answers(codes, target, 51), expected)


@pytest.mark.slow
def test_the_conditions_and_the_table_of_a_very_long_example_are_short(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    prompts = [rng.choice(list("abcde"), size=length).tolist() for length in (2, 2, 3, 3, 3, 20_000)]
    write_records(tmp_path / "rows.jsonl", [{"prompt": prompt, "response": prompt} for prompt in prompts])
    monkeypatch.chdir(tmp_path)
    printed, _ = output_of(["couple", "rows.jsonl"], capsys)
    assert printed.count("\n") < 150
    assert "40,003 tokens" in printed


@pytest.mark.parametrize("task", [Addition(), Copy(), VariableAssignment()], ids=lambda task: task.name)
def test_the_conditions_of_a_coupling_are_those_of_a_loop_over_the_answers(task):
    sampled = task.sample(length=5, size=NUM_EXAMPLES, rng=random_stream(0, "conditions", 5))
    counts, distances = [], []
    for example, answer in np.argwhere(sampled.is_answer).tolist():
        needed = {*sampled.depends_on[example, answer].tolist(), answer - 1} - {-1}
        ids = sampled.coupling[:, example]
        counts.append(len(needed))
        distances += [min(abs(level[token] - level[answer - 1]) for level in ids) for token in needed]
    assert _measure_conditions(task, 5, 0) == (max(counts), max(distances))
