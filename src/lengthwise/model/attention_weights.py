"""From scores to attention weights: softmax, and what can take its place."""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.model.attention import Weigh

WEIGHTS = ("softmax", "entmax", "top_k", "count")
# What a counting head adds up stays near one while the keys it counts are few.
COUNTED = 1 / 8


def softmax(scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """Every visible key gets a weight."""
    return scores.float().softmax(dim=-1)


def top_k(scores: Float[Tensor, "batch heads query key"], k: int) -> Float[Tensor, "batch heads query key"]:
    """A softmax over the k largest scores of each query (Gupta et al. 2021, arXiv 2106.06899)."""
    if k >= scores.shape[-1]:
        return softmax(scores)
    # No threshold: equal scores beyond the k-th would pass it or not as rounding has it, which a cache changes.
    largest = scores.topk(k, dim=-1)
    return torch.zeros_like(scores, dtype=torch.float32).scatter(-1, largest.indices, softmax(largest.values))


def entmax(scores: Float[Tensor, "batch heads query key"], alpha: float) -> Float[Tensor, "batch heads query key"]:
    """Alpha-entmax: exact zeros for all but a few keys (Peters et al. 2019, arXiv 1905.05702)."""
    # Imported here: an extra that only this option needs.
    from entmax import entmax15, entmax_bisect  # noqa: PLC0415

    # Entmax does not depend on it, but beside a large number the threshold would lose its digits.
    scores = scores.float() - scores.detach().float().amax(dim=-1, keepdim=True)
    weights: Tensor = entmax15(scores, dim=-1) if alpha == 1.5 else entmax_bisect(scores, alpha, dim=-1)
    return weights


def count(scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """The sigmoid of each score by itself, times ``COUNTED``: what is seen adds up, and no key takes from another."""
    return COUNTED * scores.float().sigmoid()


def weighing(name: str, *, k: int, alpha: float) -> Weigh | None:
    """How the option of that name weighs scores; None for the softmax, which needs no scores of its own."""
    if name == "entmax":
        try:
            import entmax as _  # noqa: F401, PLC0415
        except ImportError:
            raise SettingError("weights 'entmax' need the entmax library; pip install 'lengthwise[entmax]'") from None
        return partial(entmax, alpha=alpha)
    if name == "count":
        return count
    return partial(top_k, k=k) if name == "top_k" else None
