"""Sort: sampled values and the coupling of list and response."""

import numpy as np
import pytest
from tests.support.cases import decode_tokens

from lengthwise.tasks import Sort

over_repeats = pytest.mark.parametrize("task", [Sort(), Sort(num_values=6, repeats=True)], ids=["distinct", "repeats"])


@over_repeats
def test_a_response_token_has_the_id_of_the_next_item(task, rng):
    examples = task.sample(length=6, size=50, rng=rng)
    assert examples.coupling is not None
    for tokens, ids in zip(examples.tokens, examples.coupling[0], strict=True):
        for index in range(7, 13):
            assert tokens[:6][ids[:6] == ids[index]] == [tokens[index + 1]]
        assert ids[13] == ids[6]


def test_the_ids_of_a_prompt_do_not_depend_on_the_order(rng):
    examples = Sort().sample(length=8, size=50, rng=rng)
    assert examples.coupling is not None
    prompts = examples.coupling[0, :, : examples.prompt_length[0]]
    assert (prompts == prompts[:1]).all()
    assert len({tuple(ids) for ids in examples.coupling[0].tolist()}) > 40


def test_values_repeat_only_with_the_setting_repeats(rng):
    distinct = Sort(num_values=12).sample(length=12, size=100, rng=rng).tokens[:, :12]
    assert all(len(set(row)) == 12 for row in distinct.tolist())
    assert len({tuple(row) for row in distinct.tolist()}) == 100
    repeated = Sort(num_values=12, repeats=True).sample(length=12, size=100, rng=rng).tokens[:, :12]
    assert any(len(set(row)) < 12 for row in repeated.tolist())
    assert set(np.unique(repeated)) == set(range(12))


@pytest.mark.parametrize("prompt", ["17 4 33", "17 4 33 =", " 17  4 33 = > "])
def test_a_parsed_list_has_the_answer_of_python(prompt):
    examples = Sort().example_from_prompt(prompt)
    assert decode_tokens(Sort(), examples.tokens[0]) == ["17", "4", "33", "=", ">", "4", "17", "33", "end"]


@pytest.mark.parametrize("repeats", [False, True])
def test_narrow_lists_have_values_from_a_window_of_at_most_twice_their_length(repeats, rng):
    task = Sort(num_values=100, repeats=repeats, narrow_share=1.0)
    items = task.sample(length=10, size=2_000, rng=rng).tokens[:, :10]
    widths = np.ptp(items, axis=1) + 1
    assert widths.max() <= 20
    assert (items.min(), items.max()) == (0, 99)
    if not repeats:
        assert widths.min() == 10
    share = np.mean(
        np.ptp(Sort(num_values=100, narrow_share=0.3).sample(length=10, size=2_000, rng=rng).tokens[:, :10], axis=1)
        < 20
    )
    assert 0.25 < share < 0.35


def test_a_list_longer_than_a_window_of_all_values_has_repeats_only(rng):
    items = Sort(num_values=5, repeats=True, narrow_share=1.0).sample(length=12, size=50, rng=rng).tokens[:, :12]
    assert set(np.unique(items)) == set(range(5))
