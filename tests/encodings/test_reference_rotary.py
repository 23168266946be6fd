"""Parity of the rotary family with transformers, x-transformers and the papers' formulas."""

import cmath
import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.cases import randomize
from torch import nn
from transformers import GPTNeoXConfig, GPTNeoXModel, LlamaConfig, LlamaModel, Qwen2Config, Qwen2Model
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from lengthwise.encodings import (
    NTK,
    DynamicNTK,
    Encoding,
    EncodingSettings,
    EncodingSize,
    LinearInterpolation,
    PartialRotary,
    Rotary,
    Weave,
    YaRN,
)
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from x_transformers import x_transformers

D_HEAD = 16
SIZE = EncodingSize(d_model=2 * D_HEAD, num_heads=2, d_head=D_HEAD)
# Settings with which every scaling affects the IDs of these tests.
SCALED = {
    "linear": LinearInterpolation(factor=4.0),
    "ntk": NTK(factor=4.0),
    "dynamic": DynamicNTK(factor=4.0, original_length=20),
    "yarn": YaRN(factor=4.0, original_length=200),
    "weave": Weave(window=8, width=5),
}
MADE_IN_SCORES = ("dynamic", "weave")
# Names and settings of the scalings in transformers.
THEIRS = {
    "default": (Rotary(), {}),
    "linear": (LinearInterpolation(factor=4.0), {"factor": 4.0}),
    "yarn": (YaRN(factor=4.0, original_length=200), {"factor": 4.0, "original_max_position_embeddings": 200}),
}

over_scaled = pytest.mark.parametrize("settings", [pytest.param(one, id=name) for name, one in SCALED.items()])
over_theirs = pytest.mark.parametrize("kind", THEIRS)


def build_in_eval(settings: EncodingSettings) -> Encoding:
    """Return the module in evaluation mode."""
    return settings.build(SIZE).eval()


