"""Parameters that stay between a lower and an upper bound during training."""

from torch import Tensor, nn


def make_clamped_parameter(initial_value: Tensor, low: float, high: float) -> nn.Parameter:
    """Return a parameter with a gradient of 0 at elements that an optimizer step would move out of the bounds.

    A hook masks the gradient after summing over all uses of the parameter. The result therefore does not depend on how
    attention divides the queries into chunks.
    """
    parameter = nn.Parameter(initial_value)

    def mask_gradient(gradient: Tensor) -> Tensor:
        # An optimizer step has the opposite sign of the gradient.
        leaves_bounds = (parameter <= low) & (gradient > 0) | (parameter >= high) & (gradient < 0)
        return gradient.masked_fill(leaves_bounds, 0.0)

    parameter.register_hook(mask_gradient)  # type: ignore[no-untyped-call]
    return parameter


def clamp_straight_through(parameter: Tensor, low: float, high: float) -> Tensor:
    """Return the parameter clamped between ``low`` and ``high``; the gradient is 1 also outside the bounds."""
    constant = parameter.detach()
    return parameter - constant + constant.clamp(low, high)
