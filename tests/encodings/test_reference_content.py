"""Parity of encodings that read the content of tokens, and of loops, with independent references."""

import math

import numpy as np
import pytest
import torch
from tests.support.cases import randomize, small_decoder

from lengthwise.encodings import ENCODINGS, CoPE, Encoding, EncodingSize, NoPE, PoPE, RePo, Rotary, SelectiveRotary
from lengthwise.model.attention_scores import NO_HOOKS
from lengthwise.model.block import TransformerBlock
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.sequence_groups import SequenceGroup
from lengthwise.tasks import Parity

HEADS, D_HEAD, SEQ = 2, 6, 7
SIZE = EncodingSize(d_model=12, num_heads=HEADS, d_head=D_HEAD, num_layers=3)
over_queries = pytest.mark.parametrize("num_queries", [1, 3, SEQ])


def build(settings) -> tuple[Encoding, dict[str, np.ndarray]]:
    """Return the module with random parameters, and its parameters by name."""
    module = settings.build(SIZE)
    randomize(module)
    return module, {name: weight.double().numpy() for name, weight in module.state_dict().items()}


def sample(rng, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def scores_of(module: Encoding, query, key, ids, token_features=None) -> np.ndarray:
    """Return the scores of queries that belong to the last keys."""
    num_queries = query.shape[2]
    query, key, ids = (torch.from_numpy(part) for part in (query, key, ids))
    if token_features is not None:
        query = torch.cat([query, token_features[:, :, SEQ - num_queries :]], dim=-1)
        key = torch.cat([key, token_features], dim=-1)
    return module.scores(query, key, ids[:, SEQ - num_queries :], ids).numpy()


def turned(vector: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Return a vector with component pairs rotated, one pair after another."""
    result = np.zeros(len(vector))
    for pair, angle in enumerate(angles):
        first, second = float(vector[2 * pair]), float(vector[2 * pair + 1])
        result[2 * pair] = first * math.cos(angle) - second * math.sin(angle)
        result[2 * pair + 1] = first * math.sin(angle) + second * math.cos(angle)
    return result


def frequencies(settings) -> np.ndarray:
    return np.array([settings.fastest * settings.base ** (-2 * pair / D_HEAD) for pair in range(D_HEAD // 2)])


@over_queries
@pytest.mark.parametrize("kind", ["whole", "real"])
@torch.no_grad()
def test_pope_sums_products_of_magnitudes_with_the_cosine_of_the_id_distance_and_a_phase(kind, num_queries, rng):
    settings = PoPE(base=100.0, fastest=3.0)
    module, weights = build(settings)
    query, key = sample(rng, 2, HEADS, num_queries, D_HEAD), sample(rng, 2, HEADS, SEQ, D_HEAD)
    ids = rng.integers(0, 50, size=(2, SEQ)) if kind == "whole" else 50 * rng.random((2, SEQ))
    actual = scores_of(module, query, key, ids)
    phases = weights["phase"].clip(-2 * math.pi, 0)
    for b, h, i, j in np.ndindex(2, HEADS, num_queries, SEQ):
        distance = float(ids[b, j]) - float(ids[b, SEQ - num_queries + i])
        expected = 0.0
        for c in range(D_HEAD):
            angle = distance * 3.0 * 100.0 ** (-c / D_HEAD) + phases[h, 0, c]
            magnitudes = math.log1p(math.exp(query[b, h, i, c])) * math.log1p(math.exp(key[b, h, j, c]))
            expected += magnitudes * math.cos(angle)
        assert actual[b, h, i, j] == pytest.approx(expected, abs=1e-4)


@over_queries
@torch.no_grad()
def test_repo_rotates_by_ids_in_the_first_blocks_and_by_predicted_positions_afterwards(num_queries, rng):
    settings = RePo(width=5, base=100.0, fastest=3.0)
    module, weights = build(settings)
    assert len(module.predictors) == 2
    hidden, ids = sample(rng, 2, SEQ, 12), rng.integers(0, 50, size=(2, SEQ))
    query, key = sample(rng, 2, HEADS, num_queries, D_HEAD), sample(rng, 2, HEADS, SEQ, D_HEAD)
    for layer in range(3):
        token_features = module.token_features(torch.from_numpy(hidden), torch.from_numpy(ids), layer)
        actual = scores_of(module, query, key, ids, token_features)
        positions = np.zeros((2, HEADS, SEQ))
        for b, h, t in np.ndindex(2, HEADS, SEQ):
            if layer == 0:
                positions[b, h, t] = ids[b, t]
                continue
            gate, content, output = (
                weights[f"predictors.{layer - 1}.{name}.weight"] for name in ("gate", "content", "positions")
            )
            gated = gate @ hidden[b, t]
            positions[b, h, t] = output[h] @ (gated / (1 + np.exp(-gated)) * (content @ hidden[b, t]))
        for b, h, i, j in np.ndindex(2, HEADS, num_queries, SEQ):
            own = positions[b, h, SEQ - num_queries + i] * frequencies(settings)
            expected = turned(query[b, h, i], own) @ turned(key[b, h, j], positions[b, h, j] * frequencies(settings))
            assert actual[b, h, i, j] == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def test_repo_with_ids_in_its_only_rotary_blocks_equals_rotary(rng):
    tokens, ids = torch.from_numpy(rng.integers(0, 4, size=(2, 9))), torch.from_numpy(rng.integers(0, 90, size=(2, 9)))
    # With a share of 0.9, both of two blocks are rotary.
    mine, plain = (small_decoder(encoding, Parity()) for encoding in (RePo(rotary_share=0.9), Rotary()))
    mine.load_state_dict(plain.state_dict())
    torch.testing.assert_close(mine(tokens, ids)[0], plain(tokens, ids)[0], atol=1e-5, rtol=0)


@over_queries
@torch.no_grad()
def test_selective_rope_rotates_by_the_sum_of_convolved_projections_of_earlier_tokens(num_queries, rng):
    settings = SelectiveRotary(rank=3, kernel_size=3, base=100.0, fastest=3.0)
    module, weights = build(settings)
    hidden, ids = sample(rng, 2, SEQ, 12), rng.integers(0, 50, size=(2, SEQ))
    query, key = sample(rng, 2, HEADS, num_queries, D_HEAD), sample(rng, 2, HEADS, SEQ, D_HEAD)
    num_pairs = D_HEAD // 2
    for layer in range(3):
        token_features = module.token_features(torch.from_numpy(hidden), torch.from_numpy(ids), layer)
        actual = scores_of(module, query, key, ids, token_features)
        down, up = (weights[f"projections.{layer}.{part}.weight"] for part in (0, 1))
        angles = np.zeros((2, HEADS, SEQ, num_pairs))
        for b, h, pair in np.ndindex(2, HEADS, num_pairs):
            channel, total = h * num_pairs + pair, 0.0
            projected = [float(up[channel] @ (down @ hidden[b, t])) for t in range(SEQ)]
            for t in range(SEQ):
                # The last weight of the kernel belongs to the token itself.
                taps = [weights["kernel"][channel, 0, 2 - lag] * projected[t - lag] for lag in range(min(3, t + 1))]
                total += sum(taps)
                angles[b, h, t, pair] = total * frequencies(settings)[pair]
        for b, h, i, j in np.ndindex(2, HEADS, num_queries, SEQ):
            own = turned(query[b, h, i], angles[b, h, SEQ - num_queries + i])
            assert actual[b, h, i, j] == pytest.approx(own @ turned(key[b, h, j], angles[b, h, j]), abs=1e-4)


@over_queries
@torch.no_grad()
def test_cope_interpolates_vectors_at_the_sum_of_gates_from_the_key_to_the_query(num_queries, rng):
    # Sums of up to 7 gates exceed the last position.
    module, weights = build(CoPE(num_positions=4))
    query, key = sample(rng, 2, HEADS, num_queries, D_HEAD), sample(rng, 2, HEADS, SEQ, D_HEAD)
    actual = scores_of(module, query, key, rng.integers(0, 50, size=(2, SEQ)))
    largest = 0.0
    for b, h, i in np.ndindex(2, HEADS, num_queries):
        last = SEQ - num_queries + i
        products = [float(query[b, h, i] @ key[b, h, j]) for j in range(SEQ)]
        gates = [1 / (1 + math.exp(-product / math.sqrt(D_HEAD))) for product in products]
        for j in range(last + 1):
            total = sum(gates[j : last + 1])
            largest, position = max(largest, total), min(total, 3.0)
            low = min(math.floor(position), 2)
            vector = weights["vectors"][:, low] * (low + 1 - position) + weights["vectors"][:, low + 1] * (
                position - low
            )
            assert actual[b, h, i, j] == pytest.approx(products[j] + query[b, h, i] @ vector, abs=1e-4)
    assert largest > 3 or num_queries == 1


def test_new_positions_have_gradients_through_rotations_and_gates(rng):
    for settings in (RePo(), SelectiveRotary(), CoPE(), PoPE()):
        decoder = small_decoder(settings, Parity()).train()
        tokens = torch.from_numpy(rng.integers(0, 4, size=(2, 9)))
        hidden, _ = decoder(tokens, torch.arange(9).expand(2, -1))
        decoder.token_logits(hidden).square().sum().backward()
        assert all(parameter.grad.abs().max() > 1e-6 for parameter in decoder.encoding.parameters())


def looped(loops: int, encoding: str = "nope", **settings: object) -> Decoder:
    return small_decoder(ENCODINGS[encoding](), Parity(), loops=loops, **settings)


@pytest.mark.parametrize("num_layers", [1, 2])
@torch.no_grad()
def test_each_loop_receives_the_output_of_the_loop_before_plus_the_embeddings(num_layers, rng):
    tokens = torch.from_numpy(rng.integers(0, 4, size=(2, 9)))
    ids = torch.arange(9).expand(1, 2, -1)
    decoder = looped(3, num_layers=num_layers)
    embedded = decoder.embed_inputs(tokens, ids, None)[0].flatten(0, 1)
    group, x = SequenceGroup(position_ids=ids, key_ids=ids), torch.zeros_like(embedded)
    for _ in range(3):
        x = x + embedded
        for block in decoder.blocks:
            assert isinstance(block, TransformerBlock)
            x, _, _ = block(x, [group], decoder.encoding, None, NO_HOOKS)
    torch.testing.assert_close(decoder(tokens, ids)[0], decoder.norm(x).view(2, 9, -1), atol=1e-5, rtol=0)


@torch.no_grad()
def test_loops_share_their_weights_and_change_predictions(rng):
    tokens, ids = torch.from_numpy(rng.integers(0, 4, size=(2, 9))), torch.arange(9).expand(2, -1)
    once, thrice = looped(1), looped(3)
    assert once.state_dict().keys() == thrice.state_dict().keys()
    assert (once(tokens, ids)[0] - thrice(tokens, ids)[0]).abs().max() > 1e-2
    assert DecoderSettings(num_layers=2, loops=3).num_unrolled_blocks == 6


@pytest.mark.parametrize("encoding", ["rotary", "repo", "selective_rotary", "alibi"])
@torch.no_grad()
def test_cached_passes_and_the_last_queries_of_a_looped_decoder_equal_one_pass(encoding, rng):
    decoder = looped(3, encoding)
    tokens, ids = torch.from_numpy(rng.integers(0, 4, size=(2, 9))), torch.arange(9).expand(2, -1)
    whole, _ = decoder(tokens, ids)
    first, cache = decoder(tokens[:, :5], ids[:, :5])
    assert len(cache.keys) == 6
    last, _ = decoder(tokens[:, 5:], ids[:, 5:], cache)
    torch.testing.assert_close(torch.cat([first, last], dim=1), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(decoder(tokens, ids, query_start=6)[0], whole[:, 6:], atol=1e-5, rtol=0)


def test_a_looped_decoder_does_not_use_near_attention():
    settings = DecoderSettings(d_model=16, loops=2)
    assert not Decoder(settings, Rotary(), vocabulary_size=4).allows_near_attention
    assert Decoder(DecoderSettings(d_model=16), Rotary(), vocabulary_size=4).allows_near_attention
    assert not Decoder(DecoderSettings(d_model=16), RePo(), vocabulary_size=4).allows_near_attention
    assert not Decoder(DecoderSettings(d_model=16), NoPE(), vocabulary_size=4).encoding.has_token_features
