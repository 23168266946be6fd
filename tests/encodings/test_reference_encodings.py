"""Parity of encodings and the decoder with independent NumPy references, one number at a time."""

import math

import numpy as np
import pytest
import torch
from tests.support.cases import randomize

from lengthwise.encodings import ENCODINGS, ALiBi, EncodingSize, Learned, NoPE, Rotary
from lengthwise.encodings.alibi import alibi_slopes
from lengthwise.encodings.multi_level import MultiLevelEncoding
from lengthwise.model.attention import attend, mix_in_uniform_attention
from lengthwise.model.block import RMSNorm
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings

SIZE = EncodingSize(d_model=12, num_heads=2, d_head=6)


def reference_rotation(
    x: np.ndarray, position_ids: np.ndarray, base: float = 10_000.0, fastest: float = 1.0
) -> np.ndarray:
    """Return RoFormer's equation 34, which rotates components 2i and 2i + 1 together."""
    actual = np.zeros(x.shape)
    batch, _, seq, d_head = x.shape
    for b in range(batch):
        for t in range(seq):
            for i in range(d_head // 2):
                angle = float(position_ids[b, t]) * fastest * base ** (-2 * i / d_head)
                even, odd = x[b, :, t, 2 * i].astype(float), x[b, :, t, 2 * i + 1].astype(float)
                actual[b, :, t, 2 * i] = even * math.cos(angle) - odd * math.sin(angle)
                actual[b, :, t, 2 * i + 1] = odd * math.cos(angle) + even * math.sin(angle)
    return actual


def paper_slopes(n: int) -> list[float]:
    """Return the slopes by the recursion in the ALiBi paper's code."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return paper_slopes(closest) + paper_slopes(2 * closest)[0::2][: n - closest]


def distance_penalty(num_heads: int, query_ids: np.ndarray, key_ids: np.ndarray) -> np.ndarray:
    """Return ALiBi's bias for one sequence."""
    penalty = np.zeros((num_heads, len(query_ids), len(key_ids)))
    for head, slope in enumerate(paper_slopes(num_heads)):
        for i, own in enumerate(query_ids):
            for j, other in enumerate(key_ids):
                penalty[head, i, j] = -slope * abs(int(own) - int(other))
    return penalty


def reference_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return causal softmax attention of one sequence; the queries belong to the last keys."""
    heads, queries, d_head = query.shape
    keys = key.shape[1]
    out = np.zeros(query.shape)
    for head in range(heads):
        for i in range(queries):
            visible = range(keys - queries + i + 1)
            scores = [query[head, i] @ key[head, j] / math.sqrt(d_head) + bias[head, i, j] for j in visible]
            weights = [math.exp(score - max(scores)) for score in scores]
            out[head, i] = sum(w * value[head, j] for w, j in zip(weights, visible, strict=True)) / sum(weights)
    return out


@pytest.mark.parametrize(("base", "fastest"), [(10_000.0, 1.0), (100.0, 3.0)])
def test_rotary_rotates_adjacent_components_as_in_roformer(base, fastest, rng):
    x = rng.standard_normal((2, 3, 7, 6)).astype(np.float32)
    position_ids = rng.integers(0, 20_000, size=(2, 7))
    module = Rotary(base=base, fastest=fastest).build(SIZE)
    actual = module.rotate(torch.from_numpy(x), torch.from_numpy(position_ids)).numpy()
    np.testing.assert_allclose(actual, reference_rotation(x, position_ids, base, fastest), atol=2e-6)


def test_rotary_scores_depend_only_on_the_distance(rng):
    module = Rotary().build(SIZE)
    query, key = torch.randn(2, 1, 1, 1, 6)
    scores = [
        (module.rotate(query, torch.tensor([[place + 5]])) * module.rotate(key, torch.tensor([[place]]))).sum()
        for place in (0, 17, 20_000)
    ]
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_heads", range(1, 17))
def test_alibi_slopes_equal_those_of_the_papers_code(num_heads):
    np.testing.assert_allclose(alibi_slopes(num_heads).numpy(), paper_slopes(num_heads), rtol=1e-6)


@pytest.mark.parametrize("num_heads", [1, 3, 4])
def test_alibi_bias_is_the_slope_times_the_distance_in_both_directions(num_heads, rng):
    query_ids, key_ids = rng.integers(0, 50, size=(2, 4)), rng.integers(0, 50, size=(2, 7))
    module = ALiBi().build(EncodingSize(d_model=12, num_heads=num_heads, d_head=12 // num_heads))
    bias = module.bias(torch.from_numpy(query_ids), torch.from_numpy(key_ids)).numpy()
    for sequence in range(2):
        np.testing.assert_allclose(
            bias[sequence], distance_penalty(num_heads, query_ids[sequence], key_ids[sequence]), rtol=1e-6
        )


def test_learned_positions_are_rows_of_one_table(rng):
    module = Learned(num_position_ids=9).build(SIZE)
    table = module.vectors.detach().numpy()
    x, position_ids = rng.standard_normal((2, 5, 12)).astype(np.float32), rng.integers(0, 9, size=(2, 5))
    with_positions = module.embed(torch.from_numpy(x), torch.from_numpy(position_ids)).detach().numpy()
    for sequence in range(2):
        for t in range(5):
            np.testing.assert_allclose(
                with_positions[sequence, t], x[sequence, t] + table[position_ids[sequence, t]], rtol=1e-6
            )


@torch.no_grad()
def test_each_of_two_levels_rotates_half_of_a_head_and_biases_are_added(rng):
    position_ids = rng.integers(0, 30, size=(2, 1, 5))
    x = rng.standard_normal((1, 2, 5, 8)).astype(np.float32)
    size = EncodingSize(d_model=16, num_heads=2, d_head=8)
    actual = MultiLevelEncoding(Rotary(), size, 2).rotate(torch.from_numpy(x), torch.from_numpy(position_ids)).numpy()
    halves = [reference_rotation(x[..., :4], position_ids[0]), reference_rotation(x[..., 4:], position_ids[1])]
    np.testing.assert_allclose(actual, np.concatenate(halves, axis=-1), atol=2e-6)
    both = torch.from_numpy(position_ids)
    bias = MultiLevelEncoding(ALiBi(), size, 2).bias(both, both).numpy()
    penalty = sum(distance_penalty(2, ids[0], ids[0]) for ids in position_ids)
    np.testing.assert_allclose(bias[0], penalty, rtol=1e-6)


@torch.no_grad()
def test_two_levels_add_the_vectors_of_both_ids(rng):
    position_ids, x = rng.integers(0, 9, size=(2, 1, 5)), np.zeros((1, 5, 12), np.float32)
    module = MultiLevelEncoding(Learned(num_position_ids=9), SIZE, 2)
    tables = [level.vectors.numpy() for level in module.levels]
    summed = tables[0][position_ids[0]] + tables[1][position_ids[1]]
    embedded = module.embed(torch.from_numpy(x), torch.from_numpy(position_ids)).numpy()
    np.testing.assert_allclose(embedded, summed, atol=1e-7)


@pytest.mark.parametrize("short", [0, 64])
@pytest.mark.parametrize("chunk_elements", [1, 2 * 3 * 7 * 2, 1 << 26])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("queries", [1, 3, 5, 7])
@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.covering(1)
def test_attention_is_a_softmax_over_keys_up_to_the_querys_token(
    queries, biased, chunk_elements, short, rng, *, graded, monkeypatch
):
    monkeypatch.setattr("lengthwise.model.attention.MAX_KEYS_FOR_PLAIN_ATTENTION", short)
    monkeypatch.setattr("lengthwise.model.attention.MAX_CHUNK_SCORES", chunk_elements)
    query, key, value = (rng.standard_normal((2, 3, seq, 4)).astype(np.float32) for seq in (queries, 7, 7))
    bias = rng.standard_normal((2, 3, queries, 7)).astype(np.float32) * biased

    def bias_of(start: int, stop: int, keys: int) -> torch.Tensor:
        return torch.from_numpy(bias[:, :, start:stop, :keys])

    inputs = [torch.from_numpy(part) for part in (query, key, value)]
    with torch.set_grad_enabled(graded):
        out = attend(*inputs, bias_of if biased else None).numpy()
    for sequence in range(2):
        np.testing.assert_allclose(
            out[sequence],
            reference_attention(query[sequence], key[sequence], value[sequence], bias[sequence]),
            atol=2e-6,
        )


@pytest.mark.parametrize("queries", [1, 3, 7])
def test_dilution_spreads_a_share_of_each_head_evenly_over_visible_keys(queries, rng):
    query, key, value = (rng.standard_normal((4, 3, seq, 4)).astype(np.float32) for seq in (queries, 7, 7))
    plain = np.stack(
        [reference_attention(*parts, np.zeros((3, queries, 7))) for parts in zip(query, key, value, strict=True)]
    )
    out = mix_in_uniform_attention(torch.from_numpy(plain.astype(np.float32)), torch.from_numpy(value), 0.6).numpy()
    shares = np.empty((4, 3))
    for sequence, head in np.ndindex(4, 3):
        before, means = plain[sequence, head], np.cumsum(value[sequence, head], axis=0)[-queries:]
        means /= np.arange(8 - queries, 8)[:, None]
        shares[sequence, head] = (out[sequence, head, -1] - before[-1])[0] / (means[-1] - before[-1])[0]
        expected = (1 - shares[sequence, head]) * before + shares[sequence, head] * means
        np.testing.assert_allclose(out[sequence, head], expected, atol=1e-5)
    # One share per sequence and head, the same for all queries, spaced from 0 to 0.6.
    np.testing.assert_allclose(np.sort(shares.round(4).flatten()), np.arange(12) * 0.05, atol=1e-3)


@torch.no_grad()
def test_attention_is_diluted_only_in_training(rng):
    tokens, ids = torch.from_numpy(rng.integers(0, 4, size=(3, 9))), torch.arange(9).expand(3, 9)
    decoders = [
        Decoder(DecoderSettings(num_layers=2, d_model=16, num_heads=2, dilution=share), NoPE(), vocabulary_size=4)
        for share in (0.0, 0.5)
    ]
    for parameter in decoders[0].parameters():
        parameter.normal_(std=0.3)
    decoders[1].load_state_dict(decoders[0].state_dict())
    for training in (True, False):
        plain, mixed = (decoder.train(training)(tokens, ids)[0] for decoder in decoders)
        assert torch.equal(plain, mixed) != training


def test_bias_chunks_cover_each_query_once(monkeypatch):
    monkeypatch.setattr("lengthwise.model.attention.MAX_KEYS_FOR_PLAIN_ATTENTION", 0)
    monkeypatch.setattr("lengthwise.model.attention.MAX_CHUNK_SCORES", 2 * 3 * 7 * 2)
    chunks = []

    def bias_of(start: int, stop: int, keys: int) -> torch.Tensor:
        chunks.append((start, stop, keys))
        return torch.zeros(1, 3, stop - start, keys)

    attend(torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4), bias_of)
    assert chunks == [(0, 2, 4), (2, 4, 6), (4, 5, 7)]


def normalized(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return RMSNorm with torch's epsilon for float32."""
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.finfo(np.float32).eps) * weight


