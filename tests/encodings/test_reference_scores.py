"""Parity of attention weights, adjusted scores and gradients with independent references."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from tests.support.cases import randomize, small_decoder
from torch import Tensor, nn

from lengthwise.encodings import DAPE, ENCODINGS, DAPEv2, EncodingSettings, EncodingSize
from lengthwise.model.attention import attend, entmax, make_weight_function, top_k
from lengthwise.model.attention_scores import LogLengthScale
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.tasks import Parity

SIZE = EncodingSize(d_model=12, num_heads=2, d_head=6)
SPARSE = {"entmax": {"weights": "entmax"}, "entmax-1.2": {"weights": "entmax", "entmax_alpha": 1.2}}
SPARSE["top_k"] = {"weights": "top_k", "top_k": 3}
SPARSE["count"] = {"weights": "count"}
over_weights = pytest.mark.parametrize("weights", SPARSE)


def visible_mask(queries: int, keys: int) -> Tensor:
    """Return the causal mask of queries that belong to the last keys."""
    return torch.arange(keys) <= torch.arange(keys - queries, keys)[:, None]


def reference_attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Return causal attention with a bias."""
    scores = query @ key.mT / math.sqrt(query.shape[-1]) + bias
    return scores.masked_fill(~visible_mask(*scores.shape[-2:]), -math.inf).softmax(dim=-1) @ value


def with_gradients(inputs: list[Tensor], attention, upstream: Tensor) -> list[Tensor]:
    """Return the output of ``attention`` and the gradients of all inputs."""
    leaves = [part.clone().requires_grad_() for part in inputs]
    out = attention(*leaves)
    out.backward(upstream.to(out.dtype))
    gradients = [leaf.grad for leaf in leaves]
    assert all(gradient is not None for gradient in gradients)
    return [out.detach(), *gradients]


