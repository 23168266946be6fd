"""Parity of additive encodings with other libraries, and with the papers' formulas for one pair at a time."""

import math
import warnings

import numpy as np
import pytest
import torch
from tests.support.cases import randomize
from torch import nn
from transformers import GPT2Config, GPT2Model, T5Config
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from lengthwise.encodings import (
    ENCODINGS,
    FIRE,
    NAPE,
    ALiBi,
    EncodingSize,
    HardALiBi,
    KERPLELog,
    KERPLEPower,
    Learned,
    Sinusoidal,
    T5Bias,
)
from lengthwise.encodings.clamped_parameters import clamp_straight_through, make_clamped_parameter
from lengthwise.encodings.encoding import Encoding
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings

with warnings.catch_warnings():
    # The import compiles a function with torch.jit.
    warnings.simplefilter("ignore", DeprecationWarning)
    from x_transformers.x_transformers import AlibiPositionalBias, RelativePositionBias, ScaledSinusoidalEmbedding

HEADS = 4
SIZE = EncodingSize(d_model=16, num_heads=HEADS, d_head=4)
LEARNED_BIASES = ("kerple_log", "kerple_power", "t5", "fire")
BIASES = ("alibi", "hard_alibi", "nape", *LEARNED_BIASES)

# Kinds of IDs: small IDs that repeat and fall, IDs too far apart for a table of distances, and real IDs.
IDS = {
    "coupled": lambda rng: rng.integers(0, 40, size=(2, 30)),
    "beyond": lambda rng: rng.integers(0, 2_000, size=(2, 50)),
    "far": lambda rng: rng.integers(0, 1_000_001, size=(2, 9)),
    "real": lambda rng: rng.uniform(0, 900, size=(2, 9)),
}
over_ids = pytest.mark.parametrize("kind", IDS)


