"""Laws that every task, scheme and encoding keeps, alone and together."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from cases import NUM_POSITION_IDS, SETTINGS, small_decoder, small_scheme
from lengthwise.attention import SHORT
from lengthwise.batch import Sampler, to_batch
from lengthwise.decoder import Decoder
from lengthwise.encodings import ENCODINGS, EncodingSize
from lengthwise.errors import UnservedTaskError
from lengthwise.example import Examples
from lengthwise.positions import SCHEMES
from lengthwise.randomness import stream
from lengthwise.tasks import TASKS, Addition, Parity, Task

# Sequences of the first length take the short path through attention, those of the second the long one.
LENGTHS = (2, 40)

over_tasks = pytest.mark.parametrize("task", [pytest.param(task(), id=name) for name, task in TASKS.items()])
over_settings = pytest.mark.parametrize("task", [pytest.param(task, id=name) for name, task in SETTINGS.items()])
over_schemes = pytest.mark.parametrize("scheme", SCHEMES)
over_encodings = pytest.mark.parametrize("encoding", ENCODINGS)
over_lengths = pytest.mark.parametrize("length", LENGTHS)
gapped = pytest.mark.parametrize(
    "scheme", [name for name, scheme in SCHEMES.items() if "max_gaps" in {field.name for field in fields(scheme)}]
)


def training_inputs(task: Task, scheme: str, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and IDs of two sequences, as training sees them."""
    examples = task.sample(length=length, size=2, rng=stream(0, "examples"))
    assignment = small_scheme(scheme).assign(examples, stream(0, "positions"), training=True)
    batch = to_batch(length, examples, assignment)
    return batch.tokens, batch.position_ids


def hidden_in_pieces(
    decoder: Decoder, tokens: torch.Tensor, position_ids: torch.Tensor, sizes: list[int]
) -> torch.Tensor:
    """Hidden states of tokens that are fed piece by piece through the cache."""
    parts, cache, start = [], None, 0
    for size in sizes:
        piece = slice(start, start + size)
        hidden, cache = decoder(tokens[:, piece], position_ids[:, :, piece], cache)
        parts.append(hidden)
        start += size
    assert start == tokens.shape[1]
    return torch.cat(parts, dim=1)


