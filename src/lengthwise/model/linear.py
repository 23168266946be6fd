"""Linear layer whose large float32 products use oneDNN on processors with AVX-512, for faster training steps."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

# Builds of PyTorch with MKL compute float32 products with it. On AMD processors with AVX-512, oneDNN takes half the
# time of MKL (benchmarks/speed.md), because MKL does not use AVX-512 there. Without AVX-512, MKL takes less time.
PREFERS_ONEDNN = "AVX512" in torch.backends.cpu.get_cpu_capability()
HAS_BOTH_LIBRARIES = (
    torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
)
# Products with fewer multiplications take less time with MKL, because a call of oneDNN has a larger fixed cost.
MIN_MULTIPLICATIONS = 1 << 20


class Linear(nn.Linear):
    """Linear layer with the same weights, initial values and results as ``nn.Linear`` up to rounding."""

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """Return ``x @ weight.T + bias``."""
        return linear(x, self.weight, self.bias)


def linear(
    x: Float[Tensor, "*batch inputs"],
    weight: Float[Tensor, "outputs inputs"],
    bias: Float[Tensor, " outputs"] | None = None,
) -> Float[Tensor, "*batch outputs"]:
    """Return ``x @ weight.T + bias`` from the library that takes less time for these sizes."""
    if not _suits_onednn(x, weight):
        return nn.functional.linear(x, weight, bias)
    product: Tensor = _Product.apply(x.reshape(-1, x.shape[-1]), weight, bias)  # type: ignore[no-untyped-call]
    return product.view(*x.shape[:-1], len(weight))


def _suits_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        HAS_BOTH_LIBRARIES
        and PREFERS_ONEDNN
        and x.numel() * len(weight) >= MIN_MULTIPLICATIONS
        and x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
    )


class _Product(torch.autograd.Function):
    """Product with a transposed matrix, plus a bias, with all products of both passes in oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of ``x``, ``weight`` and ``bias``."""
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        d_x = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            d_x = _multiply(gradient, weight.T)
        if ctx.needs_input_grad[1]:
            # The product is faster if its first matrix has fewer rows.
            is_wide = gradient.shape[1] > x.shape[1]
            d_weight = _multiply(x.T, gradient.T).T if is_wide else _multiply(gradient.T, x.T)
        if ctx.needs_input_grad[2]:
            d_bias = gradient.sum(dim=0)
        return d_x, d_weight, d_bias


def _multiply(
    x: Float[Tensor, "rows inner"], matrix: Float[Tensor, "columns inner"], bias: Tensor | None = None
) -> Float[Tensor, "rows columns"]:
    """Return ``x @ matrix.T`` plus an optional bias per column."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, matrix, bias, "none", [], "")
    return product