def attend_with(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Return ``attend`` with a bias that is one tensor."""
    return attend(query, key, value, lambda start, stop, keys: bias[:, :, start:stop, :keys])


@pytest.mark.parametrize(("short", "elements"), [(64, 1), (0, 1), (0, 2 * 3 * 9 * 4), (0, 1 << 20)])
@pytest.mark.parametrize("cut", [False, True], ids=["soft", "cut"])
@pytest.mark.parametrize("bias_batch", [1, 2])
@pytest.mark.parametrize("queries", [1, 5, 9])
@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)], ids=["float32", "bf16"]
)
@pytest.mark.covering(1)
def test_gradients_of_attention_and_its_bias_equal_those_of_the_plain_formula(
    *, dtype, precision, queries, bias_batch, cut, short, elements, rng, monkeypatch
):
    monkeypatch.setattr("lengthwise.model.attention.MAX_KEYS_FOR_PLAIN_ATTENTION", short)
    monkeypatch.setattr("lengthwise.model.attention.MAX_CHUNK_SCORES", elements)
    # As in the decoder, the heads of a token are adjacent in memory.
    parts = [torch.from_numpy(rng.normal(size=(2, seq, 3, 4))).transpose(1, 2) for seq in (queries, 9, 9, queries)]
    query, key, value, upstream = (part.to(dtype) for part in parts)
    bias = torch.from_numpy(rng.normal(size=(bias_batch, 3, queries, 9))).float()
    if cut:
        own = torch.arange(9) == torch.arange(9 - queries, 9)[:, None]
        bias = bias.masked_fill(~own & (torch.from_numpy(rng.random((bias_batch, 3, queries, 9))) < 0.5), -math.inf)
    inputs = [query, key, value, bias]
    expected = with_gradients([part.double() for part in inputs], reference_attention, upstream.double())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        reached = with_gradients(inputs, attend_with, upstream)
    for mine, reference in zip(reached, expected, strict=True):
        torch.testing.assert_close(mine.double(), reference, atol=precision, rtol=precision)
    assert reached[0].dtype == dtype


@pytest.mark.parametrize("elements", [1, 2 * 3 * 9 * 4, 1 << 20])
def test_gradients_of_later_queries_without_a_bias_equal_those_of_the_plain_formula(elements, rng, monkeypatch):
    monkeypatch.setattr("lengthwise.model.attention.MAX_KEYS_FOR_PLAIN_ATTENTION", 0)
    monkeypatch.setattr("lengthwise.model.attention.MAX_CHUNK_SCORES", elements)
    inputs = [torch.from_numpy(rng.normal(size=(2, 3, seq, 4))) for seq in (5, 9, 9)]
    upstream = torch.from_numpy(rng.normal(size=(2, 3, 5, 4)))
    expected = with_gradients(inputs, partial(reference_attention, bias=torch.zeros(1)), upstream)
    for mine, reference in zip(with_gradients(inputs, attend, upstream), expected, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("queries", [1, 5, 9])
@torch.no_grad()
def test_attention_is_the_same_without_gradients(queries, rng, monkeypatch):
    monkeypatch.setattr("lengthwise.model.attention.MAX_KEYS_FOR_PLAIN_ATTENTION", 0)
    monkeypatch.setattr("lengthwise.model.attention.MAX_CHUNK_SCORES", 2 * 3 * 9 * 4)
    query, key, value = (torch.from_numpy(rng.normal(size=(2, 3, seq, 4))) for seq in (queries, 9, 9))
    bias = torch.from_numpy(rng.normal(size=(2, 3, queries, 9)))
    torch.testing.assert_close(attend_with(query, key, value, bias), reference_attention(query, key, value, bias))


def window(channels: np.ndarray, query: int, key: int, size: int, last: int) -> np.ndarray:
    """Return the channels of the keys around ``key``, with 0 for invisible keys."""
    neighbors = range(key - size // 2, key + size // 2 + 1)
    empty = np.zeros(len(channels))
    return np.stack([channels[:, query, k] if 0 <= k <= last else empty for k in neighbors], axis=-1)


def reference_convolution(layer: nn.Conv2d, inputs: np.ndarray) -> np.ndarray:
    """Return one output pixel of a convolution."""
    weight = layer.weight.detach().double().numpy()[:, :, 0]
    bias = layer.bias.detach().double().numpy()
    return np.array([(filter_ * inputs).sum() + constant for filter_, constant in zip(weight, bias, strict=True)])


def reference_dape(
    module: nn.Module, size: int, scores: np.ndarray, query_ids: np.ndarray, key_ids: np.ndarray
) -> np.ndarray:
    """Return DAPE's equation ``A + B + f(A, B)`` for the last queries of one sequence."""
    heads, queries, keys = scores.shape
    r1, r2 = (rate.detach().double().numpy() for rate in (module.kerple.r1, module.kerple.r2))
    channels = np.zeros((2 * heads, queries, keys))
    channels[:heads] = scores
    for head in range(heads):
        for i, own in enumerate(query_ids):
            for j, other in enumerate(key_ids):
                channels[heads + head, i, j] = -r1[head] * math.log(1 + r2[head] * abs(float(own) - float(other)))
    out = np.zeros(scores.shape)
    for i in range(queries):
        last = keys - queries + i
        hidden = np.zeros((module.widen.out_channels, queries, keys))
        for j in range(last + 1):
            wide = reference_convolution(module.widen, window(channels, i, j, size, last))
            hidden[:, i, j] = np.where(wide > 0, wide, 0.01 * wide)
        for j in range(last + 1):
            adjustment = reference_convolution(module.narrow, window(hidden, i, j, size, last))
            out[:, i, j] = channels[:heads, i, j] + channels[heads:, i, j] + adjustment
    return out


NETWORKS = (DAPE(), DAPE(mlp_width=5), DAPEv2(), DAPEv2(mlp_width=4, kernel_size=5), DAPEv2(kernel_size=1))


@pytest.mark.parametrize("settings", NETWORKS, ids=repr)
@pytest.mark.parametrize("queries", [1, 3, 6])
@pytest.mark.parametrize("kind", ["whole", "real"])
@torch.no_grad()
def test_dape_adds_kerples_bias_and_a_network_of_the_scores_and_biases_of_all_heads(
    kind, queries, settings: EncodingSettings, rng
):
    module = settings.build(SIZE)
    randomize(module)
    for rate in (module.kerple.r1, module.kerple.r2):
        rate.copy_(torch.tensor([0.3, 1.7]))
    scores = rng.normal(size=(2, 2, queries, 6)).astype(np.float32)
    ids = rng.integers(0, 30, size=(2, 6))
    if kind == "real":
        ids = ids + rng.random(size=(2, 6))
    visible = visible_mask(queries, 6)
    own = ids[:, 6 - queries :]
    actual = module.adjust_scores(*(torch.from_numpy(part) for part in (scores, own, ids)), visible)
    for sequence in range(2):
        expected = reference_dape(
            module, getattr(settings, "kernel_size", 1), scores[sequence], own[sequence], ids[sequence]
        )
        np.testing.assert_allclose(actual[sequence].numpy()[:, visible], expected[:, visible], atol=1e-5)


def test_only_dape_v2_reads_adjacent_keys(rng):
    ids = torch.from_numpy(rng.integers(0, 30, size=(1, 5)))
    reached = {}
    for settings in (DAPE(), DAPEv2()):
        module = settings.build(SIZE)
        scores = torch.from_numpy(rng.normal(size=(1, 2, 1, 5))).float().requires_grad_()
        actual = module.adjust_scores(scores, ids[:, -1:], ids, torch.ones(1, 5, dtype=torch.bool))
        actual[0, 0, 0, 0].backward()
        assert scores.grad is not None
        reached[settings.name] = (scores.grad[0] != 0).any(dim=0)[0].tolist()
    # Two convolutions of 3 keys reach two more keys.
    assert reached == {"dape": [True] + 4 * [False], "dape_v2": 3 * [True] + 2 * [False]}


def masked_scores(rng: np.random.Generator, *, keys: int = 7, scale: float = 2.0) -> np.ndarray:
    """Return causally masked scores, with one key hidden by a bias."""
    scores = scale * rng.normal(size=(2, 3, keys, keys))
    scores[:, :, ~visible_mask(keys, keys).numpy()] = -math.inf
    scores[:, :, keys - 1, 2] = -math.inf
    return scores.astype(np.float32)


def by_bisection(scores: np.ndarray, alpha: float) -> np.ndarray:
    """Return ``[(alpha - 1) z - tau]_+^(1 / (alpha - 1))`` with the tau that makes the sum 1 (equation 11)."""
    scaled = (alpha - 1) * scores.astype(float)
    low, high = scaled.max() - 1, scaled.max()
    for _ in range(100):
        tau = (low + high) / 2
        total = (np.maximum(scaled - tau, 0) ** (1 / (alpha - 1))).sum()
        low, high = (tau, high) if total >= 1 else (low, tau)
    return np.maximum(scaled - low, 0) ** (1 / (alpha - 1))


def over_queries(function, scores: np.ndarray) -> np.ndarray:
    return np.apply_along_axis(function, -1, scores)


@pytest.mark.parametrize("alpha", [1.1, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("shift", [0.0, -1e5, 1e5])
def test_entmax_solves_the_papers_threshold_equation(shift, alpha, rng):
    scores = masked_scores(rng, scale=1 / (alpha - 1)) + np.float32(shift)
    weights = entmax(torch.from_numpy(scores), alpha).numpy()
    np.testing.assert_allclose(weights, over_queries(partial(by_bisection, alpha=alpha), scores), atol=2e-5)
    assert (weights[scores == -math.inf] == 0).all()
    assert (weights[:, :, 0, 0] == 1).all()
    assert (weights[scores > -math.inf] == 0).any()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.2, 1.5])
@pytest.mark.parametrize("keys", [300, 3_000])
def test_entmax_gives_weight_1_to_the_only_visible_key(keys, alpha):
    scores = torch.full((1, 1, 1, keys), -math.inf)
    scores[..., keys // 2] = -3.0
    assert torch.equal(entmax(scores, alpha), (scores == -3.0).float())


@pytest.mark.parametrize("alpha", [1.2, 1.5])
def test_the_gradient_of_entmax_equals_the_papers_jacobian(alpha, rng):
    scores = torch.from_numpy(masked_scores(rng)).requires_grad_()
    upstream = rng.normal(size=scores.shape)
    weights = entmax(scores, alpha)
    weights.backward(torch.from_numpy(upstream).float())
    assert scores.grad is not None
    for place in np.ndindex(*scores.shape[:-1]):
        p = weights[place].detach().double().numpy()
        s = np.where(p > 0, p ** (2 - alpha), 0.0)
        expected = s * upstream[place] - s * (s @ upstream[place]) / s.sum()
        np.testing.assert_allclose(scores.grad[place].numpy(), expected, atol=1e-4)


def reference_top_k(scores: np.ndarray, k: int) -> np.ndarray:
    """Return a softmax over the k largest scores, 0 for the others."""
    weights = np.zeros(len(scores))
    largest = [index for index in np.argsort(-scores)[:k] if scores[index] > -math.inf]
    for index in largest:
        weights[index] = math.exp(scores[index]) / sum(math.exp(scores[other]) for other in largest)
    return weights


def test_top_k_gives_weight_to_at_most_k_equal_scores():
    weights = top_k(torch.tensor([[[[1.0, 2.0, 2.0, 2.0, 0.0]]]]), 2)
    assert sorted(weights.flatten().tolist()) == [0.0, 0.0, 0.0, 0.5, 0.5]


@pytest.mark.parametrize("k", [1, 2, 3, 7, 20])
def test_top_k_is_a_softmax_over_the_k_largest_scores(k, rng):
    scores = masked_scores(rng)
    weights = top_k(torch.from_numpy(scores), k).numpy()
    np.testing.assert_allclose(weights, over_queries(partial(reference_top_k, k=k), scores), atol=1e-6)
    assert (weights[scores == -math.inf] == 0).all()
    assert ((weights > 0).sum(axis=-1) == np.minimum(k, (scores > -math.inf).sum(axis=-1))).all()


def test_decoder_settings_select_the_weight_function(rng):
    scores = torch.from_numpy(masked_scores(rng))
    expected = {
        "entmax": entmax(scores, 1.5),
        "entmax-1.2": entmax(scores, 1.2),
        "top_k": top_k(scores, 3),
        "count": 1 / (8 + 8 * (-scores.float()).exp()),
    }
    for name, settings in SPARSE.items():
        decoder = small_decoder("nope", Parity(), **settings)
        weight_function = decoder.blocks[0].weight_function
        torch.testing.assert_close(weight_function(scores), expected[name])
    assert make_weight_function("softmax", k=3, alpha=1.5) is None


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("weights", ["entmax", "top_k", "count"])
@torch.no_grad()
@pytest.mark.covering(1)
def test_sparse_weights_are_causal_and_cached_decoding_equals_one_pass(weights, encoding, rng):
    tokens = torch.from_numpy(rng.integers(0, 4, size=(2, 14)))
    ids = torch.from_numpy(rng.integers(0, 30, size=(1, 2, 14)))
    decoder = small_decoder(encoding, Parity(), **SPARSE[weights])
    whole, _ = decoder(tokens, ids)
    changed, changed_ids = tokens.clone(), ids.clone()
    changed[:, 9:], changed_ids[:, :, 9:] = 3 - tokens[:, 9:], ids[:, :, 9:].flip(-1)
    torch.testing.assert_close(decoder(changed, changed_ids)[0][:, :9], whole[:, :9], atol=1e-5, rtol=0)
    parts, cache = [], None
    for piece in (slice(0, 5), slice(5, 12), slice(12, 13), slice(13, 14)):
        hidden, cache = decoder(tokens[:, piece], ids[:, :, piece], cache)
        parts.append(hidden)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)


@over_weights
@torch.no_grad()
def test_sparse_weights_change_the_hidden_states(weights, rng):
    tokens = torch.from_numpy(rng.integers(0, 4, size=(2, 14)))
    ids = torch.arange(14).expand(1, 2, 14)
    sparse = small_decoder("rotary", Parity(), temperature=3.0, **SPARSE[weights])
    dense = small_decoder("rotary", Parity(), temperature=3.0)
    assert (sparse(tokens, ids)[0] - dense(tokens, ids)[0]).abs().max() > 1e-2


# Torch warns of a slower kernel for norms once per process.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@pytest.mark.parametrize("encoding", ["nope", "alibi", "dape", "dape_v2"])
@over_weights
def test_sparse_weights_have_finite_gradients_in_bf16(weights, encoding, rng):
    tokens = torch.from_numpy(rng.integers(0, 4, size=(2, 14)))
    ids = torch.from_numpy(rng.integers(0, 30, size=(1, 2, 14)))
    decoder = small_decoder(encoding, Parity(), **SPARSE[weights])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = decoder.token_logits(decoder(tokens, ids)[0]).square().mean()
    loss.backward()
    reached = {name: parameter.grad for name, parameter in decoder.named_parameters() if parameter.grad is not None}
    assert reached.keys() == dict(decoder.named_parameters()).keys()
    assert all(gradient.isfinite().all() for gradient in reached.values())


@torch.no_grad()
def test_a_learned_length_scale_is_an_offset_plus_a_power_of_the_log_per_head(rng):
    offset, power = rng.normal(size=3), rng.normal(size=3)
    scale = LogLengthScale(3)
    scale.offset.copy_(torch.from_numpy(offset)[:, None, None])
    scale.power.copy_(torch.from_numpy(power)[:, None, None])
    actual = scale(torch.tensor([[math.log(2)], [math.log(9)]])).numpy()
    for head in range(3):
        for step, visible in enumerate((1, 8)):
            expected = offset[head] + math.log(visible + 1) ** power[head]
            np.testing.assert_allclose(actual[head, step, 0], expected, rtol=1e-5)


@pytest.mark.parametrize("scaling", ["log", "learned"])
@torch.no_grad()
def test_queries_are_scaled_by_the_number_of_visible_keys_with_and_without_a_cache(scaling, rng, monkeypatch):
    tokens = torch.from_numpy(rng.integers(0, 4, size=(2, 9)))
    ids = torch.arange(9).expand(1, 2, 9)
    plain, scaled = (small_decoder("nope", Parity(), num_layers=1, length_scaling=s) for s in ("none", scaling))
    shared = plain.state_dict()
    scaled.load_state_dict({name: shared.get(name, value) for name, value in scaled.state_dict().items()})
    offset, power = np.zeros(2), np.ones(2)
    if scaling == "learned":
        length_scale = scaled.blocks[0].length_scale
        offset, power = (part.flatten().numpy() for part in (length_scale.offset, length_scale.power))
        assert abs(offset).min() > 1e-3
        assert abs(power - 1).min() > 1e-3
    queries_seen = []

    def record(query: Tensor, key: Tensor, value: Tensor, bias: object = None) -> Tensor:
        queries_seen.append(query)
        return attend(query, key, value, bias)

    monkeypatch.setattr("lengthwise.model.block.attend", record)
    plain(tokens, ids)
    _, cache = scaled(tokens[:, :4], ids[:, :, :4])
    scaled(tokens[:, 4:], ids[:, :, 4:], cache)
    before, *after = queries_seen
    factors = torch.cat(after, dim=2).numpy() / before.numpy()
    for head in range(2):
        for t in range(9):
            expected = offset[head] + math.log(t + 2) ** power[head]
            np.testing.assert_allclose(factors[:, head, t], expected, rtol=1e-4)


def test_a_learned_length_scale_starts_as_the_log():
    log = torch.arange(2, 9).log()[:, None]
    assert DecoderSettings().length_scaling == "log"
    torch.testing.assert_close(LogLengthScale(2)(log), log.expand(2, -1, -1))