def assert_later_tokens_change_nothing_earlier(
    decoder: Decoder, tokens: torch.Tensor, position_ids: torch.Tensor, vocabulary: int
) -> None:
    before, _ = decoder(tokens, position_ids)
    for first in (1, tokens.shape[1] // 2, tokens.shape[1] - 1):
        changed_tokens, changed_ids = tokens.clone(), position_ids.clone()
        changed_tokens[:, first:] = (tokens[:, first:] + 1) % vocabulary
        changed_ids[..., first:] = position_ids[..., first:].flip(-1)
        after, _ = decoder(changed_tokens, changed_ids)
        torch.testing.assert_close(after[:, :first], before[:, :first], atol=1e-5, rtol=0)
        assert (after[:, first] - before[:, first]).abs().max() > 1e-2


@over_tasks
@over_schemes
@over_encodings
@over_lengths
@torch.no_grad()
def test_later_tokens_and_ids_never_change_earlier_hidden_states(encoding, scheme, task, length):
    tokens, position_ids = training_inputs(task, scheme, length)
    assert (tokens.shape[1] > SHORT) == (length == LENGTHS[1])
    decoder = small_decoder(encoding, task)
    assert_later_tokens_change_nothing_earlier(decoder, tokens, position_ids, len(task.vocabulary))


@over_encodings
@pytest.mark.parametrize("seq", [9, SHORT + 9])
@torch.no_grad()
def test_causality_follows_token_indexes_where_ids_repeat_and_fall(encoding, seq, rng):
    task = Parity()
    tokens = torch.from_numpy(rng.integers(0, len(task.vocabulary), size=(2, seq)))
    position_ids = torch.from_numpy(rng.integers(0, 5, size=(1, 2, seq)))
    assert_later_tokens_change_nothing_earlier(small_decoder(encoding, task), tokens, position_ids, 4)


@over_tasks
@over_schemes
@over_encodings
@over_lengths
@torch.no_grad()
def test_decoding_through_the_cache_gives_the_hidden_states_of_one_pass(encoding, scheme, task, length):
    tokens, position_ids = training_inputs(task, scheme, length)
    decoder = small_decoder(encoding, task)
    whole, cache = decoder(tokens, position_ids)
    seq = tokens.shape[1]
    assert torch.equal(cache.position_ids, position_ids)
    one_by_one = [1] * seq if length == LENGTHS[0] else [seq - 3, 1, 1, 1]
    for sizes in (one_by_one, [seq // 2, seq - seq // 2]):
        cached = hidden_in_pieces(decoder, tokens, position_ids, sizes)
        torch.testing.assert_close(cached, whole, atol=1e-5, rtol=1e-5)


@over_encodings
@torch.no_grad()
def test_decoding_one_by_one_agrees_while_the_cache_outgrows_the_short_path(encoding, monkeypatch):
    monkeypatch.setattr("lengthwise.attention.SHORT", 6)
    tokens, position_ids = training_inputs(Addition(), "coupled", 3)
    decoder = small_decoder(encoding, Addition())
    whole, _ = decoder(tokens, position_ids)
    cached = hidden_in_pieces(decoder, tokens, position_ids, [1] * tokens.shape[1])
    torch.testing.assert_close(cached, whole, atol=1e-5, rtol=1e-5)


@over_tasks
@over_schemes
@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if ENCODINGS[name]().num_position_ids is None])
@pytest.mark.parametrize("shift", [1, 1_000, 1_000_000])
@torch.no_grad()
def test_shifting_all_ids_leaves_hidden_states_unchanged(shift, encoding, scheme, task):
    tokens, position_ids = training_inputs(task, scheme, LENGTHS[0])
    decoder = small_decoder(encoding, task)
    there, _ = decoder(tokens, position_ids + shift)
    torch.testing.assert_close(there, decoder(tokens, position_ids)[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != "nope"])
@torch.no_grad()
def test_hidden_states_depend_on_ids_unless_there_is_no_encoding(encoding):
    tokens, position_ids = training_inputs(Parity(), "sequential", LENGTHS[0])
    decoder = small_decoder(encoding, Parity())
    apart, _ = decoder(tokens, 3 * position_ids)
    assert (apart - decoder(tokens, position_ids)[0]).abs().max() > 1e-2


@over_encodings
def test_an_encoding_reads_ids_alone_and_not_where_they_stand(encoding, rng):
    module = ENCODINGS[encoding]().build(EncodingSize(d_model=8, num_heads=2, d_head=4))
    position_ids = torch.from_numpy(rng.integers(0, 50, size=(3, 9)))
    x, heads = torch.randn(3, 9, 8), torch.randn(3, 2, 9, 4)
    chosen, keys = torch.tensor([7, 0, 4]), torch.tensor([8, 1])
    ids = position_ids[:, chosen]
    torch.testing.assert_close(module.embed(x[:, chosen], ids), module.embed(x, position_ids)[:, chosen])
    torch.testing.assert_close(
        module.rotate(heads[:, :, chosen], ids), module.rotate(heads, position_ids)[:, :, chosen]
    )
    if module.has_bias:
        whole = module.bias(position_ids, position_ids)
        torch.testing.assert_close(module.bias(ids, position_ids[:, keys]), whole[:, :, chosen][:, :, :, keys])
    else:
        with pytest.raises(NotImplementedError, match=r"Encoding declares no bias"):
            module.bias(position_ids, position_ids)


@over_settings
def test_the_same_stream_gives_the_same_examples(task):
    first, again, other = (task.sample(length=9, size=8, rng=stream(seed, "examples", task.name)) for seed in (0, 0, 1))
    assert np.array_equal(first.tokens, again.tokens)
    assert first.tokens.shape != other.tokens.shape or not np.array_equal(first.tokens, other.tokens)


@over_tasks
@over_schemes
def test_a_batch_depends_on_its_step_and_seed_and_not_on_the_batches_before(scheme, task):
    sampler = Sampler(task=task, scheme=small_scheme(scheme), lengths=(3, 9), batch_size=6, seed=3)
    forward = [sampler.batch(step) for step in range(4)]
    backward = [sampler.batch(step) for step in reversed(range(4))][::-1]
    for batch, again in zip(forward, backward, strict=True):
        for field in fields(batch):
            one, other = getattr(batch, field.name), getattr(again, field.name)
            assert one == other if field.name == "length" else torch.equal(one, other)
    reseeded = [replace(sampler, seed=4).batch(step) for step in range(4)]
    contents = {(batch.length, tuple(batch.tokens.flatten().tolist())) for batch in (*forward, *reseeded)}
    assert len(contents) == 8


@over_tasks
@over_schemes
def test_the_draws_of_a_scheme_shift_no_draw_of_a_task(scheme, task):
    settings = {"task": task, "lengths": (3, 9), "batch_size": 6, "seed": 3}
    for step in range(3):
        plain = Sampler(scheme=small_scheme("sequential"), **settings).batch(step)
        assert torch.equal(Sampler(scheme=small_scheme(scheme), **settings).batch(step).tokens, plain.tokens)


def test_rows_of_a_batch_are_the_same_rows_of_every_tensor():
    batch = Sampler(task=Parity(), scheme=small_scheme("coupled"), lengths=(5, 5), batch_size=6, seed=0).batch(0)
    part = batch.rows(slice(1, 4))
    assert part.length == batch.length
    assert torch.equal(part.position_ids, batch.position_ids[:, 1:4])
    for name in ("tokens", "prompt_length", "token_scored", "id_scored"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[1:4])


def test_training_lengths_cover_both_ends_of_their_range():
    sampler = Sampler(task=Parity(), scheme=small_scheme("sequential"), lengths=(2, 4), batch_size=1, seed=0)
    assert {sampler.batch(step).length for step in range(40)} == {2, 3, 4}


def groups_of(scheme: str, examples: Examples) -> np.ndarray:
    """The numbers whose order and ties a scheme has to keep."""
    if SCHEMES[scheme].needs == "coupling":
        assert examples.coupling is not None
        return examples.coupling
    return np.broadcast_to(np.arange(examples.tokens.shape[1]), (1, *examples.tokens.shape))


def serves(scheme: str, examples: Examples) -> bool:
    """What is declared: a scheme that needs coupling cannot serve a task without."""
    return examples.coupling is not None or SCHEMES[scheme].needs != "coupling"


@over_settings
@over_schemes
def test_training_ids_keep_the_order_and_ties_of_their_groups(scheme, task, rng):
    examples = task.sample(length=7, size=40, rng=rng)
    if not serves(scheme, examples):
        with pytest.raises(UnservedTaskError, match="declares no coupling; use the scheme sequential"):
            small_scheme(scheme).assign(examples, rng, training=True)
        return
    ids = small_scheme(scheme).assign(examples, rng, training=True).position_ids
    groups = groups_of(scheme, examples)
    assert np.array_equal(
        np.sign(ids[..., :, None] - ids[..., None, :]), np.sign(groups[..., :, None] - groups[..., None, :])
    )
    assert ids.min() >= 0
    assert ids.max() < NUM_POSITION_IDS


@over_settings
@over_schemes
def test_without_gaps_a_sequence_is_shifted_as_one_block(scheme, task, rng):
    examples = task.sample(length=7, size=40, rng=rng)
    if not serves(scheme, examples):
        return
    ids = small_scheme(scheme, max_gaps=0).assign(examples, rng, training=True).position_ids
    shifts = ids - groups_of(scheme, examples)
    assert (shifts == shifts[..., :1]).all()
    assert len(np.unique(shifts)) > 1 or scheme == "sequential"


@over_settings
@over_schemes
def test_evaluation_ids_draw_nothing_and_are_the_groups(scheme, task, rng):
    examples = task.sample(length=7, size=5, rng=rng)
    before = rng.bit_generator.state
    if not serves(scheme, examples):
        with pytest.raises(UnservedTaskError, match="declares no coupling; use the scheme sequential"):
            small_scheme(scheme).assign(examples, rng, training=False)
        return
    # Longer than the training range, too: at evaluation no range is a limit.
    for kept in (small_scheme(scheme), small_scheme(scheme, num_position_ids=2)):
        ids = kept.assign(examples, rng, training=False).position_ids
        assert np.array_equal(ids, groups_of(scheme, examples))
    assert rng.bit_generator.state == before


@over_settings
@over_schemes
@pytest.mark.parametrize("training", [True, False])
def test_every_answer_is_scored_and_every_answers_id_but_that_of_the_end_token(training, scheme, task, rng):
    examples = task.sample(length=7, size=40, rng=rng)
    if not serves(scheme, examples):
        return
    assignment = small_scheme(scheme).assign(examples, rng, training=training)
    ends = np.arange(examples.tokens.shape[1]) == examples.response_end[:, None]
    assert np.array_equal(assignment.token_scored, examples.is_answer)
    assert np.array_equal(assignment.id_scored, examples.is_answer & ~ends)


@gapped
def test_gaps_open_distances_of_every_size_up_to_the_whole_range(scheme, rng):
    examples = Parity().sample(length=4, size=3_000, rng=rng)
    ids = small_scheme(scheme).assign(examples, rng, training=True).position_ids[0]
    distances = ids.max(axis=1) - ids.min(axis=1)
    shortest = np.ptp(groups_of(scheme, examples)[0, 0])
    tenths = np.linspace(shortest, NUM_POSITION_IDS - 1, 11)
    assert distances.min() == shortest
    assert (np.histogram(distances, bins=tenths)[0] > 50).all()
    neighbours = np.diff(np.sort(ids, axis=1), axis=1).max(axis=1)
    assert neighbours.max() > 0.9 * NUM_POSITION_IDS


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if small_scheme(name).num_position_ids is not None])
def test_the_random_shift_meets_every_id_of_the_range(scheme, rng):
    examples = Parity().sample(length=2, size=4_000, rng=rng)
    ids = small_scheme(scheme, num_position_ids=64).assign(examples, rng, training=True).position_ids
    lowest = groups_of(scheme, examples).min()
    assert np.array_equal(np.unique(ids), np.arange(lowest, 64))


