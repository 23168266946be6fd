"""From scores to attention weights: softmax, and what can take its place."""

import math
from functools import partial

from jaxtyping import Float
from torch import Tensor

from lengthwise.attention import Weigh
from lengthwise.errors import SettingError

WEIGHTS = ("softmax", "entmax", "top_k")
# Stands for minus infinity where a squared score must stay finite.
FAR_BELOW = -1e4


def softmax(scores: Float[Tensor, "batch heads query key"]) -> Float[Tensor, "batch heads query key"]:
    """Every visible key gets a weight."""
    return scores.float().softmax(dim=-1)


def top_k(scores: Float[Tensor, "batch heads query key"], k: int) -> Float[Tensor, "batch heads query key"]:
    """A softmax over the k largest scores of each query (Gupta et al. 2021, arXiv 2106.06899)."""
    if k < scores.shape[-1]:
        least = scores.topk(k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    return softmax(scores)


def entmax(scores: Float[Tensor, "batch heads query key"], alpha: float) -> Float[Tensor, "batch heads query key"]:
    """Alpha-entmax: exact zeros for all but a few keys (Peters et al. 2019, arXiv 1905.05702)."""
    # Imported here: an extra that only this option needs.
    from entmax import entmax15, entmax_bisect  # noqa: PLC0415

    scores = scores.float().clamp(min=FAR_BELOW)
    weights: Tensor = entmax15(scores, dim=-1) if alpha == 1.5 else entmax_bisect(scores, alpha, dim=-1)
    return weights


def weighing(name: str, *, k: int, alpha: float) -> Weigh | None:
    """How the option of that name weighs scores; None for the softmax, which needs no scores of its own."""
    if name == "entmax":
        try:
            import entmax as _  # noqa: F401, PLC0415
        except ImportError:
            raise SettingError("weights 'entmax' need the entmax library; pip install 'lengthwise[entmax]'") from None
        return partial(entmax, alpha=alpha)
    return partial(top_k, k=k) if name == "top_k" else None