def sample_ids(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the IDs of queries, which belong to the last keys, and of all keys."""
    key_ids = IDS[kind](rng)
    return key_ids[:, -6:], key_ids


def bias_of(module: Encoding, query_ids: np.ndarray, key_ids: np.ndarray) -> np.ndarray:
    """Return the bias of a module with shape (batch, heads, query, key)."""
    with torch.no_grad():
        bias = module.bias(torch.from_numpy(query_ids), torch.from_numpy(key_ids)).numpy()
    return np.broadcast_to(bias, (len(key_ids), HEADS, query_ids.shape[1], key_ids.shape[1]))


def pair_by_pair(formula, query_ids: np.ndarray, key_ids: np.ndarray) -> np.ndarray:
    """Return ``formula(head, query ID, key ID)`` for every pair of query and key."""
    shape = len(key_ids), HEADS, query_ids.shape[1], key_ids.shape[1]
    expected = np.zeros(shape)
    for sequence, head, query, key in np.ndindex(*shape):
        expected[sequence, head, query, key] = formula(
            head, query_ids[sequence, query].item(), key_ids[sequence, key].item()
        )
    return expected


def randomized(settings) -> Encoding:
    """Return a module whose parameters all differ from their initial values."""
    module = settings.build(SIZE)
    randomize(module)
    return module


def to_numpy(parameter: torch.Tensor) -> np.ndarray:
    return parameter.detach().double().numpy()


@pytest.mark.parametrize("queries", [1, 5, 300])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (8, 64), (7, 20), (2, 5)])
@torch.no_grad()
def test_t5_biases_of_earlier_keys_equal_those_of_transformers(num_buckets, max_distance, queries):
    config = T5Config(
        d_model=16,
        num_heads=HEADS,
        relative_attention_num_buckets=num_buckets,
        relative_attention_max_distance=max_distance,
        is_decoder=True,
    )
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    module = randomized(T5Bias(num_buckets=num_buckets, max_distance=max_distance))
    theirs.relative_attention_bias.weight.copy_(module.weights[:, :num_buckets].T)
    ids = torch.arange(300)[None]
    bias = module.bias(ids[:, -queries:], ids)
    expected = theirs.compute_bias(queries, 300, past_seen_tokens=300 - queries)
    visible = ids[0] <= ids[0, -queries:, None]
    assert torch.equal(bias.where(visible, 0.0), expected.where(visible, 0.0))


@torch.no_grad()
def test_t5_biases_of_earlier_keys_equal_those_of_x_transformers():
    theirs = RelativePositionBias(scale=1.0, causal=True, heads=HEADS)
    module = randomized(T5Bias())
    theirs.relative_attention_bias.weight.copy_(module.weights[:, :32].T)
    ids = torch.arange(200)[None]
    visible = torch.ones(200, 200, dtype=torch.bool).tril()
    assert torch.equal(module.bias(ids, ids)[0].where(visible, 0.0), theirs(200, 200).where(visible, 0.0))


@pytest.mark.parametrize("kind", ["coupled", "beyond", "far"])
def test_t5_buckets_have_one_small_distance_each_and_then_grow_logarithmically(kind, rng):
    module = randomized(T5Bias(num_buckets=10, max_distance=70))
    weights = module.weights.detach().numpy()
    assert weights.shape == (HEADS, 19)

    def value(head: int, own: int, other: int) -> float:
        apart = abs(own - other)
        bucket = apart if apart < 5 else min(9, 5 + math.floor(5 * math.log(apart / 5) / math.log(70 / 5)))
        return weights[head, bucket if own >= other else 9 + bucket]

    query_ids, key_ids = sample_ids(kind, rng)
    assert np.array_equal(bias_of(module, query_ids, key_ids), pair_by_pair(value, query_ids, key_ids))


@pytest.mark.parametrize("num_heads", [1, 3, 4, 12])
def test_alibi_attention_weights_equal_those_of_bloom(num_heads):
    size = EncodingSize(d_model=4 * num_heads, num_heads=num_heads, d_head=4)
    ids = torch.arange(20)[None]
    scores = torch.randn(1, num_heads, 20, 20)
    future = torch.ones(20, 20, dtype=torch.bool).triu(1)
    # Bloom adds slope times key index: a constant per query differs, to which the softmax is invariant.
    theirs = build_alibi_tensor(torch.ones(1, 20, dtype=torch.long), num_heads, torch.float32)[None]
    ours = ALiBi().build(size).bias(ids, ids)
    weights = [(scores + bias).masked_fill(future, -math.inf).softmax(dim=-1) for bias in (ours, theirs)]
    torch.testing.assert_close(*weights, atol=1e-6, rtol=1e-5)


@over_ids
def test_alibi_biases_equal_those_of_x_transformers_for_every_kind_of_ids(kind, rng):
    query_ids, key_ids = sample_ids(kind, rng)
    theirs = AlibiPositionalBias(HEADS).forward_custom_pos(torch.from_numpy(query_ids), torch.from_numpy(key_ids))
    bias = bias_of(ALiBi().build(SIZE), query_ids, key_ids)
    np.testing.assert_allclose(bias, theirs.numpy(), rtol=1e-6)


@over_ids
@pytest.mark.parametrize("num_masked_heads", [None, 1, 3, 4])
def test_hard_alibi_hides_keys_at_least_h_plus_1_ids_away_from_head_h(num_masked_heads, kind, rng):
    module = HardALiBi(num_masked_heads=num_masked_heads).build(SIZE)
    masked = HEADS // 2 if num_masked_heads is None else num_masked_heads

    def value(head: int, own: float, other: float) -> float:
        return -math.inf if head < masked and abs(own - other) >= head + 1 else 0.0

    query_ids, key_ids = sample_ids(kind, rng)
    assert np.array_equal(bias_of(module, query_ids, key_ids), pair_by_pair(value, query_ids, key_ids))


@over_ids
@pytest.mark.parametrize("num_alibi_heads", [None, 1, 3, 4])
def test_nape_has_slope_1_over_h_plus_1_in_its_alibi_heads_and_no_bias_in_the_others(num_alibi_heads, kind, rng):
    module = NAPE(num_alibi_heads=num_alibi_heads).build(SIZE)
    first = HEADS // 2 if num_alibi_heads is None else num_alibi_heads

    def value(head: int, own: float, other: float) -> float:
        return -abs(own - other) / (head + 1) if head < first else 0.0

    query_ids, key_ids = sample_ids(kind, rng)
    expected = pair_by_pair(value, query_ids, key_ids)
    np.testing.assert_allclose(bias_of(module, query_ids, key_ids), expected, rtol=1e-6)


def with_parameters_beyond_bounds(settings) -> Encoding:
    module = settings.build(SIZE)
    with torch.no_grad():
        module.r1.copy_(torch.tensor([0.7, 1.6, -0.2, 0.4]))
        module.r2.copy_(torch.tensor([-0.3, 0.4, 1.3, 2.6]))
    return module


@over_ids
def test_kerple_log_biases_equal_the_papers_logarithmic_kernel(kind, rng):
    module = with_parameters_beyond_bounds(KERPLELog())
    r1, r2 = to_numpy(module.r1), to_numpy(module.r2)

    def value(head: int, own: float, other: float) -> float:
        return -max(r1[head], 0.01) * math.log(1 + max(r2[head], 0.01) * abs(own - other))

    query_ids, key_ids = sample_ids(kind, rng)
    expected = pair_by_pair(value, query_ids, key_ids)
    np.testing.assert_allclose(bias_of(module, query_ids, key_ids), expected, rtol=2e-6, atol=1e-6)


@over_ids
def test_kerple_power_biases_equal_the_papers_power_kernel(kind, rng):
    module = with_parameters_beyond_bounds(KERPLEPower())
    r1, r2 = to_numpy(module.r1), to_numpy(module.r2)

    def value(head: int, own: float, other: float) -> float:
        return -max(r1[head], 0.01) * abs(own - other) ** min(max(r2[head], 0.01), 2)

    query_ids, key_ids = sample_ids(kind, rng)
    expected = pair_by_pair(value, query_ids, key_ids)
    np.testing.assert_allclose(bias_of(module, query_ids, key_ids), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("settings", "ranges"), [(KERPLELog(), (2, 1)), (KERPLEPower(), (1, 2))])
def test_kerple_parameters_start_uniform_in_the_ranges_of_the_papers_code(settings, ranges):
    module = settings.build(EncodingSize(d_model=2_000, num_heads=2_000, d_head=1))
    for parameter, end in zip((module.r1, module.r2), ranges, strict=True):
        counts = np.histogram(to_numpy(parameter), bins=10, range=(0, end))[0]
        assert counts.sum() == 2_000
        assert counts.min() > 130


@pytest.mark.parametrize("uses", [1, 2])
def test_a_clamped_parameter_has_a_gradient_only_towards_its_bounds(uses):
    parameter = make_clamped_parameter(torch.tensor([-1.0, -1.0, 0.5, 0.5, 3.0, 3.0]), 0.01, 2.0)
    values = [clamp_straight_through(parameter, 0.01, 2.0) for _ in range(uses)]
    assert values[0].tolist() == pytest.approx([0.01, 0.01, 0.5, 0.5, 2.0, 2.0])
    # With two uses, one gradient points outward and one inward; the sum decides.
    upstream = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    sum((value * upstream * (1 if use == 0 else -3)).sum() for use, value in enumerate(values)).backward()
    expected = {1: [0.0, -1.0, 1.0, -1.0, 1.0, 0.0], 2: [-2.0, 0.0, -2.0, 2.0, 0.0, 2.0]}[uses]
    assert parameter.grad.tolist() == expected


def fire_formula(module: nn.Module, threshold: float):
    """Return the paper's bias of one pair, with its network evaluated one hidden unit at a time."""
    c, stretch = abs(module.rate.item()), abs(module.stretch.item())
    (w1, b1), (w2, b2) = ((to_numpy(layer.weight), to_numpy(layer.bias)) for layer in (module.widen, module.narrow))

    def value(head: int, own: float, other: float) -> float:
        apart = own - other
        whole = math.log(c * max(stretch * threshold, own) + 1) + 1e-6
        share = math.copysign(math.log(c * abs(apart) + 1), apart) / whole
        hidden = [max(0.0, w1[unit, 0] * share + b1[unit]) for unit in range(len(b1))]
        return b2[head] + sum(w2[head, unit] * hidden[unit] for unit in range(len(b1)))

    return value


@over_ids
@pytest.mark.parametrize("threshold", [512.0, 20.0, 3.0])
def test_fire_biases_equal_the_papers_network_of_the_relative_distance(threshold, kind, rng):
    module = randomized(FIRE(threshold=threshold))
    query_ids, key_ids = sample_ids(kind, rng)
    expected = pair_by_pair(fire_formula(module, threshold), query_ids, key_ids)
    np.testing.assert_allclose(bias_of(module, query_ids, key_ids), expected, atol=2e-6)


@pytest.mark.parametrize("weight", [0.0, 1e-30])
@pytest.mark.parametrize("bias", [0.5, -0.5, 0.0])
@pytest.mark.parametrize("count", [1, 3])
def test_fire_supports_hidden_units_with_zero_weights(count, bias, weight, rng):
    module = randomized(FIRE())
    with torch.no_grad():
        # All other units have their kinks within the range of inputs.
        module.widen.bias.copy_(-module.widen.weight[:, 0] * torch.rand(32))
        module.widen.weight[:count] = weight
        module.widen.bias[:count] = bias
    query_ids, key_ids = sample_ids("beyond", rng)
    expected = pair_by_pair(fire_formula(module, 512.0), query_ids[:, :2], key_ids)
    np.testing.assert_allclose(bias_of(module, query_ids[:, :2], key_ids), expected, atol=2e-6)


@over_ids
@pytest.mark.parametrize("threshold", [512.0, 20.0])
def test_fire_gradients_equal_those_of_the_explicit_network(threshold, kind, rng):
    module = randomized(FIRE(threshold=threshold))
    query_ids, key_ids = (torch.from_numpy(ids) for ids in sample_ids(kind, rng))
    upstream = torch.randn(2, HEADS, query_ids.shape[1], key_ids.shape[1])
    module.bias(query_ids, key_ids).backward(upstream)
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    module.double()
    apart = (query_ids[:, :, None] - key_ids[:, None, :]).double()
    whole = query_ids.double().clamp(min=(module.stretch * threshold).abs())
    psi = torch.sign(apart) * torch.log(module.rate.abs() * apart.abs() + 1)
    share = psi / (torch.log(module.rate.abs() * whole + 1) + 1e-6)[:, :, None]
    module.narrow(module.widen(share[..., None]).relu()).permute(0, 3, 1, 2).backward(upstream.double())
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name].double(), parameter.grad, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("name", [name for name in BIASES if ENCODINGS[name].real_valued])
@pytest.mark.parametrize("largest", [30, 1_000_000])
def test_biases_of_whole_ids_are_the_same_as_real_numbers(largest, name, rng):
    ids = rng.integers(0, largest + 1, size=(3, 40))
    module = randomized(ENCODINGS[name]())
    whole = bias_of(module, ids[:, -9:], ids)
    np.testing.assert_allclose(bias_of(module, ids[:, -9:].astype(float), ids.astype(float)), whole, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in LEARNED_BIASES if ENCODINGS[name].real_valued])
