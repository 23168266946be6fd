"""ID distances between queries and keys, and biases that depend only on these distances."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.encodings.encoding import KeyIDs, QueryIDs, Scores


def distances(query_ids: QueryIDs, key_ids: KeyIDs) -> Real[Tensor, "batch query key"]:
    """Return the query's ID minus the key's ID; coupled IDs can give a negative distance to a visible key."""
    return query_ids[:, :, None] - key_ids[:, None, :]


def bias_by_distance(
    bias_function: Callable[[Float[Tensor, " pairs"]], Float[Tensor, "heads pairs"]],
    query_ids: QueryIDs,
    key_ids: KeyIDs,
) -> Scores:
    """Return the value of ``bias_function`` at the signed ID distance of every query and key."""
    distance = distances(query_ids, key_ids)
    # Integer distances repeat, so a CPU computes each value once. On a GPU, reading the range would synchronize.
    if distance.numel() and not distance.is_floating_point() and distance.device.type == "cpu":
        min_distance, max_distance = (int(bound) for bound in distance.aminmax())
        if max_distance - min_distance < distance.numel():
            bias_table = bias_function(torch.arange(min_distance, max_distance + 1).float())
            return _unflatten_pairs(bias_table.index_select(1, (distance - min_distance).flatten()), distance.shape)
    return _unflatten_pairs(bias_function(distance.flatten().float()), distance.shape)


def _unflatten_pairs(bias: Float[Tensor, "heads pairs"], distance_shape: torch.Size) -> Scores:
    return bias.view(len(bias), *distance_shape).transpose(0, 1)
