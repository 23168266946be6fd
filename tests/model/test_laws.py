"""Laws of all encodings with all schemes, in training, in one pass and in cached decoding."""

import functools
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
import torch
from tests.support.cases import (
    randomize,
    small_decoder,
    small_encoding,
    small_scheme,
    supports_examples,
)

from lengthwise.core.errors import PositionIDError, PositionRangeError, UnsupportedTaskError
from lengthwise.core.randomness import random_stream
from lengthwise.encodings import ENCODINGS, Encoding, EncodingSettings, EncodingSize, Learned
from lengthwise.model.attention import MAX_KEYS_FOR_PLAIN_ATTENTION, WEIGHT_FUNCTIONS
from lengthwise.model.cache import KVCache
from lengthwise.model.decoder import Decoder
from lengthwise.positions import SCHEMES
from lengthwise.tasks import TASKS, MultiAddition, Parity, Task
from lengthwise.training.batch import Batch, to_batch
from lengthwise.training.loss import compute_answer_loss

# Hidden states have components of size 1.
TOLERANCE = 1e-5
# Larger than any rounding error.
CHANGE = 1e-3
# Disables the decoder options that read token indexes or tokens, so that only the IDs give the order.
IDS_ALONE = {"length_scaling": "none", "previous_token_mix": False, "segments": False}
# A task on one level and a task on two, each with a short length.
PLAIN, TWO_LEVELS = (Parity(), 2), (MultiAddition(operands=(2, 2)), 1)


def is_compatible(encoding: str, scheme: str) -> bool:
    """Return whether the encoding supports the IDs of the scheme, as both declare."""
    return ENCODINGS[encoding].real_valued or not SCHEMES[scheme].real_valued


def uses_position_ids(encoding: str) -> bool:
    """Return whether hidden states depend on the IDs in a decoder of two layers, as the encoding declares."""
    return (
        small_encoding(encoding).build(EncodingSize(d_model=32, num_heads=2, d_head=16, num_layers=2)).uses_position_ids
    )


PAIRS = list(product(ENCODINGS, SCHEMES))
over_pairs = pytest.mark.parametrize(("encoding", "scheme"), [pair for pair in PAIRS if is_compatible(*pair)])
over_encodings = pytest.mark.parametrize("encoding", ENCODINGS)
over_tasks = pytest.mark.parametrize(("task", "length"), [PLAIN, TWO_LEVELS], ids=["one level", "two levels"])


@functools.cache
def batch_of(scheme: str, task: Task, length: int) -> Batch | None:
    """Return two sequences with training IDs and the same two with evaluation IDs; None if not supported."""
    examples = task.sample(length=length, size=2, rng=random_stream(0, "examples"))
    if not supports_examples(scheme, examples):
        with pytest.raises(UnsupportedTaskError, match=r"; use the scheme "):
            small_scheme(scheme).assign(examples, random_stream(0, "positions"), training=True)
        return None
    halves = [
        to_batch(
            length, examples, small_scheme(scheme).assign(examples, random_stream(0, "positions"), training=training)
        )
        for training in (True, False)
    ]
    joined = {
        name: torch.cat([getattr(half, name) for half in halves], dim=1 if name == "position_ids" else 0)
        for name in ("tokens", "position_ids", "example_length", "prompt_length", "token_scored", "id_scored")
    }
    return Batch(length=length, **joined)


def supported_batches(scheme: str) -> list[tuple[Task, Batch]]:
    """Return the tasks on one and on two levels that the scheme supports, each with a batch."""
    batches = [(task, batch_of(scheme, task, length)) for task, length in (PLAIN, TWO_LEVELS)]
    return [(task, batch) for task, batch in batches if batch is not None]


def decoder_for(encoding: str | EncodingSettings, task: Task, batch: Batch, **settings: object) -> Decoder:
    """Return a decoder with as many levels as the IDs."""
    return small_decoder(encoding, task, num_levels=len(batch.position_ids), **settings)


