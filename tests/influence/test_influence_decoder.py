"""Influence queries on the decoder of this package, for every encoding and option."""

import math

import pytest
import torch

import lengthwise as lw
from lengthwise.core.errors import ModelError
from lengthwise.encodings import ENCODINGS
from lengthwise.encodings.encoding import Encoding, EncodingSettings
from lengthwise.evaluation.language_model import check_exact_hiding
from lengthwise.experiments.decoder_model import DecoderModel
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.model.decoder import Decoder

VOCABULARY, FAR, NEAR = 30, 10, 4
TOKENS = torch.arange(FAR + NEAR) * 7 % VOCABULARY
IDS = torch.tensor([0, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15])
OPTIONS = {
    "plain": {"length_scaling": "none"},
    "log length scale": {"length_scaling": "log"},
    "learned length scale": {"length_scaling": "learned"},
    "entmax": {"weights": "entmax"},
    "top-k": {"weights": "top_k", "top_k": 3},
    "counting": {"weights": "count"},
}
# A convolution over scores reads those of hidden tokens, and sums over earlier tokens include hidden tokens.
READS_NEIGHBORS = ("dape_v2", "cope", "selective_rotary")
over_encodings = pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name not in READS_NEIGHBORS])
over_options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def decoder_of(encoding: str, options: dict, separators: tuple[int, ...] = ()) -> Decoder:
    torch.manual_seed(0)
    settings = lw.DecoderSettings(num_layers=2, d_model=32, num_heads=4, **options)
    decoder = Decoder(settings, ENCODINGS[encoding](), vocabulary_size=VOCABULARY, separators=separators)
    for parameter in decoder.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return decoder.eval()


def after(model: DecoderModel, visible: torch.Tensor) -> torch.Tensor:
    return model.log_probs_with_mask(model.prefill(TOKENS, IDS, FAR), TOKENS[FAR:], IDS[FAR:], visible)


@torch.no_grad()
def in_one_pass(decoder: Decoder, visible: torch.Tensor) -> torch.Tensor:
    """Run all tokens at once; far tokens are hidden from the near tokens."""
    bias = torch.zeros(1, FAR + NEAR, FAR + NEAR)
    bias[0, FAR:, :FAR] = torch.where(visible, 0.0, -math.inf)
    hidden, _ = decoder(TOKENS[None], IDS[None], hooks=AttentionHooks(score_bias=bias))
    return decoder.token_logits(hidden[:, -1:])[0, 0].log_softmax(dim=-1)


@pytest.mark.covering(1)
@over_encodings
@over_options
def test_hiding_cached_states_equals_one_masked_pass(encoding, options):
    decoder = decoder_of(encoding, options)
    visible = torch.rand(5, FAR, generator=torch.Generator().manual_seed(1)) < 0.5
    expected = torch.stack([in_one_pass(decoder, row) for row in visible])
    torch.testing.assert_close(after(DecoderModel(decoder, encoding), visible), expected, rtol=0, atol=1e-4)


@pytest.mark.covering(1)
@over_encodings
@over_options
def test_hiding_all_far_tokens_equals_a_pass_over_near_tokens(encoding, options):
    model = DecoderModel(decoder_of(encoding, options), encoding)
    alone = model.log_probs(TOKENS[None, FAR:], IDS[None, FAR:])
    hidden = after(model, torch.zeros(1, FAR, dtype=torch.bool))
    torch.testing.assert_close(hidden, alone, rtol=0, atol=1e-4)


