"""Tests of heads that read only one of several ID levels."""

import pytest
import torch
from tests.support.cases import small_decoder, small_encoding

from lengthwise.encodings import ENCODINGS, EncodingSize
from lengthwise.encodings.multi_level import MultiLevelEncoding
from lengthwise.encodings.rotary import RotaryEncoding
from lengthwise.model.attention_scores import AttentionHooks
from lengthwise.tasks import Parity

# Their IDs change the embeddings, which all heads read, or no weight of some or all heads among so few tokens.
LEFT_OUT = ("learned", "sinusoidal", "nope", "nape", "hard_alibi", "cope", "selective_rotary")


def decoder_of(name, **settings):
    options = {"num_heads": 4, "level_per_head": True, "length_scaling": "none", "previous_token_mix": False}
    return small_decoder(small_encoding(name), Parity(), num_levels=2, **(options | settings))


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name not in LEFT_OUT])
@torch.no_grad()
def test_a_head_reads_the_ids_of_its_level_only(name, rng):
    decoder = decoder_of(name)
    tokens = torch.from_numpy(rng.integers(0, 2, size=(1, 9)))
    ids = torch.from_numpy(rng.permuted(range(9), axis=0)[None, None].repeat(2, axis=0))
    changed = torch.stack([ids[0], ids[1].flip(-1)])
    found = []
    for each in (ids, changed):
        layers: list[torch.Tensor] = []
        decoder(tokens, each, hooks=AttentionHooks(on_weights=layers.append))
        found.append(layers[0])
    difference = (found[0] - found[1]).abs().amax(dim=(0, 2, 3))
    assert (difference[::2] < 1e-6).all()
    assert (difference[1::2] > 1e-4).all()


@torch.no_grad()
def test_one_bias_for_all_heads_and_sequences_is_enough(rng):
    decoder = decoder_of("alibi")
    for level in decoder.encoding.levels:
        level.bias = lambda query_ids, key_ids: -(query_ids[:1, None, :, None] - key_ids[:1, None, None]).abs().float()
    hidden, _ = decoder(torch.zeros(2, 5, dtype=torch.long), torch.from_numpy(rng.integers(0, 9, size=(2, 2, 5))))
    assert hidden.shape[:2] == (2, 5)


@pytest.mark.parametrize("name", ENCODINGS)
@torch.no_grad()
def test_cached_decoding_equals_one_pass_with_a_level_per_head(name, rng):
    decoder = decoder_of(name)
    tokens = torch.from_numpy(rng.integers(0, 2, size=(2, 9)))
    ids = torch.from_numpy(rng.integers(0, 9, size=(2, 2, 9)))
    whole, _ = decoder(tokens, ids)
    first, cache = decoder(tokens[:, :5], ids[:, :, :5])
    last, _ = decoder(tokens[:, 5:], ids[:, :, 5:], cache)
    torch.testing.assert_close(torch.cat([first, last], dim=1), whole, atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_queries", [1, 4, 9])
@pytest.mark.parametrize("options", [{"num_levels": 1}, {"num_levels": 2}, {"num_levels": 2, "one_per_head": True}])
@pytest.mark.parametrize("name", ENCODINGS)
@torch.no_grad()
@pytest.mark.covering(1)
def test_queries_and_keys_rotate_together_as_they_rotate_alone(name, options, num_queries, rng):
    size = EncodingSize(d_model=64, num_heads=4, d_head=16)
    encoding = MultiLevelEncoding(small_encoding(name), size, **options)
    ids = torch.from_numpy(rng.integers(0, 9, size=(options["num_levels"], 2, 9)))
    query, key = torch.randn(2, 4, num_queries, 16), torch.randn(2, 4, 9, 16)
    both = encoding.rotate_queries_and_keys(query, key, ids)
    torch.testing.assert_close(both, (encoding.rotate(query, ids[:, :, 9 - num_queries :]), encoding.rotate(key, ids)))


def test_a_subclass_with_its_own_rotation_rotates_queries_and_keys_by_it():
    class Reversed(RotaryEncoding):
        def rotate(self, x, position_ids):
            return super().rotate(x, -position_ids)

    query, key, ids = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.arange(5)[None]
    encoding = Reversed()
    expected = encoding.rotate(query, ids[:, 2:]), encoding.rotate(key, ids)
    torch.testing.assert_close(encoding.rotate_queries_and_keys(query, key, ids), expected)
