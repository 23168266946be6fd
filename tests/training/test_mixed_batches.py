"""Batches of several lengths: an example has the same loss, gradients and predicted IDs as alone."""

from collections import Counter
from itertools import product

import pytest
import torch
from tests.support.cases import NUM_POSITION_IDS, small_decoder, small_encoding, small_scheme, supports_examples

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import ENCODINGS
from lengthwise.model.attention import WEIGHT_FUNCTIONS
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import LENGTH_SCALINGS
from lengthwise.model.position_heads import POSITION_HEADS
from lengthwise.positions import SCHEMES
from lengthwise.tasks import Addition, MultiAddition, Parity, Task, lengths_between
from lengthwise.training.batch import MAX_FILL, Batch, TrainingSampler, group_batches_by_size, join_batches, to_batch
from lengthwise.training.loss import _predict_ids, compute_answer_loss, mix_predicted_ids

# Relative to the loss and to the norm of the gradient, in float32.
# Rounding of sums in another order, which depends on the processor; a token that reads fill changes far more.
TOLERANCE = 5e-6
# Sums of another order change gradients by up to 5.2e-6 of their norm (entmax with a state pointer).
GRADIENT_TOLERANCE = 2e-5
LENGTHS = ((2, 2), (4, 1))
PAIRS = [
    (encoding, scheme)
    for encoding, scheme in product(ENCODINGS, SCHEMES)
    if ENCODINGS[encoding].real_valued or not SCHEMES[scheme].real_valued
]


def parts_of(task: Task, scheme: str) -> list[Batch]:
    """Return one batch per length, with training IDs."""
    rng, parts = random_stream(0, "parts"), []
    for length, size in LENGTHS:
        examples = task.sample(length=length, size=size, rng=rng)
        parts.append(to_batch(length, examples, small_scheme(scheme).assign(examples, rng, training=True)))
    return parts


def task_for(scheme: str) -> Task:
    """Return a task that the scheme supports."""
    examples = Parity().sample(length=2, size=1, rng=random_stream(0, "example"))
    return Parity() if supports_examples(scheme, examples) else Addition()


def decoder_for(encoding: str, task: Task, num_levels: int, **settings: object) -> Decoder:
    """Return a decoder in training mode, with scaled encodings active."""
    return small_decoder(small_encoding(encoding, in_training=True), task, num_levels=num_levels, **settings).train()


def only_row(batch: Batch, row: int) -> Batch:
    """Return the batch with the scores of one example; the others stay in it."""
    mask = (torch.arange(len(batch.tokens)) == row)[:, None]
    return Batch(
        length=batch.length,
        tokens=batch.tokens,
        position_ids=batch.position_ids,
        example_length=batch.example_length,
        prompt_length=batch.prompt_length,
        token_scored=batch.token_scored & mask,
        id_scored=batch.id_scored & mask,
    )


def loss_and_gradients(decoder: Decoder, batches: list[Batch]) -> tuple[list[float], dict[str, torch.Tensor]]:
    decoder.zero_grad()
    outcome = compute_answer_loss(decoder, batches, id_weight=0.7)
    torch.autograd.backward(outcome.loss)
    values = [outcome.loss.item(), outcome.token_accuracy.item(), outcome.id_accuracy.item()]
    return values, {name: each.grad for name, each in decoder.named_parameters() if each.grad is not None}


@torch.no_grad()
def predicted_ids(decoder: Decoder, batch: Batch) -> torch.Tensor:
    """Return the most likely IDs of the scored response tokens, (levels, ids)."""
    start = int(batch.prompt_length.min()) - 1
    hidden, _ = decoder(batch.tokens[:, :-1], batch.position_ids[:, :, :-1], query_start=start)
    levels = _predict_ids(decoder, batch, hidden, batch.position_ids)
    return torch.stack([level.most_likely_ids()[batch.id_scored[:, start + 1 :]] for level in levels])


def flat(gradients: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.flatten() for gradient in gradients.values()])


