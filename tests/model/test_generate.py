"""Tests of generation: caching, end tokens, grading of predicted IDs and errors for missing IDs."""

from dataclasses import replace

import pytest
import torch
from tests.support.cases import randomize, small_decoder, small_encoding
from tests.support.small_runs import small_experiment

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import ENCODINGS
from lengthwise.evaluation.grading import grade
from lengthwise.experiments.experiment import Experiment, build_decoder
from lengthwise.model import generate as generation
from lengthwise.model.attention import WEIGHT_FUNCTIONS
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import LENGTH_SCALINGS
from lengthwise.model.generate import generate
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import Coupled, MultiLevel, Predicted
from lengthwise.tasks import Addition, MultiAddition, Parity
from lengthwise.training.batch import Batch, to_batch

NEW = 6
NEVER = -1
TWO_LEVELS = MultiAddition(operands=(2, 2))

over_levels = pytest.mark.parametrize("task", [Parity(), TWO_LEVELS], ids=["one level", "two levels"])


def decoder_and_batch(experiment: Experiment, *, size: int = 12) -> tuple[Decoder, Batch]:
    """Return a decoder of two layers with every option and random weights, and a batch with prompts of one length."""
    options = replace(experiment.decoder, num_layers=2, previous_token_mix=True)
    decoder = build_decoder(replace(experiment, decoder=options))
    randomize(decoder)
    with torch.no_grad():
        # Random weights generate the same token forever unless embeddings are large.
        decoder.embedding.mul_(3)
    examples = experiment.task.sample(length=5, size=size, rng=random_stream(0, "examples"))
    return decoder.eval(), to_batch(
        5, examples, experiment.scheme.assign(examples, random_stream(0, "IDs"), training=True)
    )


