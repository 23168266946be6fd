"""Laws of all tasks and of the batches sampled from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.cases import EXACT_MATCH_TASKS, TASK_VARIANTS, small_scheme, supports_examples

from lengthwise.core.randomness import random_stream
from lengthwise.positions import SCHEMES
from lengthwise.tasks import TASKS, Parity
from lengthwise.training.batch import TENSORS, TrainingSampler

over_tasks = pytest.mark.parametrize("task", [pytest.param(task(), id=name) for name, task in TASKS.items()])
over_settings = pytest.mark.parametrize("task", [pytest.param(task, id=name) for name, task in TASK_VARIANTS.items()])
over_answered = pytest.mark.parametrize(
    "task", [pytest.param(task, id=name) for name, task in EXACT_MATCH_TASKS.items()]
)
over_schemes = pytest.mark.parametrize("scheme", SCHEMES)


@over_settings
def test_the_same_stream_gives_the_same_examples(task):
    first, again, other = (
        task.sample(length=9, size=8, rng=random_stream(seed, "examples", task.name)) for seed in (0, 0, 1)
    )
    assert np.array_equal(first.tokens, again.tokens)
    assert first.tokens.shape != other.tokens.shape or not np.array_equal(first.tokens, other.tokens)


@pytest.mark.covering(2)
@over_tasks
@over_schemes
def test_a_batch_depends_on_its_step_and_seed_and_not_on_earlier_batches(scheme, task):
    if not supports_examples(scheme, task.sample(length=3, size=1, rng=random_stream(0))):
        return
    sampler = TrainingSampler(task=task, scheme=small_scheme(scheme), lengths=(3, 9), batch_size=6, seed=3)
    forward = [sampler.batches(step)[0] for step in range(4)]
    backward = [sampler.batches(step)[0] for step in reversed(range(4))][::-1]
    for batch, again in zip(forward, backward, strict=True):
        assert batch.length == again.length
        assert all(torch.equal(getattr(batch, name), getattr(again, name)) for name in TENSORS)
    reseeded = [replace(sampler, seed=4).batches(step)[0] for step in range(4)]
    contents = {(batch.length, tuple(batch.tokens.flatten().tolist())) for batch in (*forward, *reseeded)}
    assert len(contents) == 8


@pytest.mark.covering(2)
@over_tasks
@over_schemes
def test_the_random_numbers_of_a_scheme_do_not_change_the_examples(scheme, task):
    if not supports_examples(scheme, task.sample(length=3, size=1, rng=random_stream(0))):
        return
    settings = {"task": task, "lengths": (3, 9), "batch_size": 6, "seed": 3}
    for step in range(3):
        plain = TrainingSampler(scheme=small_scheme("sequential"), **settings).batches(step)[0]
        assert torch.equal(
            TrainingSampler(scheme=small_scheme(scheme), **settings).batches(step)[0].tokens, plain.tokens
        )


def test_selecting_from_a_batch_selects_the_same_sequences_of_every_tensor():
    batch = TrainingSampler(
        task=Parity(), scheme=small_scheme("coupled"), lengths=(5, 5), batch_size=6, seed=0
    ).batches(0)[0]
    part = batch.select_examples(slice(1, 4))
    assert part.length == batch.length
    assert torch.equal(part.position_ids, batch.position_ids[:, 1:4])
    for name in ("tokens", "prompt_length", "token_scored", "id_scored"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[1:4])


def test_training_lengths_cover_both_ends_of_their_range():
    sampler = TrainingSampler(task=Parity(), scheme=small_scheme("sequential"), lengths=(2, 4), batch_size=1, seed=0)
    assert {sampler.batches(step)[0].length for step in range(40)} == {2, 3, 4}


@over_answered
@pytest.mark.covering(1)
@pytest.mark.parametrize("beyond", [0, 1, 6])
def test_answers_span_from_the_prompt_to_the_end_token(beyond, task, rng):
    examples = task.sample(length=task.min_length + beyond, size=60, rng=rng)
    index = np.arange(examples.tokens.shape[1])
    end = task.vocabulary.index("end")
    separators = [task.vocabulary.index(symbol) for symbol in task.separators]
    for example, tokens in enumerate(examples.tokens):
        first, last = examples.prompt_length[example], examples.response_end[example]
        assert np.array_equal(examples.is_answer[example], (first <= index) & (index <= last))
        assert np.flatnonzero(tokens == end)[0] == last
        assert [token for token in tokens[:first] if token in separators] == separators
        assert not np.isin(tokens[first:last], separators).any()
    assert examples.response_end.max() == index[-1]
    assert len(examples) == 60


@over_answered
@pytest.mark.covering(1)
@pytest.mark.parametrize("beyond", [0, 1, 2])
def test_an_answer_is_a_function_of_its_support(beyond, task, rng):
    examples = task.sample(length=task.min_length + beyond, size=1_500, rng=rng)
    if examples.depends_on is None:
        # The oracles say which tasks have no depends_on.
        return
    assert (examples.depends_on[~examples.is_answer] == -1).all()
    read = np.where(
        examples.depends_on >= 0,
        np.take_along_axis(examples.tokens[..., None], examples.depends_on.clip(0), axis=1),
        -1,
    )
    answers: dict[tuple[int, ...], int] = {}
    for inputs, answer in zip(read[examples.is_answer].tolist(), examples.tokens[examples.is_answer], strict=True):
        assert answers.setdefault(tuple(inputs), answer) == answer
    assert len(set(answers.values())) > 1


@over_settings
def test_the_support_contains_only_earlier_tokens_and_each_once(task, rng):
    examples = task.sample(length=6, size=50, rng=rng)
    if examples.depends_on is None:
        return
    index = np.arange(examples.tokens.shape[1])[:, None]
    assert (examples.depends_on < index).all()
    assert (examples.depends_on.max(axis=-1)[examples.is_answer] >= 0).all()
    for depends_on in examples.depends_on[examples.is_answer].tolist():
        indices = [index for index in depends_on if index >= 0]
        assert len(indices) == len(set(indices))


@over_settings
def test_the_token_before_an_answer_has_the_id_of_a_token_in_its_support(task, rng):
    examples = task.sample(length=6, size=50, rng=rng)
    if examples.depends_on is None or examples.coupling is None or task == Parity(coupling="same"):
        return
    for example, index in np.argwhere(examples.is_answer):
        ids = examples.coupling[:, example].T
        needed = [ids[place] for place in examples.depends_on[example, index] if 0 <= place < index - 1]
        # A carry only needs the token before it. On one level, the ID may match one of several tokens.
        assert any((ids[index - 1] == each).any() for each in needed) or not needed


def test_with_the_same_coupling_a_running_parity_has_the_id_of_its_own_bit(rng):
    groups = Parity(coupling="same").sample(length=6, size=2, rng=rng).coupling
    assert groups is not None
    assert np.array_equal(groups[0, :, 8:14], groups[0, :, 0:6])
