"""Learned numbers that have to stay within bounds."""

from typing import Any

import torch
from torch import Tensor


class _Within(torch.autograd.Function):
    """A clamp; beyond a bound, gradients that lead further out are dropped and those that lead back pass."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, low: float, high: float) -> Tensor:
        """The nearest number within the bounds."""
        ctx.save_for_backward(parameter)
        ctx.bounds = low, high
        return parameter.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """A plain clamp would pass nothing beyond its bounds, and a parameter there would be stuck."""
        (parameter,) = ctx.saved_tensors
        low, high = ctx.bounds
        # A step goes against the gradient.
        outward = (parameter <= low) & (gradients[0] > 0) | (parameter >= high) & (gradients[0] < 0)
        return gradients[0].masked_fill(outward, 0.0), None, None


def within(parameter: Tensor, low: float, high: float) -> Tensor:
    """The parameter clamped to ``low`` to ``high``, in a way that it can be learned back from beyond them."""
    clamped: Tensor = _Within.apply(parameter, low, high)  # type: ignore[no-untyped-call]
    return clamped