@over_settings
@pytest.mark.parametrize("length", [1, 2, 7])
def test_answers_reach_from_the_prompt_to_the_end_token(length, task, rng):
    examples = task.sample(length=length, size=60, rng=rng)
    index = np.arange(examples.tokens.shape[1])
    end = task.vocabulary.index("end")
    separators = [task.vocabulary.index(symbol) for symbol in task.separators]
    for row, tokens in enumerate(examples.tokens):
        first, last = examples.prompt_length[row], examples.response_end[row]
        assert np.array_equal(examples.is_answer[row], (first <= index) & (index <= last))
        assert np.flatnonzero(tokens == end)[0] == last
        assert [token for token in tokens[:first] if token in separators] == separators
        assert not np.isin(tokens[first:last], separators).any()
    assert examples.response_end.max() == index[-1]
    assert len(examples) == 60


@over_settings
@pytest.mark.parametrize("length", [1, 2, 3])
def test_an_answer_is_a_function_of_the_tokens_that_its_support_names(length, task, rng):
    examples = task.sample(length=length, size=3_000, rng=rng)
    if examples.support is None:
        assert isinstance(task, Addition)
        assert task.order == "most"
        return
    assert (examples.support[~examples.is_answer] == -1).all()
    read = np.where(
        examples.support >= 0,
        np.take_along_axis(examples.tokens[..., None], examples.support.clip(0), axis=1),
        -1,
    )
    answers: dict[tuple[int, ...], int] = {}
    for known, answer in zip(read[examples.is_answer].tolist(), examples.tokens[examples.is_answer], strict=True):
        assert answers.setdefault(tuple(known), answer) == answer
    assert len(set(answers.values())) > 1


