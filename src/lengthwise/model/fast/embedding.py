"""Lookup of embeddings whose gradient takes less time on a GPU if the table is small."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lengthwise.model.fast.switch import fast_paths_enabled

# Up to this number of rows, a matrix product computes the gradient of the table in less time than adding row by row,
# where most additions wait for another one to the same row (benchmarks/speed.md).
MAX_PRODUCT_ROWS = 256


def look_up_rows(
    table: Float[Tensor, "row width"], indices: Int[Tensor, "batch token"]
) -> Float[Tensor, "batch token width"]:
    """Return the rows of the table at the indices."""
    if table.device.type == "cpu" or len(table) > MAX_PRODUCT_ROWS or not fast_paths_enabled():
        return nn.functional.embedding(indices, table)
    rows: Tensor = OneHotGradientLookup.apply(table, indices)  # type: ignore[no-untyped-call]
    return rows


class OneHotGradientLookup(torch.autograd.Function):
    """Lookup whose backward pass multiplies the gradient by a matrix of zeros and ones."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, indices: Tensor) -> Tensor:
        """Return the rows of the table at the indices."""
        ctx.save_for_backward(indices)
        ctx.num_rows = len(table)
        return nn.functional.embedding(indices, table)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the table."""
        (indices,), gradient = ctx.saved_tensors, gradients[0].flatten(0, -2)
        rows = torch.arange(ctx.num_rows, device=indices.device)
        return (rows[:, None] == indices.flatten()).to(gradient.dtype) @ gradient, None
