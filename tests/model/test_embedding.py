"""Lookup of embeddings: its backward pass for a GPU gives the gradient of PyTorch."""

import torch

from lengthwise.model.embedding import ProductLookup, look_up


def test_a_product_gives_the_gradient_of_the_lookup():
    torch.manual_seed(0)
    table, indices, gradient = torch.randn(7, 5), torch.randint(7, (3, 11)), torch.randn(3, 11, 5)
    results = []
    for function in (lambda weights: ProductLookup.apply(weights, indices), lambda weights: look_up(weights, indices)):
        weights = table.clone().requires_grad_()
        rows = function(weights)
        rows.backward(gradient)
        results.append((rows.detach(), weights.grad))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])
    expected = torch.zeros(7, 5).index_add_(0, indices.flatten(), gradient.flatten(0, 1))
    torch.testing.assert_close(results[0][1], expected)