@over_settings
def test_support_names_earlier_tokens_and_names_each_once(task, rng):
    examples = task.sample(length=6, size=50, rng=rng)
    if examples.support is None:
        return
    index = np.arange(examples.tokens.shape[1])[:, None]
    assert (examples.support < index).all()
    assert (examples.support.max(axis=-1)[examples.is_answer] >= 0).all()
    for named in examples.support[examples.is_answer].tolist():
        given = [place for place in named if place >= 0]
        assert len(given) == len(set(given))


@over_settings
def test_the_token_before_an_answer_has_the_id_of_what_the_answer_needs(task, rng):
    examples = task.sample(length=6, size=50, rng=rng)
    if examples.support is None or examples.coupling is None or task == Parity(coupling="same"):
        return
    groups = examples.coupling[0]
    for row, index in np.argwhere(examples.is_answer):
        needed = {groups[row, place] for place in examples.support[row, index] if 0 <= place < index - 1}
        assert groups[row, index - 1] in needed


def test_same_coupling_gives_a_running_parity_the_id_of_its_own_bit(rng):
    groups = Parity(coupling="same").sample(length=6, size=2, rng=rng).coupling
    assert groups is not None
    assert np.array_equal(groups[0, :, 8:14], groups[0, :, 0:6])


@over_encodings
@over_schemes
@over_lengths
@torch.no_grad()
def test_hidden_states_from_an_index_on_are_those_of_the_whole(encoding, scheme, length):
    decoder = small_decoder(encoding, Parity())
    tokens, position_ids = training_inputs(Parity(), scheme, length)
    whole, whole_cache = decoder(tokens, position_ids)
    part, part_cache = decoder(tokens, position_ids, first=length + 1)
    torch.testing.assert_close(part, whole[:, length + 1 :], atol=1e-5, rtol=1e-5)
    for mine, reference in zip(part_cache.keys, whole_cache.keys, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-5, rtol=1e-5)
