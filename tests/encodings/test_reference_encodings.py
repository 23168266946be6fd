"""Published formulas against references written apart from the code: NumPy, one number at a time."""

import math

import numpy as np
import pytest
import torch
from tests.support.cases import randomize

from lengthwise.encodings import ENCODINGS, ALiBi, EncodingSize, Learned, NoPE, Rotary
from lengthwise.encodings.alibi import alibi_slopes
from lengthwise.encodings.levels import LevelEncoding
from lengthwise.model.attention import attend, dilute_attention
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.rms_norm import RMSNorm

SIZE = EncodingSize(d_model=12, num_heads=2, d_head=6)


def rotated(x: np.ndarray, position_ids: np.ndarray, base: float = 10_000.0, fastest: float = 1.0) -> np.ndarray:
    """RoFormer, equation 34: components 2i and 2i+1 turn together."""
    turned = np.zeros(x.shape)
    batch, _, seq, d_head = x.shape
    for b in range(batch):
        for t in range(seq):
            for i in range(d_head // 2):
                angle = float(position_ids[b, t]) * fastest * base ** (-2 * i / d_head)
                even, odd = x[b, :, t, 2 * i].astype(float), x[b, :, t, 2 * i + 1].astype(float)
                turned[b, :, t, 2 * i] = even * math.cos(angle) - odd * math.sin(angle)
                turned[b, :, t, 2 * i + 1] = odd * math.cos(angle) + even * math.sin(angle)
    return turned


def paper_slopes(n: int) -> list[float]:
    """The recursion of the ALiBi paper's own code."""
    if math.log2(n).is_integer():
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]
    closest = 2 ** math.floor(math.log2(n))
    return paper_slopes(closest) + paper_slopes(2 * closest)[0::2][: n - closest]


def distance_penalty(num_heads: int, query_ids: np.ndarray, key_ids: np.ndarray) -> np.ndarray:
    """ALiBi's bias for one sequence."""
    penalty = np.zeros((num_heads, len(query_ids), len(key_ids)))
    for head, slope in enumerate(paper_slopes(num_heads)):
        for i, own in enumerate(query_ids):
            for j, other in enumerate(key_ids):
                penalty[head, i, j] = -slope * abs(int(own) - int(other))
    return penalty


