"""Tests of tasks as data sets: each column has one value per symbol, equal to that of the token."""

import numpy as np
import pytest
from tests.support.cases import EXACT_MATCH_TASKS, small_scheme, supports_examples

from lengthwise.core.errors import SettingError, UnsupportedTaskError
from lengthwise.core.randomness import random_stream
from lengthwise.hf.export import to_dataset
from lengthwise.positions import SCHEMES, Coupled, MultiLevel, Predicted
from lengthwise.tasks import TASKS, GradedByLoss, JSONLTask, MultiAddition, Parity, Text
from lengthwise.tasks.examples import Examples

over_answered = pytest.mark.parametrize(
    "task", [pytest.param(task(), id=name) for name, task in TASKS.items() if not isinstance(task(), GradedByLoss)]
)


def lengths_of(task):
    return range(task.min_length, task.min_length + 5)


@over_answered
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.covering(1)
def test_each_symbol_has_a_span_and_one_value_per_column(scheme, task):
    if not supports_examples(scheme, task.sample(length=3, size=1, rng=random_stream(0))):
        return
    data = to_dataset(task, lengths=lengths_of(task), size=6, seed=1, scheme=small_scheme(scheme))
    for item in data:
        text = item["prompt"] + item["response"]
        symbols = [text[first:last] for first, last in item["spans"]]
        assert " ".join(symbols) == text.replace("\n", " \n")
        assert symbols[-1] == "\n"
        assert set(symbols[:-1]) <= set(task.vocabulary)
        for column in ("coupling", "position_ids"):
            if column in item:
                assert np.array(item[column]).shape[-1] == len(symbols)
    assert ("coupling" in data.column_names) == (
        task.sample(length=3, size=1, rng=random_stream(0)).coupling is not None
    )
    assert set(data["length"]) <= set(lengths_of(task))
    assert {(item["task"], item["seed"]) for item in data} == {(task.name, 1)}


@pytest.mark.parametrize("task", [pytest.param(task, id=name) for name, task in EXACT_MATCH_TASKS.items()])
def test_a_larger_data_set_begins_with_the_smaller_one(task):
    lengths = lengths_of(task)
    small, large = (to_dataset(task, lengths=lengths, size=size, seed=2) for size in (4, 9))
    assert large.to_list()[:4] == small.to_list()
    other = to_dataset(task, lengths=lengths, size=9, seed=3)
    assert other["prompt"] != large["prompt"] or other["response"] != large["response"]


def test_ids_and_groups_equal_those_of_evaluation():
    task = Parity()
    (item,) = to_dataset(task, lengths=[3], size=1, scheme=Predicted())
    examples = task.example_from_prompt(item["prompt"])
    assignment = Predicted().assign(examples, random_stream(0), training=False)
    assert item["position_ids"] == assignment.position_ids[0, 0].tolist()
    assert item["coupling"] == examples.coupling[0, 0].tolist()
    assert "position_ids" not in to_dataset(task, lengths=[3], size=1).column_names


def test_several_levels_give_one_list_per_level():
    (item,) = to_dataset(MultiAddition(), lengths=[2], size=1, scheme=MultiLevel())
    assert np.array(item["coupling"]).shape == np.array(item["position_ids"]).shape == (2, len(item["spans"]))


def test_items_differ():
    assert len(set(to_dataset(Parity(), lengths=[30], size=40)["prompt"])) == 40


class Padded(Parity):
    """Custom task with padding after the end token."""

    def sample(self, *, length, size, rng):
        """Sample parity with three more tokens."""
        examples = Parity().sample(length=length, size=size, rng=rng)
        width = ((0, 0), (0, 3))
        return Examples(
            tokens=np.pad(examples.tokens, width, constant_values=3),
            prompt_length=examples.prompt_length,
            is_answer=np.pad(examples.is_answer, width),
            coupling=np.pad(examples.coupling, ((0, 0), *width)),
        )


def test_padding_after_the_end_token_has_no_symbol():
    plain, padded = (to_dataset(task, lengths=[4], size=3, scheme=Predicted()) for task in (Parity(), Padded()))
    assert padded.to_list() == plain.to_list()


def test_only_the_given_lengths_are_sampled():
    assert set(to_dataset(Parity(), lengths=(2, 5), size=30)["length"]) == {2, 5}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"task": Text()}, SettingError, r"^task text is graded by loss and has no prompts; use a task"),
        ({"lengths": []}, SettingError, r"^invalid data set of 3 examples with 0 lengths; use size 1 or"),
        ({"size": 0}, SettingError, r"^invalid data set of 0 examples with 1 lengths; use size 1 or"),
        ({"task": JSONLTask(), "lengths": [99]}, SettingError, r"has no records of length 99; use one of 1-20$"),
        (
            {"task": Parity(coupling="none"), "scheme": Coupled()},
            UnsupportedTaskError,
            r"this task declares no coupling",
        ),
    ],
)
def test_invalid_data_sets_raise_a_one_line_error(arguments, error, message):
    arguments = {"task": Parity(), "lengths": [4], "size": 3, **arguments}
    with pytest.raises(error, match=message):
        to_dataset(arguments.pop("task"), **arguments)
