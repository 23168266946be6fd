"""Functions that compute attention weights from scores: the softmax and its alternatives."""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.model.attention import WeightFunction

WEIGHT_FUNCTIONS = ("softmax", "entmax", "top_k", "count")
# Factor of the weights of a counting head. It keeps the sum of the weights near 1 if the head counts few keys.
COUNT_SCALE = 1 / 8


def softmax(scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """Return the softmax over keys, in float32."""
    return scores.float().softmax(dim=-1)


def top_k(scores: Float[Tensor, "batch heads query key"], k: int) -> Float[Tensor, "batch heads query key"]:
    """Return the softmax over the k largest scores of each query (Gupta et al. 2021, arXiv 2106.06899)."""
    if k >= scores.shape[-1]:
        return softmax(scores)
    # Use indexes, not a threshold. With a threshold, rounding errors would affect the selection among equal scores.
    top_scores = scores.topk(k, dim=-1)
    return torch.zeros_like(scores, dtype=torch.float32).scatter(-1, top_scores.indices, softmax(top_scores.values))


def entmax(scores: Float[Tensor, "batch heads query key"], alpha: float) -> Float[Tensor, "batch heads query key"]:
    """Return alpha-entmax weights, which are exactly 0 for most keys (Peters et al. 2019, arXiv 1905.05702)."""
    # The import is local, because only this option needs the library.
    from entmax import entmax15, entmax_bisect  # noqa: PLC0415

    # A constant shift does not change entmax, and large scores would make its threshold inexact.
    scores = scores.float() - scores.detach().float().amax(dim=-1, keepdim=True)
    return entmax15(scores, dim=-1) if alpha == 1.5 else entmax_bisect(scores, alpha, dim=-1)


def scaled_sigmoid(scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """Return ``COUNT_SCALE`` times the sigmoid of each score (Ramapuram et al. 2024, arXiv 2409.04431)."""
    return COUNT_SCALE * scores.float().sigmoid()


def make_weight_function(name: str, *, k: int, alpha: float) -> WeightFunction | None:
    """Return the weight function of this name, or None for the softmax, which has a fused kernel.

    Raises ``SettingError`` for ``"entmax"`` if the entmax library is not installed.
    """
    if name == "entmax":
        try:
            import entmax as _  # noqa: F401, PLC0415
        except ImportError:
            raise SettingError(
                "weights 'entmax' need the entmax library; run pip install 'lengthwise[entmax]'"
            ) from None
        return partial(entmax, alpha=alpha)
    if name == "count":
        return scaled_sigmoid
    return partial(top_k, k=k) if name == "top_k" else None