def attended(query: np.ndarray, key: np.ndarray, value: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Softmax attention of one sequence, the last queries on all keys up to their own token index."""
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
def test_rotary_turns_neighbouring_components_as_roformer_says(base, fastest, rng):
    x = rng.standard_normal((2, 3, 7, 6)).astype(np.float32)
    position_ids = rng.integers(0, 20_000, size=(2, 7))
    module = Rotary(base=base, fastest=fastest).build(SIZE)
    turned = module.rotate(torch.from_numpy(x), torch.from_numpy(position_ids)).numpy()
    np.testing.assert_allclose(turned, rotated(x, position_ids, base, fastest), atol=2e-6)


def test_rotary_scores_depend_on_the_distance_alone(rng):
    module = Rotary().build(SIZE)
    query, key = torch.randn(2, 1, 1, 1, 6)
    scores = [
        (module.rotate(query, torch.tensor([[place + 5]])) * module.rotate(key, torch.tensor([[place]]))).sum()
        for place in (0, 17, 20_000)
    ]
    torch.testing.assert_close(torch.stack(scores), scores[0].expand(3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_heads", range(1, 17))
def test_alibi_slopes_are_those_of_the_papers_code(num_heads):
    np.testing.assert_allclose(alibi_slopes(num_heads).numpy(), paper_slopes(num_heads), rtol=1e-6)


@pytest.mark.parametrize("num_heads", [1, 3, 4])
def test_alibi_bias_is_the_slope_times_the_distance_in_both_directions(num_heads, rng):
    query_ids, key_ids = rng.integers(0, 50, size=(2, 4)), rng.integers(0, 50, size=(2, 7))
    module = ALiBi().build(EncodingSize(d_model=12, num_heads=num_heads, d_head=12 // num_heads))
    bias = module.bias(torch.from_numpy(query_ids), torch.from_numpy(key_ids)).numpy()
    for row in range(2):
        np.testing.assert_allclose(bias[row], distance_penalty(num_heads, query_ids[row], key_ids[row]), rtol=1e-6)


def test_learned_positions_are_rows_of_one_table(rng):
    module = Learned(num_position_ids=9).build(SIZE)
    table = module.vectors.detach().numpy()
    x, position_ids = rng.standard_normal((2, 5, 12)).astype(np.float32), rng.integers(0, 9, size=(2, 5))
    with_positions = module.embed(torch.from_numpy(x), torch.from_numpy(position_ids)).detach().numpy()
    for row in range(2):
        for t in range(5):
            np.testing.assert_allclose(with_positions[row, t], x[row, t] + table[position_ids[row, t]], rtol=1e-6)


@torch.no_grad()
def test_two_levels_rotate_one_half_of_each_head_each_and_add_their_biases(rng):
    position_ids = rng.integers(0, 30, size=(2, 1, 5))
    x = rng.standard_normal((1, 2, 5, 8)).astype(np.float32)
    size = EncodingSize(d_model=16, num_heads=2, d_head=8)
    turned = LevelEncoding(Rotary(), size, 2).rotate(torch.from_numpy(x), torch.from_numpy(position_ids)).numpy()
    halves = [rotated(x[..., :4], position_ids[0]), rotated(x[..., 4:], position_ids[1])]
    np.testing.assert_allclose(turned, np.concatenate(halves, axis=-1), atol=2e-6)
    both = torch.from_numpy(position_ids)
    bias = LevelEncoding(ALiBi(), size, 2).bias(both, both).numpy()
    penalty = sum(distance_penalty(2, ids[0], ids[0]) for ids in position_ids)
    np.testing.assert_allclose(bias[0], penalty, rtol=1e-6)


@torch.no_grad()
def test_two_levels_add_the_vectors_of_both_ids(rng):
    position_ids, x = rng.integers(0, 9, size=(2, 1, 5)), np.zeros((1, 5, 12), np.float32)
    module = LevelEncoding(Learned(num_position_ids=9), SIZE, 2)
    tables = [level.vectors.numpy() for level in module.levels]
    summed = tables[0][position_ids[0]] + tables[1][position_ids[1]]
    embedded = module.embed(torch.from_numpy(x), torch.from_numpy(position_ids)).numpy()
    np.testing.assert_allclose(embedded, summed, atol=1e-7)


@pytest.mark.parametrize("short", [0, 64])
@pytest.mark.parametrize("chunk_elements", [1, 2 * 3 * 7 * 2, 1 << 26])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("queries", [1, 3, 5, 7])
@pytest.mark.parametrize("graded", [False, True])
def test_attention_is_a_softmax_over_the_keys_up_to_the_querys_own(
    queries, biased, chunk_elements, short, rng, *, graded, monkeypatch
):
    monkeypatch.setattr("lengthwise.model.attention.MAX_SHORT_KEYS", short)
    monkeypatch.setattr("lengthwise.model.attention.CHUNK_ELEMENTS", chunk_elements)
    query, key, value = (rng.standard_normal((2, 3, seq, 4)).astype(np.float32) for seq in (queries, 7, 7))
    bias = rng.standard_normal((2, 3, queries, 7)).astype(np.float32) * biased

    def bias_of(start: int, stop: int, keys: int) -> torch.Tensor:
        return torch.from_numpy(bias[:, :, start:stop, :keys])

    given = [torch.from_numpy(part) for part in (query, key, value)]
    with torch.set_grad_enabled(graded):
        out = attend(*given, bias_of if biased else None).numpy()
    for row in range(2):
        np.testing.assert_allclose(out[row], attended(query[row], key[row], value[row], bias[row]), atol=2e-6)


@pytest.mark.parametrize("queries", [1, 3, 7])
def test_diluted_attention_gives_a_share_of_each_head_to_all_visible_keys_alike(queries, rng):
    query, key, value = (rng.standard_normal((4, 3, seq, 4)).astype(np.float32) for seq in (queries, 7, 7))
    plain = np.stack([attended(*parts, np.zeros((3, queries, 7))) for parts in zip(query, key, value, strict=True)])
    out = dilute_attention(torch.from_numpy(plain.astype(np.float32)), torch.from_numpy(value), 0.6).numpy()
    shares = np.empty((4, 3))
    for row, head in np.ndindex(4, 3):
        before, means = plain[row, head], np.cumsum(value[row, head], axis=0)[-queries:]
        means /= np.arange(8 - queries, 8)[:, None]
        shares[row, head] = (out[row, head, -1] - before[-1])[0] / (means[-1] - before[-1])[0]
        expected = (1 - shares[row, head]) * before + shares[row, head] * means
        np.testing.assert_allclose(out[row, head], expected, atol=1e-5)
    # One for each sequence and head, the same for all queries, spread from 0 to 0.6.
    np.testing.assert_allclose(np.sort(shares.round(4).flatten()), np.arange(12) * 0.05, atol=1e-3)


@torch.no_grad()
def test_attention_is_diluted_in_training_alone(rng):
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


def test_a_bias_is_asked_for_in_chunks_that_cover_each_query_once(monkeypatch):
    monkeypatch.setattr("lengthwise.model.attention.MAX_SHORT_KEYS", 0)
    monkeypatch.setattr("lengthwise.model.attention.CHUNK_ELEMENTS", 2 * 3 * 7 * 2)
    asked = []

    def bias_of(start: int, stop: int, keys: int) -> torch.Tensor:
        asked.append((start, stop, keys))
        return torch.zeros(1, 3, stop - start, keys)

    attend(torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4), bias_of)
    assert asked == [(0, 2, 4), (2, 4, 6), (4, 5, 7)]


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """RMSNorm with torch's epsilon, that of float32."""
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.finfo(np.float32).eps) * weight