def gelu(x: np.ndarray) -> np.ndarray:
    """Return the exact GELU, x times the normal distribution function."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


class Reference:
    """NumPy reference of a decoder with one layer, for one sequence, from its parameters."""

    def __init__(self, decoder: Decoder, encoding: str) -> None:
        self.weights = {name: weight.double().numpy() for name, weight in decoder.state_dict().items()}
        self.settings = decoder.settings
        self.separators = decoder.separators
        self.encoding = encoding

    def hidden(self, tokens: np.ndarray, position_ids: np.ndarray) -> np.ndarray:
        """Return the final hidden states."""
        weights = self.weights
        x = self.embedded(tokens, position_ids)
        x = x + self.attention(normalized(x, weights["blocks.0.attention_norm.weight"]), position_ids)
        inner = normalized(x, weights["blocks.0.mlp_norm.weight"])
        wide = gelu(inner @ weights["blocks.0.widen.weight"].T + weights["blocks.0.widen.bias"])
        x = x + wide @ weights["blocks.0.narrow.weight"].T + weights["blocks.0.narrow.bias"]
        return normalized(x, weights["norm.weight"])

    def embedded(self, tokens: np.ndarray, position_ids: np.ndarray) -> np.ndarray:
        """Return the sum of token, previous token, segment and, for learned positions, ID vectors."""
        weights, embeddings = self.weights, []
        num_separators = 0
        for t, token in enumerate(tokens):
            x = weights["embedding"][token].copy()
            if self.settings.previous_token_mix and t > 0:
                x += weights["previous_share"] * weights["embedding"][tokens[t - 1]]
            if self.settings.segments:
                x += weights["segment"][num_separators]
            num_separators = min(num_separators + (int(token) in self.separators), len(self.separators))
            if self.encoding == "learned":
                x += weights["encoding.levels.0.vectors"][position_ids[t]]
            embeddings.append(x)
        return np.stack(embeddings)

    def attention(self, x: np.ndarray, position_ids: np.ndarray) -> np.ndarray:
        """Return the heads, with normalized queries and keys, temperature and log length scaling."""
        weights, heads = self.weights, self.settings.num_heads
        seq, d_model = x.shape
        projected = x @ weights["blocks.0.project.weight"].T
        query, key, value = projected.reshape(seq, 3, heads, d_model // heads).transpose(1, 2, 0, 3)
        query = normalized(query, weights["blocks.0.query_norm.weight"])
        key = normalized(key, weights["blocks.0.key_norm.weight"])
        if self.encoding == "rotary":
            query, key = (reference_rotation(part[None], position_ids[None])[0] for part in (query, key))
        query = query * np.exp(weights["blocks.0.log_temperature"])
        if self.settings.length_scaling == "log":
            query = query * np.array([math.log(visible + 1) for visible in range(1, seq + 1)])[None, :, None]
        bias = np.zeros((heads, seq, seq))
        if self.encoding == "alibi":
            bias = distance_penalty(heads, position_ids, position_ids)
        out = reference_attention(query, key, value, bias)
        return out.transpose(1, 0, 2).reshape(seq, d_model) @ weights["blocks.0.mix_heads.weight"].T


# One encoding per hook; other test files check the formulas of the others.
@pytest.mark.parametrize("encoding", ["nope", "learned", "rotary", "alibi"])
@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_a_decoder_of_one_layer_equals_its_formulas(tied, options, encoding, rng):
    settings = DecoderSettings(
        d_model=16,
        length_scaling="log" if options else "none",
        previous_token_mix=options,
        segments=options,
        tied_output=tied,
    )
    decoder = Decoder(settings, ENCODINGS[encoding](), vocabulary_size=6, separators=(4, 5))
    randomize(decoder)
    tokens, position_ids = rng.integers(0, 6, size=(2, 11)), rng.integers(0, 20, size=(2, 11))
    hidden, _ = decoder(torch.from_numpy(tokens), torch.from_numpy(position_ids)[None])
    reference = Reference(decoder, encoding)
    output = reference.weights["embedding" if tied else "output.weight"]
    for sequence in range(2):
        expected = reference.hidden(tokens[sequence], position_ids[sequence])
        np.testing.assert_allclose(hidden[sequence].numpy(), expected, atol=2e-5)
        np.testing.assert_allclose(decoder.token_logits(hidden)[sequence].numpy(), expected @ output.T, atol=1e-4)


@torch.no_grad()
def test_a_new_decoder_only_normalizes_its_embeddings():
    decoder = Decoder(DecoderSettings(num_layers=2, d_model=16), ENCODINGS["rotary"](), vocabulary_size=6)
    tokens = torch.arange(6)[None]
    hidden, _ = decoder(tokens, tokens[None])
    torch.testing.assert_close(hidden, torch.nn.functional.rms_norm(decoder.embedding[None], (16,)))


@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 7, 8)])
def test_rms_norm_and_its_gradients_equal_those_of_torch(shape, rng):
    x, upstream = (torch.from_numpy(rng.normal(size=shape)).float() for _ in range(2))
    ours, theirs = RMSNorm(shape[-1]), torch.nn.RMSNorm(shape[-1])
    weight = torch.from_numpy(rng.normal(size=shape[-1])).float()
    results = []
    for module in (ours, theirs):
        with torch.no_grad():
            module.weight.copy_(weight)
        own = x.clone().requires_grad_()
        module(own).backward(upstream)
        results.append((module(own).detach(), own.grad, module.weight.grad))
    for mine, reference in zip(*results, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-5, rtol=1e-5)