def scores_of(module: Encoding, query: np.ndarray, key: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return unscaled scores as the decoder computes them; ``ids`` belong to the keys."""
    asking = torch.from_numpy(ids[:, ids.shape[1] - query.shape[2] :])
    sides = module.rotate(torch.from_numpy(query), asking), module.rotate(torch.from_numpy(key), torch.from_numpy(ids))
    return module.scores(*sides, asking, torch.from_numpy(ids)).detach().numpy()


def sample_queries_and_keys(rng: np.random.Generator, queries: int = 5, keys: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Return queries and keys of two sequences and two heads."""
    shapes = (2, 2, queries, D_HEAD), (2, 2, keys, D_HEAD)
    query, key = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return query, key


def sample_ids(rng: np.random.Generator, largest: int, kind: type) -> np.ndarray:
    """Return IDs that repeat, rise and fall, whole or real."""
    return rng.integers(0, largest, size=(2, 7)) if kind is int else rng.uniform(0, largest, size=(2, 7))


over_ids = pytest.mark.parametrize(("largest", "kind"), [(30, int), (400, float), (1_000_000, int), (1_000_000, float)])


def reference_scores(
    query: np.ndarray, key: np.ndarray, ids: np.ndarray, angle: Callable[[list[float], float, float, int], float]
) -> np.ndarray:
    """Return scores of visible keys from complex numbers and ``angle(visible IDs, query ID, key ID, pair)``."""
    batch, heads, queries, d_head = query.shape
    keys = key.shape[2]
    scores = np.zeros((batch, heads, queries, keys))
    for b in range(batch):
        for i in range(queries):
            visible = [float(one) for one in ids[b, : keys - queries + i + 1]]
            for j, other in enumerate(visible):
                for pair in range(d_head // 2):
                    turned = cmath.exp(1j * angle(visible, visible[-1], other, pair))
                    for h in range(heads):
                        q = complex(*query[b, h, i, 2 * pair : 2 * pair + 2])
                        k = complex(*key[b, h, j, 2 * pair : 2 * pair + 2])
                        scores[b, h, i, j] += (q * k.conjugate() * turned).real
    return scores


def assert_visible_close(actual: np.ndarray, expected: np.ndarray, atol: float = 1e-4) -> None:
    """Compare the scores of visible keys; the others are masked."""
    queries, keys = actual.shape[2:]
    visible = np.tril(np.ones((queries, keys), bool), keys - queries)
    np.testing.assert_allclose(np.where(visible, actual, 0), np.where(visible, expected, 0), atol=atol)


@over_ids
def test_ntk_scores_use_a_base_enlarged_by_a_power_of_the_factor(largest, kind, rng):
    (query, key), ids = sample_queries_and_keys(rng), sample_ids(rng, largest, kind)

    def angle(visible: list[float], own: float, other: float, pair: int) -> float:
        base = 10_000.0 * 4.0 ** (D_HEAD / (D_HEAD - 2))
        return (own - other) / base ** (2 * pair / D_HEAD)

    assert_visible_close(
        scores_of(build_in_eval(NTK(factor=4.0)), query, key, ids), reference_scores(query, key, ids, angle)
    )


def test_ntk_slows_the_slowest_pair_by_the_factor_and_not_the_fastest():
    device = torch.device("cpu")
    plain, scaled = (
        actual(device)
        for actual in (
            build_in_eval(NTK(factor=4.0)).plain_frequencies,
            build_in_eval(NTK(factor=4.0)).scaled_frequencies,
        )
    )
    assert (plain[0] / scaled[0]).item() == pytest.approx(1.0)
    assert (plain[-1] / scaled[-1]).item() == pytest.approx(4.0)


@over_ids
def test_dynamic_ntk_base_depends_on_the_largest_id_visible_to_the_query(largest, kind, rng):
    (query, key), ids = sample_queries_and_keys(rng), sample_ids(rng, largest, kind)

    def angle(visible: list[float], own: float, other: float, pair: int) -> float:
        n = max(20.0, 1 + max(visible))
        base = 10_000.0 * (4.0 * n / 20 - 3.0) ** (D_HEAD / (D_HEAD - 2))
        return (own - other) / base ** (2 * pair / D_HEAD)

    module = build_in_eval(DynamicNTK(factor=4.0, original_length=20))
    assert_visible_close(scores_of(module, query, key, ids), reference_scores(query, key, ids, angle))


@over_ids
@pytest.mark.parametrize(("window", "width"), [(8, 5), (512, 50), (1, 1), (7, 10_000_000)])
def test_weave_scores_use_distances_in_stairs_for_both_signs(window, width, largest, kind, rng):
    (query, key), ids = sample_queries_and_keys(rng), sample_ids(rng, largest, kind)

    def angle(visible: list[float], own: float, other: float, pair: int) -> float:
        distance = abs(own - other)
        if distance > window:
            distance = window + math.ceil((distance - window) / width)
        return math.copysign(distance, own - other) / 10_000.0 ** (2 * pair / D_HEAD)

    module = build_in_eval(Weave(window=window, width=width))
    assert_visible_close(scores_of(module, query, key, ids), reference_scores(query, key, ids, angle))


def test_weave_distances_stop_above_the_window_with_infinite_stairs():
    module = build_in_eval(Weave(window=7, width=10_000_000))
    distances = module.distances(torch.tensor([[0, 7, 8, 20, 1_000_000]]), torch.tensor([[0, 1_000]]))
    assert distances[0].tolist() == [[0, -8], [7, -8], [8, -8], [8, -8], [8, 8]]


@over_ids
@pytest.mark.parametrize("name", ["linear", "ntk", "yarn"])
def test_scaled_angles_are_exact_for_large_ids(name, largest, kind, rng):
    module, ids = build_in_eval(SCALED[name]), sample_ids(rng, largest, kind)
    x = rng.standard_normal((2, 2, 7, D_HEAD)).astype(np.float32)
    turned = module.rotate(torch.from_numpy(x), torch.from_numpy(ids)).numpy()
    frequencies = module.scaled_frequencies(torch.device("cpu")).tolist()
    for b, t, pair in np.ndindex(2, 7, D_HEAD // 2):
        factor = module.gain * cmath.exp(1j * float(ids[b, t]) * frequencies[pair])
        expected = (x[b, :, t, 2 * pair] + 1j * x[b, :, t, 2 * pair + 1]) * factor
        np.testing.assert_allclose(turned[b, :, t, 2 * pair], expected.real, atol=2e-6)
        np.testing.assert_allclose(turned[b, :, t, 2 * pair + 1], expected.imag, atol=2e-6)


def tiny(kind: str, parameters: dict[str, object], config: type = LlamaConfig, *, longest: int = 200) -> LlamaConfig:
    """Return the configuration of a model with original length ``longest``."""
    return config(
        vocab_size=11,
        hidden_size=2 * D_HEAD,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=longest,
        rope_parameters={"rope_theta": 10_000.0, "rope_type": kind, **parameters},
        attn_implementation="eager",
    )


@pytest.mark.parametrize("d_head", [8, 64, 128])
@pytest.mark.parametrize("factor", [1.0, 8.0])
@pytest.mark.parametrize("length", [6, 64, 2048, 32_768])
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("kind", ["linear", "yarn"])
@pytest.mark.covering(1)
def test_frequencies_and_gain_equal_those_of_transformers(kind, base, length, factor, d_head):
    config = tiny(kind, {"factor": factor, "rope_theta": base}, longest=length)
    config.head_dim = d_head
    expected, gain = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    scaling = {"linear": LinearInterpolation, "yarn": YaRN}[kind](factor=factor, base=base)
    settings = replace(scaling, original_length=length) if kind == "yarn" else scaling
    module = settings.build(EncodingSize(d_model=2 * d_head, num_heads=2, d_head=d_head))
    torch.testing.assert_close(module.scaled_frequencies(torch.device("cpu")).float(), expected, rtol=1e-5, atol=0)
    assert module.gain == pytest.approx(gain)


@pytest.mark.parametrize("length", [5, 64, 65, 1_000, 100_000])
def test_dynamic_ntk_frequencies_equal_those_of_transformers_at_the_same_length(length):
    config = tiny("dynamic", {"factor": 8.0}, longest=64)
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](config, torch.device("cpu"), seq_len=length)
    module = build_in_eval(DynamicNTK(factor=8.0, original_length=64))
    actual = module.frequencies(D_HEAD, torch.tensor([[3]]), torch.tensor([[length - 1, 3]]))
    torch.testing.assert_close(actual[:, 0, 0, 0].float(), expected, rtol=1e-5, atol=0)


def to_interleaved(x: torch.Tensor) -> torch.Tensor:
    """Make components i and i + d/2, which transformers rotates together, adjacent."""
    return torch.stack(x.chunk(2, dim=-1), dim=-1).flatten(-2)


@over_theirs
def test_rotated_queries_and_keys_equal_reordered_ones_of_llama(kind, rng):
    settings, parameters = THEIRS[kind]
    rotary = LlamaRotaryEmbedding(tiny(kind, parameters))
    query, key = (torch.from_numpy(side) for side in sample_queries_and_keys(rng, queries=7))
    ids = torch.from_numpy(rng.integers(0, 400, size=(2, 7)))
    expected = apply_rotary_pos_emb(query, key, *rotary(query, ids))
    for theirs, side in zip(expected, (query, key), strict=True):
        ours = build_in_eval(settings).rotate(to_interleaved(side), ids)
        torch.testing.assert_close(ours, to_interleaved(theirs), atol=2e-4, rtol=0)


def test_dynamic_scores_of_the_last_query_equal_those_of_llama(rng):
    rotary = LlamaRotaryEmbedding(tiny("dynamic", {"factor": 4.0}, longest=20))
    query, key = (torch.from_numpy(side) for side in sample_queries_and_keys(rng, queries=7))
    ids = torch.tensor([[3, 9, 40, 40, 2, 99, 50], [99, 0, 5, 6, 7, 8, 9]])
    theirs, others = apply_rotary_pos_emb(query, key, *rotary(query, ids))
    module = build_in_eval(DynamicNTK(factor=4.0, original_length=20))
    actual = scores_of(module, to_interleaved(query).numpy(), to_interleaved(key).numpy(), ids.numpy())
    np.testing.assert_allclose(actual[:, :, -1], (theirs @ others.mT)[:, :, -1].numpy(), atol=5e-4)


def attention_weights(layer: nn.Module, module: Encoding, normalized: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the weights of a transformers layer with our rotation and reordered projections."""

    def side(projection: nn.Linear) -> torch.Tensor:
        weight, bias = (
            to_interleaved(part.unflatten(0, (2, D_HEAD)).movedim(1, -1)).movedim(-1, 1).flatten(0, 1)
            for part in (projection.weight, projection.bias if projection.bias is not None else torch.zeros(2 * D_HEAD))
        )
        return nn.functional.linear(normalized, weight, bias).unflatten(-1, (2, D_HEAD)).transpose(1, 2)

    query, key = side(layer.q_proj), side(layer.k_proj)
    scores = module.scores(module.rotate(query, ids), module.rotate(key, ids), ids, ids) / math.sqrt(D_HEAD)
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(dim=-1)


def reference_weights(model: nn.Module, tokens: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the first layer's weights; without the mask, transformers takes the IDs for packed sequences."""
    actual = model(tokens, position_ids=ids, attention_mask=torch.ones_like(tokens), output_attentions=True)
    return actual.attentions[0]


@pytest.mark.parametrize(("config", "model"), [(LlamaConfig, LlamaModel), (Qwen2Config, Qwen2Model)])
@pytest.mark.parametrize("kind", [*THEIRS, "dynamic"])
@torch.no_grad()
def test_attention_weights_equal_those_of_a_model_with_reordered_projections(kind, config, model, rng):
    settings, parameters = THEIRS.get(kind, (DynamicNTK(factor=4.0, original_length=200), {"factor": 4.0}))
    theirs = model(tiny(kind, parameters, config)).eval()
    randomize(theirs)
    tokens, ids = torch.from_numpy(rng.integers(0, 11, size=(2, 9))), torch.arange(9) * torch.tensor([[3], [50]])
    ids[:, 0] = 450
    expected = reference_weights(theirs, tokens, ids)
    normalized = theirs.layers[0].input_layernorm(theirs.embed_tokens(tokens))
    actual = attention_weights(theirs.layers[0].self_attn, build_in_eval(settings), normalized, ids)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert (
        expected - attention_weights(theirs.layers[0].self_attn, build_in_eval(Rotary()), normalized, ids)
    ).abs().max() > (1e-2 if kind != "default" else -1)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
@torch.no_grad()
def test_partial_rotary_weights_equal_those_of_gpt_neox_with_reordered_projections(share, rng):
    config = GPTNeoXConfig(
        vocab_size=11,
        hidden_size=2 * D_HEAD,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share},
        attn_implementation="eager",
    )
    theirs = GPTNeoXModel(config).eval()
    randomize(theirs)
    tokens, ids = torch.from_numpy(rng.integers(0, 11, size=(2, 9))), torch.from_numpy(rng.integers(0, 99, size=(2, 9)))
    expected = reference_weights(theirs, tokens, ids)
    normalized = theirs.layers[0].input_layernorm(theirs.embed_in(tokens))
    projected = theirs.layers[0].attention.query_key_value(normalized).unflatten(-1, (2, 3 * D_HEAD)).transpose(1, 2)
    module, num_rotated = build_in_eval(PartialRotary(share=share)), int(share * D_HEAD)
    query, key = (
        module.rotate(torch.cat([to_interleaved(side[..., :num_rotated]), side[..., num_rotated:]], dim=-1), ids)
        for side in projected.chunk(3, dim=-1)[:2]
    )
    scores = query @ key.mT / math.sqrt(D_HEAD)
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    torch.testing.assert_close(scores.masked_fill(future, -math.inf).softmax(dim=-1), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_partial_rotary_rotates_the_same_components_as_gpt_j(share, rng):
    x, num_rotated = torch.from_numpy(sample_queries_and_keys(rng)[1]), int(share * D_HEAD)
    ids = torch.from_numpy(rng.integers(0, 500, size=(2, 7)))
    sin, cos = gptj.create_sinusoidal_positions(500, num_rotated)[ids].chunk(2, dim=-1)
    turned = gptj.apply_rotary_pos_emb(x[..., :num_rotated].transpose(1, 2), sin, cos).transpose(1, 2)
    expected = torch.cat([turned, x[..., num_rotated:]], dim=-1)
    torch.testing.assert_close(build_in_eval(PartialRotary(share=share)).rotate(x, ids), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        (Rotary(base=500.0), {"base": 500.0}),
        (PartialRotary(share=0.5), {"dim": D_HEAD // 2}),
        (LinearInterpolation(factor=4.0), {"interpolation_factor": 4.0}),
        (NTK(factor=4.0), {"base_rescale_factor": 4.0}),
    ],
)
def test_rotated_keys_equal_those_of_x_transformers(settings, theirs, rng):
    x, ids = torch.from_numpy(sample_queries_and_keys(rng)[1]), torch.from_numpy(rng.integers(0, 500, size=(2, 7)))
    angles, scale = x_transformers.RotaryEmbedding(**{"dim": D_HEAD, **theirs})(ids)
    expected = x_transformers.apply_rotary_pos_emb(x, angles, scale)
    torch.testing.assert_close(build_in_eval(settings).rotate(x, ids), expected, atol=2e-4, rtol=0)


@over_scaled
def test_a_scaling_is_active_at_evaluation_and_not_in_training(settings, rng):
    (query, key), ids = sample_queries_and_keys(rng, queries=7), rng.integers(0, 400, size=(2, 7))
    plain = scores_of(build_in_eval(Rotary()), query, key, ids)
    np.testing.assert_allclose(scores_of(settings.build(SIZE).train(), query, key, ids), plain, atol=1e-5)
    scaled = scores_of(settings.build(SIZE).eval(), query, key, ids)
    assert np.abs(scaled - plain).max() > 0.1


@over_scaled
def test_in_training_activates_a_scaling_in_training(settings, rng):
    (query, key), ids = sample_queries_and_keys(rng), rng.integers(0, 400, size=(2, 7))
    module = replace(settings, in_training=True).build(SIZE)
    actual, later = (scores_of(module.train(mode), query, key, ids) for mode in (True, False))
    np.testing.assert_array_equal(actual, later)
    np.testing.assert_array_equal(actual, scores_of(build_in_eval(settings), query, key, ids))


@pytest.mark.parametrize(
    "settings",
    [
        LinearInterpolation(factor=1.0),
        NTK(factor=1.0),
        YaRN(factor=1.0, original_length=200),
        DynamicNTK(factor=9.0, original_length=400),
        Weave(window=400),
        PartialRotary(share=1.0),
    ],
)
def test_scalings_equal_plain_rotary_when_nothing_is_scaled(settings, rng):
    (query, key), ids = sample_queries_and_keys(rng), rng.integers(0, 400, size=(2, 7))
    plain = Rotary(base=100.0, fastest=3.0)
    actual = scores_of(build_in_eval(replace(settings, base=100.0, fastest=3.0)), query, key, ids)
    np.testing.assert_allclose(actual, scores_of(build_in_eval(plain), query, key, ids), atol=1e-5)


def test_yarn_interpolates_all_slower_pairs_if_no_pair_completes_a_turn_in_training():
    module = YaRN(factor=4.0, original_length=2).build(EncodingSize(d_model=256, num_heads=2, d_head=128))
    plain, scaled = (actual(torch.device("cpu")) for actual in (module.plain_frequencies, module.scaled_frequencies))
    torch.testing.assert_close(scaled[1:], plain[1:] / 4)


def test_faster_angles_count_as_more_turns_in_the_yarn_ramp():
    faster, longer = YaRN(fastest=4.0, original_length=500), YaRN(original_length=2_000)
    actual, reference = (
        build_in_eval(settings).scaled_frequencies(torch.device("cpu")) for settings in (faster, longer)
    )
    torch.testing.assert_close(actual, 4 * reference)


@pytest.mark.parametrize("name", MADE_IN_SCORES)
@pytest.mark.parametrize("in_training", [False, True])
def test_gradients_of_pairwise_scores_equal_finite_differences(in_training, name, rng):
    module = replace(SCALED[name], in_training=in_training).build(SIZE)
    ids = torch.from_numpy(rng.integers(0, 60, size=(2, 7)))
    query, key, upstream, *steps = (
        torch.from_numpy(rng.standard_normal(shape)).float()
        for shape in ((2, 2, 5, D_HEAD), (2, 2, 7, D_HEAD), (2, 2, 5, 7), (2, 2, 5, D_HEAD), (2, 2, 7, D_HEAD))
    )

    def total(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (module.scores(query, key, ids[:, 2:], ids) * upstream).sum()

    inputs = query.requires_grad_(), key.requires_grad_()
    slopes = torch.autograd.grad(total(*inputs), inputs)
    # Scores are linear in queries and in keys, so a step of any size gives the slope.
    with torch.no_grad():
        for moved, slope, step in (
            ((query + steps[0], key), slopes[0], steps[0]),
            ((query, key + steps[1]), *(slopes[1], steps[1])),
        ):
            torch.testing.assert_close(total(*moved) - total(query, key), (slope * step).sum(), atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", MADE_IN_SCORES)
def test_training_saves_no_scores_of_single_component_pairs(name, rng):
    module = replace(SCALED[name], in_training=True).build(SIZE)
    query, key = (torch.from_numpy(side).requires_grad_() for side in sample_queries_and_keys(rng, queries=7))
    ids, held = torch.from_numpy(rng.integers(0, 60, size=(2, 7))), []

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        held.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
        module.scores(query, key, ids, ids)
    # The distances, shared by all pairs.
    assert len({tensor.data_ptr() for tensor in held if tensor.shape[-2:] == (7, 7)}) == 1


def small_decoder(settings: EncodingSettings, num_levels: int = 1, **options: object) -> Decoder:
    """Return a decoder of two layers with random parameters, in evaluation mode."""
    decoder_settings = DecoderSettings(
        **{"num_layers": 2, "d_model": 32, "num_heads": 2, "temperature": 1.0, **options}
    )
    decoder = Decoder(decoder_settings, settings, vocabulary_size=6, separators=(4, 5), num_levels=num_levels)
    randomize(decoder)
    return decoder.eval()


@pytest.mark.parametrize("name", MADE_IN_SCORES)
@pytest.mark.parametrize(
    ("options", "num_levels", "chunk_elements"),
    [
        ({"length_scaling": "none"}, 2, 1 << 21),
        ({"length_scaling": "log", "previous_token_mix": True}, 1, 1),
        ({"length_scaling": "learned", "weights": "top_k", "top_k": 3}, 1, 1 << 21),
        ({"weights": "entmax"}, 2, 1),
    ],
)
@torch.no_grad()
def test_cached_decoding_equals_one_pass_when_ids_exceed_the_training_range(
    options, num_levels, chunk_elements, name, rng, monkeypatch
):
    monkeypatch.setattr("lengthwise.model.attention.MAX_CHUNK_SCORES", chunk_elements)
    decoder = small_decoder(SCALED[name], num_levels, **options)
    tokens = torch.from_numpy(rng.integers(0, 6, size=(2, 14)))
    # IDs that rise above the original length, with falls and repeats.
    ids = torch.from_numpy(rng.integers(0, 15 + 6 * np.arange(14), size=(num_levels, 2, 14)))
    whole, _ = decoder(tokens, ids)
    for sizes in ([1] * 14, [5, 1, 8], [9, 5]):
        parts, cache, start = [], None, 0
        for size in sizes:
            piece = slice(start, start + size)
            hidden, cache = decoder(tokens[:, piece], ids[:, :, piece], cache)
            parts.append(hidden)
            start += size
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-5, rtol=0)


@over_scaled
@torch.no_grad()
def test_a_larger_later_id_does_not_change_earlier_hidden_states(settings, rng):
    decoder, tokens = small_decoder(settings), torch.from_numpy(rng.integers(0, 6, size=(2, 12)))
    ids = torch.from_numpy(rng.integers(0, 60, size=(2, 12)))
    before, _ = decoder(tokens, ids)
    ids[:, 7] = 5_000
    after, _ = decoder(tokens, ids)
    torch.testing.assert_close(after[:, :7], before[:, :7], atol=1e-6, rtol=0)
    assert (after[:, 7] - before[:, 7]).abs().max() > 1e-2


@over_scaled
@torch.no_grad()
def test_each_sequence_of_a_batch_is_scaled_by_its_own_ids(settings, rng):
    decoder, tokens = small_decoder(settings), torch.from_numpy(rng.integers(0, 6, size=(3, 12)))
    ids = torch.from_numpy(rng.integers(0, [[10], [100], [10_000]], size=(3, 12)))
    whole, _ = decoder(tokens, ids)
    for sequence in range(3):
        alone, _ = decoder(tokens[sequence : sequence + 1], ids[sequence : sequence + 1])
        torch.testing.assert_close(alone[0], whole[sequence], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", [name for name, settings in SCALED.items() if settings.shift_invariant])
@pytest.mark.parametrize("shift", [1, 1_000_000])
@torch.no_grad()
def test_scores_of_a_shift_invariant_scaling_depend_only_on_distances(shift, name, rng):
    (query, key), ids = sample_queries_and_keys(rng, queries=7), rng.integers(0, 400, size=(2, 7))
    module = build_in_eval(SCALED[name])
    there = scores_of(module, query, key, ids + shift)
    np.testing.assert_allclose(there, scores_of(module, query, key, ids), atol=2e-5)


def test_dynamic_ntk_scores_depend_on_more_than_distances(rng):
    (query, key), ids = sample_queries_and_keys(rng, queries=7), rng.integers(0, 400, size=(2, 7))
    module = build_in_eval(SCALED["dynamic"])
    there = scores_of(module, query, key, ids + 1_000)
    assert np.abs(there - scores_of(module, query, key, ids)).max() > 0.1
    assert not DynamicNTK.shift_invariant
