"""The linear layer of the decoder: its results and gradients, and the library that computes them."""

import pytest
import torch
from torch.nn.functional import linear as torch_linear

from lengthwise.model import linear as linear_module
from lengthwise.model.linear import HAS_BOTH_LIBRARIES, MIN_MULTIPLICATIONS, Linear, linear

needs_both_libraries = pytest.mark.skipif(not HAS_BOTH_LIBRARIES, reason="this build of PyTorch has only one library")


@pytest.fixture(autouse=True)
def with_avx512(monkeypatch):
    """Use oneDNN as on a processor with AVX-512; its results are the same on every processor."""
    monkeypatch.setattr(linear_module, "PREFERS_ONEDNN", True)


def random_leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def results_and_gradients(function, leaves, weights):
    """Return the results of a function and the gradients of their weighted sum, in float64."""
    leaves = [leaf.detach().to(weights.dtype).requires_grad_() for leaf in leaves]
    result = function(*leaves)
    (result * weights).sum().backward()
    return [tensor.double() for tensor in (result, *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 5), (4096, 64, 32), (4096, 32, 64), (7, 300, 48, 48), (1, 1024, 1024)], ids=str)
def test_a_linear_layer_and_its_gradients_equal_those_of_torch(shape, has_bias):
    torch.manual_seed(0)
    *rows, inputs, outputs = (2, *shape)
    leaves = [random_leaf(*rows, inputs), random_leaf(outputs, inputs)] + [random_leaf(outputs)] * has_bias
    weights = torch.randn(*rows, outputs)
    ours = results_and_gradients(linear, leaves, weights)
    for actual, expected in zip(ours, results_and_gradients(torch_linear, leaves, weights.double()), strict=True):
        assert (actual - expected).abs().max() <= 2e-6 * expected.abs().max()


@needs_both_libraries
def test_a_large_product_uses_onednn_and_a_small_one_does_not():
    layer = Linear(64, 64)
    rows = MIN_MULTIPLICATIONS // 64**2
    assert "Product" in layer(torch.randn(rows, 64)).grad_fn.next_functions[0][0].name()
    assert "Product" not in layer(torch.randn(rows - 1, 64)).grad_fn.name()


@needs_both_libraries
def test_without_avx512_products_use_the_library_of_torch(monkeypatch):
    monkeypatch.setattr(linear_module, "PREFERS_ONEDNN", False)
    x, weight = random_leaf(1024, 64), random_leaf(64, 64)
    assert "Product" not in linear(x, weight).grad_fn.name()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_products_of_other_types_are_those_of_torch(dtype):
    x, weight = random_leaf(1024, 64, dtype=dtype), random_leaf(64, 64, dtype=dtype)
    assert torch.equal(linear(x, weight), torch_linear(x, weight))


def test_autocast_applies_to_large_products():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Linear(64, 64)(torch.randn(1024, 64)).dtype == torch.bfloat16


@needs_both_libraries
def test_frozen_weights_and_inputs_get_no_gradient():
    x, weight, bias = random_leaf(1024, 64), random_leaf(64, 64).detach(), random_leaf(64)
    linear(x, weight, bias).sum().backward()
    assert weight.grad is None
    torch.testing.assert_close(x.grad, weight.sum(dim=0).expand(1024, -1))
    torch.testing.assert_close(bias.grad, torch.full((64,), 1024.0))
