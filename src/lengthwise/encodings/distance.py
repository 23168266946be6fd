"""ID distances between queries and keys, and biases that depend only on these distances."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Real
from torch import Tensor


def distances(
    query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
) -> Real[Tensor, "batch query key"]:
    """Return the query's ID minus the key's ID, which can be negative for a visible key if IDs are coupled."""
    return query_ids[:, :, None] - key_ids[:, None, :]


def bias_by_distance(
    function: Callable[[Float[Tensor, " pairs"]], Float[Tensor, "heads pairs"]],
    query_ids: Real[Tensor, "batch query"],
    key_ids: Real[Tensor, "batch key"],
) -> Float[Tensor, "batch heads query key"]:
    """Return ``function`` of the signed distance for every query and key."""
    distance = distances(query_ids, key_ids)
    # Integer distances repeat, so compute each value once on a CPU. On a GPU, reading the range would synchronize.
    if distance.numel() and not distance.is_floating_point() and distance.device.type == "cpu":
        smallest, largest = (int(bound) for bound in distance.aminmax())
        if largest - smallest < distance.numel():
            table = function(torch.arange(smallest, largest + 1).float())
            return _per_pair(table.index_select(1, (distance - smallest).flatten()), distance)
    return _per_pair(function(distance.flatten().float()), distance)


def _per_pair(values: Float[Tensor, "heads pairs"], pairs: Tensor) -> Float[Tensor, "batch heads query key"]:
    return values.view(len(values), *pairs.shape).transpose(0, 1)
