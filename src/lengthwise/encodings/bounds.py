"""Learned numbers that have to stay within bounds."""

from typing import Any

import torch
from torch import Tensor, nn


class _Clamp(torch.autograd.Function):
    """A clamp whose gradient is that of the number itself: a plain one would pass nothing beyond its bounds."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, low: float, high: float) -> Tensor:
        """The nearest number within the bounds."""
        return parameter.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """As if there were no bounds."""
        return gradients[0], None, None


def bounded(start: Tensor, low: float, high: float) -> nn.Parameter:
    """A parameter that learning never leads beyond the bounds, and always back from beyond them.

    Gradients that lead outward are dropped from the sum over all uses, so it does not matter in how many chunks the
    parameter was used.
    """
    parameter = nn.Parameter(start)

    def keep(gradient: Tensor) -> Tensor:
        # A step goes against the gradient.
        outward = (parameter <= low) & (gradient > 0) | (parameter >= high) & (gradient < 0)
        return gradient.masked_fill(outward, 0.0)

    parameter.register_hook(keep)  # type: ignore[no-untyped-call]
    return parameter


def within(parameter: Tensor, low: float, high: float) -> Tensor:
    """The parameter clamped to ``low`` to ``high``."""
    clamped: Tensor = _Clamp.apply(parameter, low, high)  # type: ignore[no-untyped-call]
    return clamped
