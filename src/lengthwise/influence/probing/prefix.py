"""Strict answers to questions about one window: what stands before the first hidden token is read once for many."""

from collections import defaultdict
from collections.abc import Iterator
from math import ceil, sqrt

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.influence.probing.hidden_context import rows_at_once, split, strict
from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.probing.window import Window


def strict_of_one(
    model: NextTokenModel, window: Window, visible: Bool[np.ndarray, "rows far"]
) -> Iterator[tuple[list[int], Float[Tensor, "rows vocab"]]]:
    """As ``strict``: up to twice as fast where most of the window is visible, as when one token is left out."""
    shown = np.stack([window.shown(row) for row in visible])
    seq = shown.shape[1]
    # Fewer places where a prefix ends: fewer to read, but more is read again behind each.
    step = max(1, ceil(seq / sqrt(len(visible) / 2)))
    hidden_first = np.where(shown.all(axis=1), seq - 1, shown.argmin(axis=1))
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, prefix in enumerate((np.minimum(hidden_first, seq - 1) // step * step).tolist()):
        groups[prefix, int(shown[row, prefix:].sum())].append(row)
    alone: list[int] = []
    for (prefix, length), rows in groups.items():
        if prefix * (len(rows) - 1) <= seq:
            alone += rows
        else:
            yield from _behind(model, window, (prefix, length), rows, shown)
    for places, made in strict(model, [(window, visible[row]) for row in alone]):
        yield [alone[place] for place in places], made


def _behind(
    model: NextTokenModel, window: Window, sizes: tuple[int, int], rows: list[int], shown: Bool[np.ndarray, "all seq"]
) -> Iterator[tuple[list[int], Float[Tensor, "rows vocab"]]]:
    """The rows that share a prefix and have as many tokens behind it."""
    prefix, length = sizes
    tokens = torch.from_numpy(window.tokens)
    states = model.prefill(tokens, torch.arange(len(tokens)), prefix)
    ids = torch.from_numpy(np.stack([prefix + shown[row, prefix:].nonzero()[0] for row in rows]))
    # Each row attends to a copy of the states.
    at_once = rows_at_once(model, length + prefix // 8)
    for first in range(0, len(rows), at_once):
        part = slice(first, first + at_once)
        yield from split(
            rows[part], (tokens[ids[part]], ids[part]), lambda new, at: model.log_probs_with_prefix(states, new, at)
        )