def test_gradients_of_tabulated_biases_equal_those_of_directly_computed_biases(name, rng):
    ids = torch.from_numpy(rng.integers(0, 31, size=(3, 40)))
    module, gradients = randomized(ENCODINGS[name]()), []
    upstream = torch.randn(3, HEADS, 9, 40)
    for given_ids in (ids, ids.double()):
        module.zero_grad()
        module.bias(given_ids[:, -9:], given_ids).backward(upstream)
        gradients.append([parameter.grad for parameter in module.parameters()])
    for looked_up, worked_out in zip(*gradients, strict=True):
        torch.testing.assert_close(looked_up, worked_out, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("name", BIASES)
def test_the_bias_of_an_empty_batch_is_empty(name):
    ids = torch.zeros(0, 5, dtype=torch.long)
    assert ENCODINGS[name]().build(SIZE).bias(ids[:, -3:], ids).shape == (0, HEADS, 3, 5)


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("kind", ["coupled", "far"])
def test_autocast_does_not_reduce_the_precision_of_a_bias(kind, name, rng):
    module = randomized(ENCODINGS[name]())
    query_ids, key_ids = sample_ids(kind, rng)
    expected = bias_of(module, query_ids, key_ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bias = bias_of(module, query_ids, key_ids)
    np.testing.assert_allclose(bias, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LEARNED_BIASES)
@pytest.mark.parametrize("seq", [9, 80])
@pytest.mark.parametrize("largest", [8, 1_000_000])
@pytest.mark.parametrize("bf16", [False, True])
def test_every_parameter_of_a_bias_gets_a_finite_gradient(bf16, largest, seq, name, rng):
    decoder = Decoder(DecoderSettings(d_model=16, num_heads=HEADS), ENCODINGS[name](), vocabulary_size=6)
    randomize(decoder.blocks)
    tokens = torch.from_numpy(rng.integers(0, 6, size=(2, seq)))
    position_ids = torch.from_numpy(rng.integers(0, largest + 1, size=(2, seq)))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        hidden, _ = decoder(tokens, position_ids)
        loss = nn.functional.cross_entropy(decoder.token_logits(hidden).flatten(0, 1), tokens.flatten())
    loss.backward()
    for parameter in decoder.encoding.parameters():
        assert parameter.grad.isfinite().all()
        # Only queries with IDs up to FIRE's L read L.
        assert parameter.grad.abs().max() > 0 or (name, largest) == ("fire", 1_000_000)


@pytest.mark.parametrize("d_model", [16, 7])
@pytest.mark.parametrize("kind", ["coupled", "far", "real"])
def test_sinusoidal_components_alternate_between_sines_and_cosines_of_the_id(kind, d_model, rng):
    position_ids = IDS[kind](rng)
    x = rng.standard_normal((*position_ids.shape, d_model)).astype(np.float32)
    module = Sinusoidal().build(EncodingSize(d_model=d_model, num_heads=1, d_head=d_model))
    embedded = module.embed(torch.from_numpy(x), torch.from_numpy(position_ids)).numpy()
    expected = x.astype(float)
    for sequence, t, component in np.ndindex(*x.shape):
        wave = math.cos if component % 2 else math.sin
        angle = position_ids[sequence, t].item() / 10_000 ** ((component - component % 2) / d_model)
        expected[sequence, t, component] += wave(angle) / math.sqrt(d_model)
    np.testing.assert_allclose(embedded, expected, atol=1e-6)


@torch.no_grad()
def test_sinusoidal_vectors_equal_reordered_ones_of_x_transformers():
    theirs = ScaledSinusoidalEmbedding(16)(torch.zeros(1, 50, 16))
    vectors = Sinusoidal().build(SIZE).embed(torch.zeros(1, 50, 16), torch.arange(50)[None])[0]
    torch.testing.assert_close(torch.cat([vectors[:, 0::2], vectors[:, 1::2]], dim=-1), theirs, atol=1e-5, rtol=0)


@torch.no_grad()
def test_learned_positions_equal_those_of_gpt2(rng):
    config = GPT2Config(vocab_size=6, n_positions=30, n_embd=16, n_layer=1, n_head=HEADS)
    theirs = GPT2Model(config).eval()
    module = Learned(num_position_ids=30).build(SIZE)
    module.vectors.copy_(theirs.wpe.weight)
    tokens, ids = (torch.from_numpy(rng.integers(0, end, size=(2, 9))) for end in (6, 30))
    hidden = theirs(tokens, position_ids=ids, output_hidden_states=True).hidden_states[0]
    torch.testing.assert_close(module.embed(theirs.wte(tokens), ids), hidden)