def prefill_in_pieces(decoder: Decoder, batch: Batch, sizes: list[int]) -> torch.Tensor:
    """Return the hidden states of tokens that pass through the cache in pieces."""
    parts: list[torch.Tensor] = []
    cache: KVCache | None = None
    for tokens, ids in zip(batch.tokens.split(sizes, dim=1), batch.position_ids.split(sizes, dim=2), strict=True):
        hidden, cache = decoder(tokens, ids, cache)
        parts.append(hidden)
    assert cache is not None
    assert torch.equal(cache.position_ids, batch.position_ids)
    return torch.cat(parts, dim=1)


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, atol=TOLERANCE, rtol=0)


def assert_causal(decoder: Decoder, tokens: torch.Tensor, position_ids: torch.Tensor) -> None:
    """Check that tokens and IDs from some index on change hidden states there and none before."""
    before, _ = decoder(tokens, position_ids)
    for first in (tokens.shape[1] // 2, tokens.shape[1] - 1):
        changed_tokens, changed_ids = tokens.clone(), position_ids.clone()
        changed_tokens[:, first:] = (tokens[:, first:] + 1) % len(decoder.embedding)
        changed_ids[..., first:] = position_ids[..., first:].flip(-1)
        after, _ = decoder(changed_tokens, changed_ids)
        assert_same(after[:, :first], before[:, :first])
        assert (after[:, first] - before[:, first]).abs().max() > CHANGE


def assert_cache_equals_one_pass(decoder: Decoder, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare training, evaluation in one pass, evaluation of the answers, and cached decoding after the prompt."""
    prompt = int(batch.prompt_length.min())
    trained = decoder.train()(batch.tokens, batch.position_ids)[0].detach()
    decoder.eval()
    with torch.no_grad():
        whole, _ = decoder(batch.tokens, batch.position_ids)
        answers, _ = decoder(batch.tokens, batch.position_ids, query_start=prompt - 1)
        # Decoding switches from the short form of attention to the fused one.
        monkeypatch.setattr("lengthwise.model.attention.MAX_KEYS_FOR_PLAIN_ATTENTION", prompt + 2)
        cached = prefill_in_pieces(decoder, batch, [prompt, *[1] * (batch.tokens.shape[1] - prompt)])
        monkeypatch.undo()
    assert_same(whole, trained)
    assert_same(answers, trained[:, prompt - 1 :])
    assert_same(cached, trained)


def test_every_scheme_supports_one_of_the_tasks_and_one_scheme_supports_both():
    levels = [{len(batch.position_ids) for _, batch in supported_batches(scheme)} for scheme in SCHEMES]
    assert all(levels)
    assert {1, 2} in levels


@pytest.mark.covering(1)
@over_pairs
@torch.no_grad()
def test_later_tokens_and_ids_never_change_earlier_hidden_states(encoding, scheme):
    for task, batch in supported_batches(scheme):
        decoder = decoder_for(encoding, task, batch)
        assert_causal(decoder, batch.tokens, batch.position_ids)


@pytest.mark.covering(1)
@over_pairs
def test_training_evaluation_and_cached_decoding_have_the_same_hidden_states(encoding, scheme, monkeypatch):
    for task, batch in supported_batches(scheme):
        # Scalings are active in training too.
        decoder = decoder_for(small_encoding(encoding, in_training=True), task, batch)
        assert_cache_equals_one_pass(decoder, batch, monkeypatch)


@pytest.mark.parametrize(("encoding", "scheme"), [pair for pair in PAIRS if not is_compatible(*pair)])
@torch.no_grad()
def test_real_ids_raise_an_error_if_the_encoding_does_not_support_them(encoding, scheme):
    for task, batch in supported_batches(scheme):
        with pytest.raises(PositionIDError, match=rf"but the encoding {encoding} needs whole numbers; use a scheme"):
            decoder_for(encoding, task, batch)(batch.tokens, batch.position_ids)


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if is_compatible("learned", name)])
@torch.no_grad()
def test_only_ids_beyond_a_table_raise_an_error(scheme):
    for task, batch in supported_batches(scheme):
        largest = int(batch.position_ids.max())
        decoder_for(Learned(num_position_ids=largest + 1), task, batch)(batch.tokens, batch.position_ids)
        with pytest.raises(
            PositionRangeError, match=rf"ID {largest} is beyond the {largest} .* at least {largest + 1}$"
        ):
            decoder_for(Learned(num_position_ids=largest), task, batch)(batch.tokens, batch.position_ids)


@pytest.mark.covering(1)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("task", [pytest.param(task(), id=name) for name, task in TASKS.items()])
def test_cached_decoding_equals_training_for_every_task_of_a_scheme(task, scheme, monkeypatch):
    batch = batch_of(scheme, task, task.min_length)
    if batch is not None:
        decoder = decoder_for("rotary", task, batch)
        assert_cache_equals_one_pass(decoder, batch, monkeypatch)
        with torch.no_grad():
            assert_causal(decoder, batch.tokens, batch.position_ids)


@over_encodings
@over_tasks
@pytest.mark.parametrize("seq", [9, MAX_KEYS_FOR_PLAIN_ATTENTION + 9])
@torch.no_grad()
@pytest.mark.covering(1)
def test_causality_follows_token_indexes_when_ids_repeat_and_fall(encoding, task, length, seq, rng):
    num_levels = 1 if (task, length) == PLAIN else 2
    tokens = torch.from_numpy(rng.integers(0, len(task.vocabulary), size=(2, seq)))
    position_ids = torch.from_numpy(rng.integers(0, 20, size=(num_levels, 2, seq)))
    decoder = small_decoder(encoding, task, num_levels=num_levels)
    assert_causal(decoder, tokens, position_ids)


@pytest.mark.covering(1)
@over_encodings
@pytest.mark.parametrize("weights", WEIGHT_FUNCTIONS)
def test_prefill_in_pieces_and_query_chunks_equal_one_pass(weights, encoding, monkeypatch):
    for task, batch in supported_batches("predicted"):
        decoder = decoder_for(small_encoding(encoding, in_training=True), task, batch, weights=weights, top_k=3)
        seq = batch.tokens.shape[1]
        with torch.no_grad():
            whole, _ = decoder(batch.tokens, batch.position_ids)
            # The chunked form of attention, with one query per chunk.
            monkeypatch.setattr("lengthwise.model.attention.MAX_KEYS_FOR_PLAIN_ATTENTION", 0)
            monkeypatch.setattr("lengthwise.model.attention.MAX_CHUNK_SCORES", 1)
            for sizes in ([seq], [1] * seq, [seq // 2, 2, seq - seq // 2 - 2]):
                assert_same(prefill_in_pieces(decoder, batch, sizes), whole)
        assert_same(decoder.train()(batch.tokens, batch.position_ids)[0].detach(), whole)
        monkeypatch.undo()


@over_encodings
@torch.no_grad()
def test_cached_decoding_of_long_sequences_equals_one_pass(encoding):
    # With default settings; the small settings of the other tests have little effect on large IDs.
    for settings, scheme in product((ENCODINGS[encoding](), small_encoding(encoding)), ("coupled", "sequential")):
        batch = batch_of(scheme, Parity(), MAX_KEYS_FOR_PLAIN_ATTENTION // 2 + 3)
        assert batch is not None
        decoder = decoder_for(settings, Parity(), batch)
        whole, _ = decoder(batch.tokens, batch.position_ids)
        seq = batch.tokens.shape[1]
        assert_same(prefill_in_pieces(decoder, batch, [seq - 6, 4, 1, 1]), whole)


def after_shifts(decoder: Decoder, batch: Batch, *shifts: int) -> list[torch.Tensor]:
    """Return hidden states for each shift of all IDs on the first level, and half of it on the second."""
    by_level = torch.tensor([[shift, shift // 2] for shift in shifts])[:, : len(batch.position_ids), None, None]
    moved = torch.cat(list(batch.position_ids + by_level), dim=1)
    hidden, _ = decoder(batch.tokens.repeat(len(shifts), 1), moved)
    return list(hidden.chunk(len(shifts)))


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if ENCODINGS[name].shift_invariant])
@torch.no_grad()
def test_shifting_all_ids_leaves_hidden_states_unchanged(encoding):
    for scheme in (name for name in SCHEMES if is_compatible(encoding, name)):
        for task, batch in supported_batches(scheme):
            here, *there = after_shifts(decoder_for(encoding, task, batch), batch, 0, 1, 1_000, 1_000_000)
            for other in there:
                assert_same(other, here)


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if not ENCODINGS[name].shift_invariant])
@torch.no_grad()
def test_shifting_all_ids_changes_hidden_states_if_no_invariance_is_declared(encoding):
    for task, batch in supported_batches("predicted"):
        here, there = after_shifts(decoder_for(encoding, task, batch), batch, 0, 200)
        assert (here - there).abs().max() > CHANGE


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if uses_position_ids(name)])
@over_tasks
@torch.no_grad()
def test_hidden_states_depend_on_the_ids_of_every_level(encoding, task, length):
    batch = batch_of("predicted", task, length)
    assert batch is not None
    decoder = decoder_for(encoding, task, batch)
    here, _ = decoder(batch.tokens, batch.position_ids)
    for level in range(len(batch.position_ids)):
        ids = batch.position_ids.clone()
        ids[level, :, ::2] *= 2
        there, _ = decoder(batch.tokens, ids)
        assert (here - there).abs().amax(dim=(1, 2)).min() > CHANGE


SEQ = 9
EVERY = torch.arange(SEQ)
# Some of the tokens and all tokens, in another order.
SOME, MIXED = torch.tensor([7, 0, 4, 3]), torch.tensor([7, 0, 4, 2, 8, 1, 6, 3, 5])


def random_module(encoding: str) -> Encoding:
    """Return the module of an encoding with random parameters."""
    module = small_encoding(encoding).build(EncodingSize(d_model=32, num_heads=2, d_head=16))
    randomize(module)
    return module.eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class HookInputs:
    """Inputs of an encoding's hooks, for three sequences."""

    ids: torch.Tensor
    x: torch.Tensor = field(default_factory=lambda: torch.randn(3, SEQ, 32))
    query: torch.Tensor = field(default_factory=lambda: torch.randn(3, 2, SEQ, 16))
    key: torch.Tensor = field(default_factory=lambda: torch.randn(3, 2, SEQ, 16))
    scores: torch.Tensor = field(default_factory=lambda: torch.randn(3, 2, SEQ, SEQ))

    def hooks(self, module: Encoding, queries: torch.Tensor, keys: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the output of every hook for these queries and keys, 0 for invisible keys."""
        own, other = self.ids[:, queries], self.ids[:, keys]
        visible = keys <= queries[:, None]
        adjusted = module.adjust_scores(self.scores[:, :, queries][..., keys], own, other, visible)
        query, key = self.query[:, :, queries], self.key[:, :, keys]
        if module.has_token_features:
            query = torch.cat([query, module.token_features(self.x[:, queries], own, 0)], dim=-1)
            key = torch.cat([key, module.token_features(self.x[:, keys], other, 0)], dim=-1)
        return {
            "embed": module.embed(self.x[:, queries], own),
            "rotate": module.rotate(self.query[:, :, queries], own),
            "scores": module.scores(query, key, own, other),
            "adjust_scores": adjusted.masked_fill(~visible, 0.0),
            **({"bias": module.bias(own, other).expand(3, -1, -1, -1)} if module.has_bias else {}),
        }


@over_encodings
@torch.no_grad()
def test_an_encoding_depends_on_the_token_order_only_if_it_declares_it(encoding, rng):
    module, inputs = random_module(encoding), HookInputs(ids=torch.from_numpy(rng.integers(0, 50, size=(3, SEQ))))
    whole = inputs.hooks(module, EVERY, EVERY)
    changed = set()
    for queries in (SOME, MIXED):
        for hook, output in inputs.hooks(module, queries, MIXED).items():
            expected = whole[hook][:, queries] if hook == "embed" else whole[hook][:, :, queries]
            if hook not in ("embed", "rotate"):
                expected = expected[..., MIXED]
            changed |= set() if torch.allclose(output, expected, atol=TOLERANCE, rtol=0) else {hook}
    assert bool(changed) == ENCODINGS[encoding].reads_order, changed


@over_encodings
@torch.no_grad()
def test_an_adjustment_does_not_depend_on_invisible_scores(encoding, rng):
    module, inputs = random_module(encoding), HookInputs(ids=torch.from_numpy(rng.integers(0, 50, size=(3, SEQ))))
    future = EVERY[:, None] < EVERY
    for unseen in (torch.nan, torch.inf, -torch.inf, 1e30):
        other = replace(inputs, scores=inputs.scores.masked_fill(future, unseen))
        assert_same(
            other.hooks(module, EVERY, EVERY)["adjust_scores"], inputs.hooks(module, EVERY, EVERY)["adjust_scores"]
        )


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if not ENCODINGS[name].reads_order])
@over_tasks
@torch.no_grad()
def test_the_last_hidden_state_depends_on_earlier_tokens_and_ids_but_not_their_order(encoding, task, length):
    for scheme in ("sequential", "predicted"):
        batch = batch_of(scheme, task, length)
        assert batch is not None
        decoder = decoder_for(encoding, task, batch, num_layers=1, **IDS_ALONE)
        seq = batch.tokens.shape[1]
        order = torch.cat([torch.randperm(seq - 1), torch.tensor([seq - 1])])
        here, _ = decoder(batch.tokens, batch.position_ids)
        there, _ = decoder(batch.tokens[:, order], batch.position_ids[:, :, order])
        assert_same(there[:, -1], here[:, -1])


def gradients(decoder: Decoder, batch: Batch) -> dict[str, torch.Tensor]:
    """Return the gradient of the answer loss for every parameter that has one."""
    decoder.zero_grad()
    compute_answer_loss(decoder, [batch], id_weight=1.0).loss.backward()
    return {name: each.grad for name, each in decoder.named_parameters() if each.grad is not None}


def trainable(encoding: str) -> list[tuple[Decoder, Batch]]:
    """Return decoders in training mode that predict IDs, on one level and on two."""
    settings = small_encoding(encoding, in_training=True)
    decoders = [
        decoder_for(settings, task, batch, num_predicted_ids=300) for task, batch in supported_batches("predicted")
    ]
    return [(each.train(), batch) for each, (_, batch) in zip(decoders, supported_batches("predicted"), strict=True)]


# Torch warns of a slower kernel for norms once per process.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@over_encodings
def test_every_parameter_has_a_finite_gradient_in_bf16(encoding):
    for decoder, batch in trainable(encoding):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            by_name = gradients(decoder, batch)
        assert by_name.keys() == dict(decoder.named_parameters()).keys()
        assert all(gradient.isfinite().all() for gradient in by_name.values())
        assert all(gradient.any() for gradient in by_name.values())


@over_encodings
def test_gradients_are_the_same_in_the_short_and_the_chunked_form_of_attention(encoding, monkeypatch):
    for decoder, batch in trainable(encoding):
        # Within bounds, where no gradient is masked.
        for parameter in decoder.encoding.parameters():
            parameter.data = parameter.data.abs() + 0.05
        short = gradients(decoder, batch)
        monkeypatch.setattr("lengthwise.model.attention.MAX_KEYS_FOR_PLAIN_ATTENTION", 0)
        monkeypatch.setattr("lengthwise.model.attention.MAX_CHUNK_SCORES", 1)
        for name, gradient in gradients(decoder, batch).items():
            # A score near a kink of DAPE V2 can change its side by rounding, so single elements may differ slightly.
            scale = float(short[name].abs().max())
            torch.testing.assert_close(gradient, short[name], atol=1e-5 + 1e-3 * scale, rtol=1e-4)
        monkeypatch.undo()