def assert_rows_equal_alone(decoder: Decoder, parts: list[Batch]) -> None:
    """Compare each example alone with the same example in one batch of all lengths, and in several groups."""
    joined = join_batches(parts)
    alone = [part.select_examples(slice(row, row + 1)) for part in parts for row in range(len(part.tokens))]
    order = [row_of(joined, single) for single in alone]
    assert sorted(order) == list(range(len(alone)))
    for row, single in zip(order, alone, strict=True):
        values, gradients = loss_and_gradients(decoder, [single])
        if decoder.predicts_ids:
            assert torch.equal(predicted_ids(decoder, only_row(joined, row)), predicted_ids(decoder, single))
        others = [other for other in alone if other is not single]
        unscored = [only_row(other, -1) for other in others]
        for batches in ([only_row(joined, row)], [unscored[0], single, *unscored[1:]]):
            mixed_values, mixed_gradients = loss_and_gradients(decoder, batches)
            assert mixed_values == pytest.approx(values, rel=TOLERANCE, abs=TOLERANCE)
            assert gradients.keys() == mixed_gradients.keys()
            difference = flat(mixed_gradients) - flat(gradients)
            assert difference.norm() <= GRADIENT_TOLERANCE * flat(gradients).norm()


def row_of(joined: Batch, single: Batch) -> int:
    """Return the index of an example in the joined batch."""
    seq = single.tokens.shape[1]
    matches = (joined.tokens[:, :seq] == single.tokens).all(dim=1)
    matches &= (joined.position_ids[:, :, :seq] == single.position_ids).all(dim=2).all(dim=0)
    matches &= joined.token_scored.sum(dim=1) == single.token_scored.sum()
    (index,) = matches.nonzero()[:, 0].tolist()
    return index


@pytest.mark.covering(1)
@pytest.mark.parametrize(("encoding", "scheme"), PAIRS)
def test_an_example_has_the_same_loss_and_gradients_alone_and_among_other_lengths(encoding, scheme):
    task = task_for(scheme)
    parts = parts_of(task, scheme)
    num_ids = NUM_POSITION_IDS if SCHEMES[scheme].predicts_ids else None
    decoder = decoder_for(encoding, task, len(parts[0].position_ids), num_predicted_ids=num_ids)
    assert_rows_equal_alone(decoder, parts)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("head", "weights", "scaling", "levels"), [*product(POSITION_HEADS, WEIGHT_FUNCTIONS, LENGTH_SCALINGS, (1, 2))]
)
def test_every_head_and_attention_option_ignores_fill(head, weights, scaling, levels):
    task = Parity() if levels == 1 else MultiAddition(operands=(2, 3))
    parts = parts_of(task, "predicted")
    decoder = decoder_for(
        "rotary",
        task,
        levels,
        num_predicted_ids=NUM_POSITION_IDS,
        head=head,
        weights=weights,
        length_scaling=scaling,
        top_k=3,
    )
    assert_rows_equal_alone(decoder, parts)


def sampler_for(task: Task, lengths: tuple[int, int], **settings: int) -> TrainingSampler:
    return TrainingSampler(task=task, scheme=small_scheme("sequential"), lengths=lengths, seed=3, **settings)


def fill_share(batches: list[Batch]) -> float:
    """Return the share of tokens after the end token."""
    num_tokens = sum(batch.tokens.numel() for batch in batches)
    num_used = sum(int((batch.token_scored.sum(dim=1) + batch.prompt_length).sum()) for batch in batches)
    return 1 - num_used / num_tokens


@pytest.mark.parametrize("task", [Parity(), Addition(), MultiAddition(operands=(2, 4))], ids=lambda task: task.name)
@pytest.mark.parametrize("lengths", [(1, 20), (1, 10), (5, 40)])
def test_fill_stays_below_the_limit(task, lengths):
    sampler = sampler_for(task, lengths, batch_size=64, lengths_per_batch=8)
    for step in range(20):
        assert fill_share(sampler.batches(step)) <= MAX_FILL + 1e-9


