"""Index hints: the sequences of a task with hints from an independent implementation."""

import numpy as np
import pytest
from tests.support.cases import TASK_VARIANTS, decode_tokens

from lengthwise.tasks import Addition, Copy, IndexHints, Parity, Task

TASKS_WITH_PLACES = {
    name: task
    for name, task in TASK_VARIANTS.items()
    if task.sample(length=2, size=1, rng=np.random.default_rng(0)).step_index is not None
}
over_tasks = pytest.mark.parametrize("task", [pytest.param(task, id=name) for name, task in TASKS_WITH_PLACES.items()])


def with_and_without_hints(
    task: Task, size: int, length: int = 5
) -> tuple[list[list[str]], list[list[str]], np.ndarray]:
    """Return the symbols of the same examples with and without hints, and the places of the latter."""
    hints = IndexHints(task=task, num_hints=30)
    hinted, plain = (each.sample(length=length, size=size, rng=np.random.default_rng(1)) for each in (hints, task))
    assert plain.step_index is not None
    return (
        [
            decode_tokens(hints, tokens[: end + 1])
            for tokens, end in zip(hinted.tokens, hinted.response_end, strict=True)
        ],
        [decode_tokens(task, tokens[: end + 1]) for tokens, end in zip(plain.tokens, plain.response_end, strict=True)],
        plain.step_index,
    )


@over_tasks
def test_every_token_with_a_place_has_the_hint_of_its_place(task):
    starts = set()
    for symbols, plain, places in zip(*with_and_without_hints(task, 60), strict=True):
        start = int(symbols[next(i for i, symbol in enumerate(symbols) if symbol.startswith("#"))][1:])
        expected = []
        for symbol, place in zip(plain, places, strict=False):
            expected += [f"#{start + place - 1}", symbol] if place > 0 else [symbol]
        assert symbols == expected
        starts.add(start)
    assert len(starts) > 10


@over_tasks
def test_the_answer_without_its_hints_is_the_answer_of_the_task(task):
    hints = IndexHints(task=task, num_hints=30)
    hinted, plain = (each.sample(length=5, size=40, rng=np.random.default_rng(1)) for each in (hints, task))
    end = task.vocabulary.index("end")
    for example in range(40):
        answer = decode_tokens(hints, hinted.tokens[example, hinted.is_answer[example]])
        assert answer[0].startswith("#") == bool(plain.step_index[example, plain.prompt_length[example]] > 0)
        assert [symbol for symbol in answer if symbol[0] != "#"] == decode_tokens(
            task, plain.tokens[example, plain.is_answer[example]]
        )
        assert np.flatnonzero(hinted.is_answer[example])[0] == hinted.prompt_length[example]
        assert (hinted.tokens[example, hinted.response_end[example] :] == end).all()


def test_the_first_hint_of_short_sequences_is_uniform(rng):
    task = IndexHints(task=Copy(), num_hints=12)
    examples = task.sample(length=3, size=8_000, rng=rng)
    starts = examples.tokens[:, 0] - len(Copy().vocabulary)
    np.testing.assert_allclose(np.bincount(starts, minlength=10) / 8_000, 0.1, atol=0.015)
    assert task.vocabulary[examples.tokens.max()] == "#11"


@pytest.mark.parametrize("length", [11, 12])
def test_the_number_of_first_hints_is_the_number_that_leaves_hints_for_all_places(length, rng):
    examples = IndexHints(num_hints=12).sample(length=length, size=50, rng=rng)
    assert len(set(examples.tokens[:, 0])) == 13 - length


def test_a_parsed_prompt_gets_hints_from_zero_on():
    task = IndexHints(task=Addition(zero_padding=False), num_hints=9)
    examples = task.example_from_prompt("57+8")
    assert " ".join(decode_tokens(task, examples.tokens[0])) == "#0 7 #1 5 + #0 8 = #0 5 #1 6 end"
    assert examples.prompt_length == 8


def test_the_variants_are_the_variants_of_the_task_with_hints():
    task = IndexHints(task=Addition(), num_hints=9)
    expected = {name: IndexHints(task=variant, num_hints=9) for name, variant in Addition().variants().items()}
    assert task.variants() == expected
    assert IndexHints(task=Parity()).variants() == {}


def test_the_symbols_of_the_task_keep_their_token_ids():
    task = IndexHints(task=Copy(), num_hints=3)
    assert task.vocabulary == (*Copy().vocabulary, "#0", "#1", "#2")
    assert task.separators == Copy().separators
