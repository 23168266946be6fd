"""ID distances of queries and keys, and biases that depend on nothing else."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Real
from torch import Tensor


def distances(
    query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
) -> Real[Tensor, "batch query key"]:
    """The query's ID minus the key's: negative where a visible key has the larger one, as coupled IDs allow."""
    return query_ids[:, :, None] - key_ids[:, None, :]


def by_distance(
    function: Callable[[Float[Tensor, " pairs"]], Float[Tensor, "heads pairs"]],
    query_ids: Real[Tensor, "batch query"],
    key_ids: Real[Tensor, "batch key"],
) -> Float[Tensor, "batch heads query key"]:
    """A function of the signed distance, for every pair of query and key."""
    apart = distances(query_ids, key_ids)
    # Whole distances recur, so each is worked out once and looked up. Reading their range would make a GPU wait.
    if apart.numel() and not apart.is_floating_point() and apart.device.type == "cpu":
        smallest, largest = (int(bound) for bound in apart.aminmax())
        if largest - smallest < apart.numel():
            table = function(torch.arange(smallest, largest + 1).float())
            return _per_pair(table.index_select(1, (apart - smallest).flatten()), apart)
    return _per_pair(function(apart.flatten().float()), apart)


def _per_pair(values: Float[Tensor, "heads pairs"], pairs: Tensor) -> Float[Tensor, "batch heads query key"]:
    return values.view(len(values), *pairs.shape).transpose(0, 1)
