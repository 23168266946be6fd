"""Lookup of embeddings: its backward pass for a GPU gives the gradient of PyTorch; segments of separators."""

import torch

from lengthwise.encodings import NoPE
from lengthwise.model.decoder import Decoder
from lengthwise.model.decoder_settings import DecoderSettings
from lengthwise.model.fast.embedding import OneHotGradientLookup, look_up_rows


def test_a_product_gives_the_gradient_of_the_lookup():
    torch.manual_seed(0)
    table, indices, gradient = torch.randn(7, 5), torch.randint(7, (3, 11)), torch.randn(3, 11, 5)
    results = []
    for function in (
        lambda weights: OneHotGradientLookup.apply(weights, indices),
        lambda weights: look_up_rows(weights, indices),
    ):
        weights = table.clone().requires_grad_()
        rows = function(weights)
        rows.backward(gradient)
        results.append((rows.detach(), weights.grad))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])
    expected = torch.zeros(7, 5).index_add_(0, indices.flatten(), gradient.flatten(0, 1))
    torch.testing.assert_close(results[0][1], expected)


def test_a_separator_has_the_segment_that_it_ends():
    """The end token of parity depends on the separator: a head that reads only the prompt must see it."""
    torch.manual_seed(0)
    decoder = Decoder(DecoderSettings(previous_token_mix=False), NoPE(), vocabulary_size=6, separators=(4, 5))
    with torch.no_grad():
        decoder.segment.copy_(torch.tensor([10.0, 20.0, 30.0])[:, None].expand(-1, decoder.segment.shape[1]))
    tokens = torch.tensor([[0, 1, 4, 2, 5, 3, 0]])
    ids = torch.zeros(1, 1, 7, dtype=torch.long)
    expected = torch.tensor([10.0, 10, 10, 20, 20, 30, 30])
    segments = decoder.embed_inputs(tokens, ids, None)[0] - decoder.embed_tokens(tokens)
    torch.testing.assert_close(segments, expected[None, :, None].expand_as(segments))
    for split in range(1, 7):
        _, cache = decoder.embed_inputs(tokens[:, :split], ids[..., :split], None)
        rest = decoder.embed_inputs(tokens[:, split:], ids[..., split:], cache)[0] - decoder.embed_tokens(
            tokens[:, split:]
        )
        torch.testing.assert_close(rest, segments[:, split:])