@torch.no_grad()
def decode_without_cache(decoder: Decoder, batch: Batch, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return greedily decoded tokens and IDs, recomputing the whole prefix for every token."""
    length = int(batch.prompt_length[0])
    tokens, ids = batch.tokens[:, :length], batch.position_ids[:, :, :length]
    for index in range(length, length + new):
        hidden, _ = decoder(tokens, ids)
        token = decoder.token_logits(hidden)[:, -1].argmax(dim=-1, keepdim=True)
        if decoder.predicts_ids:
            prompts = decoder.build_prompt_keys(tokens, ids, batch.prompt_length)
            levels = decoder.next_id_distributions(hidden[:, -1:], ids[:, :, -1:], token, prompts)
            following = torch.stack([level.most_likely_ids() for level in levels])
        else:
            following = batch.position_ids[:, :, index : index + 1]
        tokens = torch.cat([tokens, token], dim=1)
        ids = torch.cat([ids, following], dim=2)
    return tokens[:, length:], ids[:, :, length:]


@pytest.mark.covering(2)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_cached_generation_with_known_ids_equals_uncached_decoding(encoding):
    # On two levels, a quarter of a head is less than one pair.
    settings, used = small_encoding(encoding, share=0.5), []
    for task in (Parity(), Addition(), TWO_LEVELS):
        decoder, batch = decoder_and_batch(small_experiment(task, MultiLevel(num_position_ids=48), settings))
        length = int(batch.prompt_length[0])
        generation = generate(decoder, batch.tokens[:, :length], batch.position_ids, end=NEVER, max_new_tokens=NEW)
        tokens, ids = decode_without_cache(decoder, batch, NEW)
        assert torch.equal(generation.tokens, tokens)
        assert torch.equal(generation.position_ids, ids)
        assert generation.is_written.all()
        used.append(len(tokens.unique()))
    assert max(used) > 1


@pytest.mark.parametrize("encoding", ["rotary", "learned"])
@pytest.mark.parametrize("head", POSITION_HEADS)
@over_levels
def test_cached_generation_with_predicted_ids_equals_uncached_decoding(task, head, encoding):
    experiment = small_experiment(task, Predicted(num_position_ids=48), ENCODINGS[encoding](), head=head)
    decoder, batch = decoder_and_batch(experiment)
    length = int(batch.prompt_length[0])
    known_ids = batch.position_ids[:, :, :length]
    # The IDs of the prompt alone, so that all predicted IDs are in the range of the encoding.
    generation = generate(decoder, batch.tokens[:, :length], known_ids, end=NEVER, max_new_tokens=NEW)
    tokens, ids = decode_without_cache(decoder, batch, NEW)
    assert torch.equal(generation.tokens, tokens)
    assert torch.equal(generation.position_ids, ids)
    assert all(len(level.unique()) > 2 for level in ids)


@over_levels
def test_known_ids_take_precedence_over_predicted_ones(task):
    decoder, batch = decoder_and_batch(small_experiment(task))
    length = int(batch.prompt_length[0])
    prompt, known_ids = batch.tokens[:, :length], batch.position_ids[:, :, : length + 3]
    generation = generate(decoder, prompt, known_ids, end=NEVER, max_new_tokens=NEW)
    alone = generate(decoder, prompt, known_ids[:, :, :length], end=NEVER, max_new_tokens=NEW)
    assert torch.equal(generation.position_ids[:, :, :3], known_ids[:, :, length:])
    assert not torch.equal(alone.position_ids[:, :, :3], known_ids[:, :, length:])
    assert torch.equal(generation.tokens[:, 0], alone.tokens[:, 0])


@torch.no_grad()
def test_an_id_is_graded_correct_only_if_both_levels_are():
    decoder, batch = decoder_and_batch(small_experiment(TWO_LEVELS))
    length = int(batch.prompt_length[0])
    targets, ids = batch.tokens[:, length:], batch.position_ids
    hidden, _ = decoder(batch.tokens[:, :-1], ids[:, :, :-1], query_start=length - 1)
    prompts = decoder.build_prompt_keys(batch.tokens, ids, batch.prompt_length)
    predicted = decoder.next_id_distributions(hidden, ids[:, :, length - 1 : -1], targets, prompts)
    generation = generate(
        decoder, batch.tokens[:, :length], ids[:, :, :length], end=NEVER, max_new_tokens=targets.shape[1]
    )
    for decode, named in (
        ("forced", torch.stack([level.most_likely_ids() for level in predicted])),
        ("free", generation.position_ids),
    ):
        first, second = named == ids[:, :, length:]
        assert torch.equal(grade(decoder, batch, end=NEVER, decode=decode).id_correct, first & second)
        assert (first != second).any()


def test_each_sequence_ends_at_its_end_token_and_decoding_stops_after_the_last():
    decoder, batch = decoder_and_batch(small_experiment(Addition(), Coupled(num_position_ids=48)))
    length = int(batch.prompt_length[0])
    prompt = batch.tokens[:, :length]
    endless = generate(decoder, prompt, batch.position_ids, end=NEVER, max_new_tokens=NEW)
    rows = [row for row in endless.tokens.tolist() if len(set(row)) > 1]
    end = rows[0][1]
    ended = generate(decoder, prompt, batch.position_ids, end=end, max_new_tokens=NEW)
    expected = []
    for row in endless.tokens.tolist():
        count = row.index(end) + 1 if end in row else NEW
        expected.append([place < count for place in range(NEW)])
    width = ended.tokens.shape[1]
    assert width == max(map(sum, expected))
    assert ended.is_written.tolist() == [row[:width] for row in expected]
    assert torch.equal(ended.tokens[ended.is_written], endless.tokens[:, :width][ended.is_written])
    assert len({sum(row) for row in expected}) > 1


def test_decoding_stops_early_when_every_sequence_has_ended():
    decoder, batch = decoder_and_batch(small_experiment(), size=1)
    length = int(batch.prompt_length[0])
    prompt, known_ids = batch.tokens[:, :length], batch.position_ids[:, :, :length]
    end = int(generate(decoder, prompt, known_ids, end=NEVER, max_new_tokens=1).tokens)
    assert generate(decoder, prompt, known_ids, end=end, max_new_tokens=NEW).tokens.tolist() == [[end]]


def test_fewer_ids_than_prompt_tokens_raise_an_error():
    decoder, batch = decoder_and_batch(small_experiment())
    with pytest.raises(SettingError, match=r"^got 6 IDs for 7 prompt tokens; pass one ID per token$"):
        generate(decoder, batch.tokens[:, :7], batch.position_ids[:, :, :6], end=3, max_new_tokens=2)


def test_missing_ids_raise_an_error_if_the_decoder_predicts_none():
    decoder, batch = decoder_and_batch(small_experiment(scheme=Coupled(num_position_ids=48)))
    text = (
        r"^got IDs for 2 of 3 new tokens but this decoder predicts no IDs; "
        r"pass the IDs of all new tokens, or train with the scheme 'predicted'$"
    )
    with pytest.raises(SettingError, match=text):
        generate(decoder, batch.tokens[:, :7], batch.position_ids[:, :, :9], end=3, max_new_tokens=3)


@torch.no_grad()
def assert_steps_equal_a_full_pass(decoder: Decoder, task: Parity | MultiAddition) -> None:
    """Check the hidden states of the answer's tokens from steps with reserved memory."""
    examples = task.sample(length=3, size=4, rng=random_stream(0, "examples"))
    scheme = MultiLevel(num_position_ids=48)
    batch = to_batch(3, examples, scheme.assign(examples, random_stream(0, "IDs"), training=True))
    length, num_tokens = int(batch.prompt_length[0]), batch.tokens.shape[1]
    expected, _ = decoder(batch.tokens, batch.position_ids)
    _, prompt_cache = decoder(batch.tokens[:, :length], batch.position_ids[:, :, :length])
    cache = prompt_cache.reserve(num_tokens - length)
    for index in range(length, num_tokens):
        result, cache = decoder(batch.tokens[:, index, None], batch.position_ids[:, :, index, None], cache)
        torch.testing.assert_close(result, expected[:, index, None], atol=1e-5, rtol=0)
    assert torch.equal(cache.position_ids, batch.position_ids)


@pytest.mark.parametrize("encoding", ["rotary", "repo", "selective_rotary"])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_steps_of_a_looped_decoder_equal_a_full_pass(num_layers, encoding):
    decoder = small_decoder(encoding, Parity(), num_layers=num_layers, loops=3)
    assert_steps_equal_a_full_pass(decoder, Parity())


@pytest.mark.first(8)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_steps_equal_a_full_pass_for_every_encoding(encoding):
    for task, num_levels, level_per_head in ((Parity(), 1, False), (TWO_LEVELS, 2, False), (TWO_LEVELS, 2, True)):
        settings = small_encoding(encoding, share=0.5)
        decoder = small_decoder(settings, task, num_levels=num_levels, num_heads=4, level_per_head=level_per_head)
        assert_steps_equal_a_full_pass(decoder, task)


@pytest.mark.parametrize("scaling", LENGTH_SCALINGS)
@pytest.mark.parametrize("weights", WEIGHT_FUNCTIONS)
def test_steps_equal_a_full_pass_for_every_weight_function_and_length_scaling(weights, scaling):
    if weights == "entmax":
        pytest.importorskip("entmax")
    assert_steps_equal_a_full_pass(small_decoder("rotary", Parity(), weights=weights, length_scaling=scaling), Parity())


def test_steps_equal_a_full_pass_with_diluted_attention_in_training_mode():
    assert_steps_equal_a_full_pass(small_decoder("rotary", Parity(), dilution=0.5).train(), Parity())


@torch.no_grad()
def test_a_step_with_reserved_memory_keeps_the_earlier_keys_where_they_are():
    decoder, batch = decoder_and_batch(small_experiment())
    _, cache = decoder(batch.tokens[:, :5], batch.position_ids[:, :, :5])
    reserved = cache.reserve(2)
    _, extended = decoder(batch.tokens[:, 5:6], batch.position_ids[:, :, 5:6], reserved)
    for before, after in zip(reserved.keys + reserved.values, extended.keys + extended.values, strict=True):
        assert after.data_ptr() == before.data_ptr()
        assert (before.shape[2], after.shape[2]) == (5, 6)


@torch.no_grad()
def test_selected_sequences_of_a_cache_continue_like_a_cache_of_these_sequences():
    decoder, batch = decoder_and_batch(small_experiment(TWO_LEVELS))
    rows = torch.tensor([7, 2])
    prefix, prefix_ids = batch.tokens[:, :5], batch.position_ids[:, :, :5]
    next_inputs = batch.tokens[rows, 5:6], batch.position_ids[:, rows, 5:6]
    _, cache = decoder(prefix, prefix_ids)
    _, expected_cache = decoder(prefix[rows], prefix_ids[:, rows])
    expected, _ = decoder(*next_inputs, expected_cache)
    for selected in (cache.reserve(3).keep_sequences(rows), cache.keep_sequences(rows).reserve(1)):
        hidden, extended = decoder(*next_inputs, selected)
        torch.testing.assert_close(hidden, expected, atol=1e-5, rtol=0)
        assert torch.equal(extended.position_ids, batch.position_ids[:, rows, :6])


def frequent_token(tokens: torch.Tensor) -> int:
    """Return a token after which a few of the sequences are unfinished for some steps."""
    counts = [(int((tokens == token).any(dim=1).sum()), token) for token in tokens.unique().tolist()]
    return max(pair for pair in counts if pair[0] < len(tokens))[1]


@pytest.mark.covering(1)
@pytest.mark.parametrize(("share", "interval"), [(0.0, 1), (0.5, 1), (2.0, 1), (0.0, 4), (0.5, 3)])
@over_levels
def test_a_batch_decodes_like_single_sequences_with_or_without_finished_ones(task, share, interval, monkeypatch):
    monkeypatch.setattr(generation, "MIN_FINISHED_SHARE", share)
    monkeypatch.setitem(generation.SEARCH_INTERVALS, "cpu", interval)
    decoder, batch = decoder_and_batch(small_experiment(task), size=24)
    length, new = int(batch.prompt_length[0]), 12
    prompt, ids = batch.tokens[:, :length], batch.position_ids[:, :, :length]
    end = frequent_token(generate(decoder, prompt, ids, end=NEVER, max_new_tokens=new).tokens)
    sizes = []
    forward = Decoder.forward

    def count_sequences(self: Decoder, tokens: torch.Tensor, *inputs: object, **options: object) -> object:
        sizes.append(len(tokens))
        return forward(self, tokens, *inputs, **options)

    monkeypatch.setattr(Decoder, "forward", count_sequences)
    together = generate(decoder, prompt, ids, end=end, max_new_tokens=new)
    assert (min(sizes) < len(prompt)) == (share <= 1)
    assert len({int(count) for count in together.is_written.sum(dim=1)}) > 1
    for row in range(len(prompt)):
        alone = generate(decoder, prompt[row, None], ids[:, row, None], end=end, max_new_tokens=new)
        count = alone.tokens.shape[1]
        assert torch.equal(together.tokens[row, :count], alone.tokens[0])
        assert torch.equal(together.position_ids[:, row, :count], alone.position_ids[:, 0])
        assert together.is_written[row].sum() == count == alone.is_written.sum()
        assert (together.tokens[row, count:] == end).all()
        assert (together.position_ids[:, row, count:] == 0).all()


def test_the_ids_of_finished_sequences_are_always_valid(monkeypatch):
    monkeypatch.setattr(generation, "MIN_FINISHED_SHARE", 2.0)
    decoder, batch = decoder_and_batch(small_experiment(head="increment"), size=24)
    length = int(batch.prompt_length[0])
    prompt, ids = batch.tokens[:, :length], batch.position_ids[:, :, :length]
    end = frequent_token(generate(decoder, prompt, ids, end=NEVER, max_new_tokens=12).tokens)
    finished_ids, is_finished = [], torch.zeros(len(prompt), dtype=torch.bool)
    forward = Decoder.forward

    def record_ids(
        self: Decoder, tokens: torch.Tensor, position_ids: torch.Tensor, *inputs: object, **options: object
    ) -> object:
        # The first pass reads the prompt.
        if tokens.shape[1] == 1:
            finished_ids.extend(position_ids[:, is_finished].flatten().tolist())
            is_finished.logical_or_(tokens[:, 0] == end)
        return forward(self, tokens, position_ids, *inputs, **options)

    monkeypatch.setattr(Decoder, "forward", record_ids)
    generate(decoder, prompt, ids, end=end, max_new_tokens=12)
    assert len(finished_ids) > 12
    assert set(finished_ids) == {0}


@pytest.mark.parametrize("encoding", ["rotary", "weave"])
def test_a_decoder_can_train_after_generation(encoding):
    # A base that no other test uses, so that generation is the first to compute these frequencies.
    settings = small_encoding(encoding, base=9_876.0, in_training=True)
    decoder, batch = decoder_and_batch(small_experiment(Parity(), Coupled(num_position_ids=48), settings))
    new = generate(decoder, batch.tokens[:, :4], batch.position_ids[:, :, :8], end=NEVER, max_new_tokens=4)
    assert not any(tensor.is_inference() for tensor in (new.tokens, new.position_ids, new.is_written))
    hidden, _ = decoder.train()(batch.tokens, batch.position_ids)
    hidden.sum().backward()
    assert decoder.embedding.grad is not None
