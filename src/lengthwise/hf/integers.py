"""Whole numbers out of whatever a data set holds them in: lists, arrays or tensors."""

from typing import Any

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import FeatureError

# Groups stay below this, so that nothing overflows where gaps are added.
TOO_LARGE = 1 << 30


def integers(
    name: str, given: Any, *, width: int | None = None, holds: str = "whole numbers"
) -> Int[np.ndarray, "*shape"]:
    """A column's value as int64, shape (seq,), or (seq, width); ``FeatureError`` when it is something else."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError):
        array = np.array(None)
    shape = array.shape[1:] if array.size else (() if width is None else (width,))
    whole = array.dtype.kind in "iub" or array.size == 0
    if array.ndim == 0 or not whole or shape != (() if width is None else (width,)):
        raise FeatureError(f"{name} is {_shown(given)}; give a list of {holds}")
    return array.astype(np.int64).reshape(len(array), *shape)


def _shown(given: Any) -> str:
    text = " ".join(repr(given).split())
    return text if len(text) <= 40 else f"{text[:40]}..."
