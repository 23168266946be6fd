"""Items of reasoning-gym as records of a task file."""

import json

import pytest

from lengthwise.core.errors import TaskFileError
from lengthwise.tasks import JSONLTask
from lengthwise.tasks.reasoning_gym import reasoning_records, write_reasoning_records
from lengthwise.tasks.text_format import format_examples


def item(terms=3, difficulty=None, **changes):
    """Return an item in the format of reasoning-gym."""
    ranges = {"num_terms": (2, 6), "num_digits": (1, 4)} if difficulty is None else difficulty
    return {
        "question": " + ".join(["1"] * terms) + " =",
        "answer": str(terms),
        "metadata": {"source_dataset": "chain_sum", "source_index": 0, "num_terms": terms, "difficulty": ranges},
        **changes,
    }


def test_a_record_has_the_question_the_answer_and_the_length_from_the_metadata():
    (record,) = reasoning_records([item(3)], length="num_terms")
    assert record == {"prompt": ["1", "+", "1", "+", "1", "="], "response": ["3"], "length": 3}


@pytest.mark.parametrize(
    ("difficulty", "length"),
    [
        ({"size": 7}, 7),
        ({"size": (7, 7)}, 7),
        ({"size": [7, 7]}, 7),
        # The value of the item takes precedence over the range.
        ({"num_terms": (2, 6)}, 3),
        ({}, None),
    ],
)
def test_the_only_difficulty_is_the_default_length(difficulty, length):
    (record,) = reasoning_records([item(3, difficulty)])
    assert record.get("length") == length


def test_functions_of_an_item_give_its_length_and_tokens():
    (record,) = reasoning_records(
        [item(2)], length=lambda item: len(item["question"]), tokens=lambda text: text.split("+")
    )
    assert record == {"prompt": ["1 ", " 1 ="], "response": ["2"], "length": 7}


def test_a_written_file_is_a_task_with_the_lengths_of_its_records(tmp_path, rng):
    file = write_reasoning_records([item(terms) for terms in (2, 3, 3, 5)], tmp_path / "sums.jsonl", length="num_terms")
    task = JSONLTask(file=str(file))
    assert task.available_lengths == (2, 3, 5)
    (text,) = format_examples(task, task.sample(length=5, size=1, rng=rng))
    assert text.answer == "5"
    assert [json.loads(line)["length"] for line in file.read_text().splitlines()] == [2, 3, 3, 5]


@pytest.mark.parametrize(
    ("items", "settings", "message"),
    [
        (
            [item(), item()],
            {},
            r"^item 1 has several difficulties \(num_terms, num_digits\); set length to",
        ),
        (
            [item(difficulty={"size": (1, 5)})],
            {},
            r"^item 1 has no integer 'size' in its metadata; set length to another metadata key",
        ),
        ([item()], {"length": "terms"}, r"^item 1 has no integer 'terms' in its metadata; set length to another"),
        ([item(difficulty={}), {"question": "a"}], {}, r"^invalid item 2 \(KeyError\('answer'\)\); use it"),
        ([item(answer=None)], {"length": "num_terms"}, r"^invalid item 1 \(TypeError.*; use items with"),
        (
            [item(answer=" ")],
            {"length": "num_terms"},
            r"content of .*rows.jsonl line 1: the response is empty; write",
        ),
        ([], {}, r"content of .*rows.jsonl has no records; write one per line"),
    ],
)
def test_an_invalid_item_raises_an_error_and_writes_nothing(items, settings, message, tmp_path):
    with pytest.raises(TaskFileError, match=message) as caught:
        write_reasoning_records(items, tmp_path / "rows.jsonl", **settings)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_another_suffix_raises_an_error(tmp_path):
    with pytest.raises(TaskFileError, match=r"rows.json does not end in .jsonl; use a file name that ends in .jsonl"):
        write_reasoning_records([item()], tmp_path / "rows.json")


@pytest.mark.slow
def test_a_data_set_of_reasoning_gym_is_a_task(tmp_path, rng):
    reasoning_gym = pytest.importorskip("reasoning_gym")
    items = reasoning_gym.create_dataset("chain_sum", min_terms=2, max_terms=4, size=30, seed=0)
    task = JSONLTask(file=str(write_reasoning_records(items, tmp_path / "sums.jsonl", length="num_terms")))
    assert task.available_lengths == (2, 3, 4)
    (text,) = format_examples(task, task.sample(length=4, size=1, rng=rng))
    assert {(" ".join(each["question"].split()), each["answer"]) for each in items} >= {
        (text.prompt.removesuffix(" <mark> <start>"), text.answer)
    }