@pytest.mark.parametrize("lengths_per_batch", [1, 3, 8, 50])
def test_a_step_has_the_number_of_lengths_in_the_settings(lengths_per_batch):
    sampler = sampler_for(Parity(), (3, 12), batch_size=20, lengths_per_batch=lengths_per_batch)
    for step in range(5):
        # The prompt of parity has as many tokens as bits, and one separator.
        prompts = torch.cat([batch.prompt_length for batch in sampler.batches(step)])
        lengths = torch.cat([batch.example_length for batch in sampler.batches(step)])
        # The prompt also has a begin token and a separator.
        assert torch.equal(lengths, prompts - 2)
        counts = Counter(prompts.tolist())
        assert len(prompts) == 20
        assert len(counts) == min(lengths_per_batch, 10)
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.slow
def test_every_length_is_sampled_equally_often():
    sampler = sampler_for(Parity(), (1, 6), batch_size=8, lengths_per_batch=4)
    counts: Counter[int] = Counter()
    for step in range(600):
        counts.update(length for batch in sampler.batches(step) for length in batch.prompt_length.tolist())
    assert len(counts) == len(lengths_between(Parity(), 1, 6))
    # Expected 800 each, with a standard deviation of about 24.
    assert max(abs(count - 800) for count in counts.values()) < 120


def test_examples_of_all_lengths_are_spread_over_a_batch():
    parts = parts_of(Parity(), "sequential")
    many = [Batch(**{**vars_of(part), **repeated(part, 4)}) for part in parts]
    prompts = join_batches(many).prompt_length
    assert len(set(prompts[: len(prompts) // 2].tolist())) == len(parts)


def test_dilution_and_scheduled_sampling_ignore_the_content_of_fill():
    parts = parts_of(Parity(), "predicted")
    joined = join_batches(parts)
    is_fill = torch.ones_like(joined.token_scored)
    for row, used in enumerate((joined.token_scored.sum(dim=1) + joined.prompt_length).tolist()):
        is_fill[row, :used] = False
    assert is_fill.any()
    tokens = torch.where(is_fill, (joined.tokens + 1) % 3, joined.tokens)
    ids = torch.where(is_fill, joined.position_ids.flip(-1), joined.position_ids)
    changed = Batch(**{**vars_of(joined), "tokens": tokens, "position_ids": ids})
    decoder = decoder_for("rotary", Parity(), 1, num_predicted_ids=NUM_POSITION_IDS, dilution=0.5)
    assert loss_and_gradients(decoder, [changed])[0] == pytest.approx(loss_and_gradients(decoder, [joined])[0])
    mixed = [mix_predicted_ids(decoder, [batch], 0.6)[0].masked_fill(is_fill, 0) for batch in (joined, changed)]
    assert torch.equal(*mixed)
    assert not torch.equal(mixed[0], joined.position_ids.masked_fill(is_fill, 0))


def test_scheduled_sampling_keeps_a_small_share_of_small_batches():
    batches = [part.select_examples(slice(0, 1)) for part in parts_of(Parity(), "predicted") * 5]
    decoder = decoder_for("rotary", Parity(), 1, num_predicted_ids=NUM_POSITION_IDS)
    mixed = mix_predicted_ids(decoder, batches, 0.3)
    changed = [not torch.equal(ids, batch.position_ids) for ids, batch in zip(mixed, batches, strict=True)]
    # 0.3 of ten examples, although 0.3 of each single example rounds to none.
    assert sum(changed) == 3


def test_batches_of_one_length_are_not_changed():
    part = parts_of(Parity(), "sequential")[0]
    assert group_batches_by_size([part]) == [part]


def test_an_invalid_number_of_lengths_raises_an_error():
    with pytest.raises(SettingError, match="lengths per batch 0 is too small; use at least 1"):
        sampler_for(Parity(), (1, 4), batch_size=4, lengths_per_batch=0)


def vars_of(batch: Batch) -> dict[str, object]:
    return {name: getattr(batch, name) for name in Batch.__slots__}


def repeated(batch: Batch, times: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a batch with every example repeated."""
    rows = torch.arange(len(batch.tokens)).repeat(times)
    return {name: getattr(batch.select_examples(rows.numpy()), name) for name in Batch.__slots__ if name != "length"}