@over_encodings
@pytest.mark.parametrize("per_query", [False, True])
def test_gate_gradient_equals_finite_differences_of_the_scores(encoding, per_query):
    decoder = decoder_of(encoding, OPTIONS["plain"])
    model = DecoderModel(decoder, encoding)
    states, gates = model.prefill(TOKENS, IDS, FAR), torch.full((FAR,), -math.log(FAR))
    if per_query:
        gates = gates.expand(NEAR, -1).clone()
        gates[: NEAR // 2, 1:4] = -math.inf
    gradient = model.attention_gate_gradient(states, TOKENS[FAR:], IDS[FAR:], gates, lambda log_probs: -log_probs[3])

    def loss(index: int, step: float) -> float:
        bias = torch.zeros(1, NEAR, FAR + NEAR)
        bias[:, :, :FAR] = gates
        bias[:, :, index] += step
        with torch.no_grad():
            hidden, _ = decoder(TOKENS[None, FAR:], IDS[None, FAR:], states, hooks=AttentionHooks(score_bias=bias))
            return float(-decoder.token_logits(hidden[:, -1:])[0, 0].log_softmax(dim=-1)[3])

    by_state = gradient.reshape(-1, FAR).sum(dim=0)
    for index in (0, 2, FAR - 1):
        expected = (loss(index, 0.02) - loss(index, -0.02)) / 0.04
        assert float(by_state[index]) == pytest.approx(expected, abs=2e-3, rel=2e-2)


@pytest.mark.covering(1)
@over_encodings
@pytest.mark.parametrize("options", [options for name, options in OPTIONS.items() if name != "counting"])
def test_attention_weights_sum_to_one_over_visible_keys(encoding, options):
    decoder = decoder_of(encoding, options)
    layers: list[torch.Tensor] = []
    plain, _ = decoder(TOKENS[None], IDS[None])
    recorded, _ = decoder(TOKENS[None], IDS[None], hooks=AttentionHooks(on_weights=layers.append))
    torch.testing.assert_close(recorded, plain)
    assert [tuple(weights.shape) for weights in layers] == [(1, 4, FAR + NEAR, FAR + NEAR)] * 2
    for weights in layers:
        torch.testing.assert_close(weights.sum(dim=-1), torch.ones(1, 4, FAR + NEAR))
        assert weights.triu(1).abs().max() == 0
    model = DecoderModel(decoder, encoding)
    weights = model.attention_weights(model.prefill(TOKENS, IDS, FAR), TOKENS[FAR:], IDS[FAR:])
    expected = torch.stack([weights[0, :, -1, :FAR].mean(dim=0) for weights in layers]).mean(dim=0)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-5)


@over_options
def test_recorded_weights_are_those_that_mix_the_values(options):
    decoder = decoder_of("alibi", options)
    block, layers = decoder.blocks[0], []
    tensors = {}
    block.mix_heads.register_forward_hook(lambda module, inputs, output: tensors.update(heads=inputs[0]))
    block.project.register_forward_hook(lambda module, inputs, output: tensors.update(value=output[..., 64:]))
    decoder(TOKENS[None], IDS[None], hooks=AttentionHooks(on_weights=layers.append))
    value = tensors["value"].view(1, FAR + NEAR, 4, 8).transpose(1, 2)
    expected = (layers[0] @ value).transpose(1, 2).reshape(FAR + NEAR, 32)
    torch.testing.assert_close(tensors["heads"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("encoding", READS_NEIGHBORS)
def test_encoding_that_reads_neighboring_scores_raises(encoding):
    with pytest.raises(
        ModelError, match=r"mixed cannot .* exactly: hidden tokens change the prediction \(\d\.\d+ nats.*; choose"
    ):
        check_exact_hiding(DecoderModel(decoder_of(encoding, OPTIONS["plain"]), "mixed"))


class KeyCounter(Encoding):
    """Encoding whose scores fall with the number of later keys that the query matches, also if these are hidden."""

    has_scores = True

    def scores(self, query, key, query_ids, key_ids):
        """Return scores that depend on the keys between the query and each key."""
        scores = query @ key.mT
        num_queries, num_keys = scores.shape[2:]
        matches = (scores > 0) & torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
        return scores - matches.flip(-1).cumsum(dim=-1).flip(-1)


class CountedKeys(EncodingSettings):
    """Settings of ``KeyCounter``."""

    name = "counted_keys"

    def build(self, decoder_size):
        """Return the encoding."""
        return KeyCounter()


def test_encoding_that_counts_hidden_keys_raises(monkeypatch):
    monkeypatch.setitem(ENCODINGS, "counted_keys", CountedKeys)
    with pytest.raises(ModelError, match=r"counter cannot .* exactly: hidden tokens change the prediction .*; choose"):
        check_exact_hiding(DecoderModel(decoder_of("counted_keys", OPTIONS["plain"]), "counter"))


def test_options_that_carry_earlier_tokens_raise():
    with pytest.raises(ModelError, match=r"mixed cannot .*: previous_token_mix adds .*; train without"):
        DecoderModel(decoder_of("rotary", {"previous_token_mix": True}), "mixed")
    with pytest.raises(ModelError, match=r"counted cannot .*: segments count the separators .*; train without"):
        DecoderModel(decoder_of("rotary", {}, separators=(21,)), "counted")