def gelu(x: np.ndarray) -> np.ndarray:
    """Exact: x times the normal distribution function."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


class Reference:
    """A decoder of one layer for one sequence, from its parameters alone."""

    def __init__(self, decoder: Decoder, encoding: str) -> None:
        self.weights = {name: weight.double().numpy() for name, weight in decoder.state_dict().items()}
        self.settings = decoder.settings
        self.separators = decoder.separators
        self.encoding = encoding

    def hidden(self, tokens: np.ndarray, position_ids: np.ndarray) -> np.ndarray:
        """The final hidden states."""
        weights = self.weights
        x = self.embedded(tokens, position_ids)
        x = x + self.attention(normed(x, weights["blocks.0.attention_norm.weight"]), position_ids)
        inner = normed(x, weights["blocks.0.mlp_norm.weight"])
        wide = gelu(inner @ weights["blocks.0.widen.weight"].T + weights["blocks.0.widen.bias"])
        x = x + wide @ weights["blocks.0.narrow.weight"].T + weights["blocks.0.narrow.bias"]
        return normed(x, weights["norm.weight"])

    def embedded(self, tokens: np.ndarray, position_ids: np.ndarray) -> np.ndarray:
        """Token, share of the token before, segment and, for learned positions, the ID's vector."""
        weights, rows = self.weights, []
        seen = 0
        for t, token in enumerate(tokens):
            row = weights["embedding"][token].copy()
            if self.settings.previous_token_mix and t > 0:
                row += weights["previous_share"] * weights["embedding"][tokens[t - 1]]
            seen = min(seen + (int(token) in self.separators), len(self.separators))
            if self.settings.segments:
                row += weights["segment"][seen]
            if self.encoding == "learned":
                row += weights["encoding.levels.0.vectors"][position_ids[t]]
            rows.append(row)
        return np.stack(rows)

    def attention(self, x: np.ndarray, position_ids: np.ndarray) -> np.ndarray:
        """Heads with normalised queries and keys, sharpened by a temperature and the log of what is visible."""
        weights, heads = self.weights, self.settings.num_heads
        seq, d_model = x.shape
        projected = x @ weights["blocks.0.project.weight"].T
        query, key, value = projected.reshape(seq, 3, heads, d_model // heads).transpose(1, 2, 0, 3)
        query = normed(query, weights["blocks.0.query_norm.weight"])
        key = normed(key, weights["blocks.0.key_norm.weight"])
        if self.encoding == "rotary":
            query, key = (rotated(part[None], position_ids[None])[0] for part in (query, key))
        query = query * np.exp(weights["blocks.0.log_temperature"])
        if self.settings.length_scaling == "log":
            query = query * np.array([math.log(visible + 1) for visible in range(1, seq + 1)])[None, :, None]
        bias = np.zeros((heads, seq, seq))
        if self.encoding == "alibi":
            bias = distance_penalty(heads, position_ids, position_ids)
        out = attended(query, key, value, bias)
        return out.transpose(1, 0, 2).reshape(seq, d_model) @ weights["blocks.0.mix_heads.weight"].T


# One for each hook: the formulas of the others have files of their own.
@pytest.mark.parametrize("encoding", ["nope", "learned", "rotary", "alibi"])
@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_a_decoder_of_one_layer_is_what_its_formulas_say(tied, options, encoding, rng):
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
    for row in range(2):
        expected = reference.hidden(tokens[row], position_ids[row])
        np.testing.assert_allclose(hidden[row].numpy(), expected, atol=2e-5)
        np.testing.assert_allclose(decoder.token_logits(hidden)[row].numpy(), expected @ output.T, atol=1e-4)


@torch.no_grad()
def test_a_fresh_decoder_passes_embeddings_on_unchanged():
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
