"""Losses with short context for every token of a long text: what needs no far token, at the cost of a few passes."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.influence.probing.hidden_context import rows_at_once
from lengthwise.influence.probing.next_token_model import NextTokenModel


def short_context_losses(
    model: NextTokenModel, tokens: Int[np.ndarray, " seq"], *, near: int, stride: int
) -> Float[np.ndarray, " scored"]:
    """The loss (nats) of every token from the one at index ``near`` on.

    Each has the ``near`` to ``near + stride - 1`` tokens before it as its context, as in Fang et al. 2024
    (arXiv:2410.23771): windows of ``near + stride`` tokens, each scored on its last ``stride``. ``SettingError`` for a
    text that has no more than ``near`` tokens.
    """
    if len(tokens) <= near:
        raise SettingError(f"a text of {len(tokens)} tokens has none with {near} before it; use a smaller near")
    losses = np.empty(len(tokens) - near)
    at_once = rows_at_once(model, near + stride, predictions=stride)
    for starts, scored in _windows(len(tokens) - near, stride, at_once):
        rows = torch.from_numpy(np.stack([tokens[start : start + near + scored] for start in starts])).long()
        ids = torch.arange(near + scored - 1).expand(len(rows), -1)
        found = model.losses(rows[:, :-1], ids, rows[:, near:]).cpu()
        for start, row in zip(starts, found.double().numpy(), strict=True):
            losses[start : start + scored] = row
    return losses


def _windows(scored: int, stride: int, at_once: int) -> Iterator[tuple[list[int], int]]:
    """Starts of windows that are run together, and how many tokens each scores; the last may score fewer."""
    whole = list(range(0, scored - stride + 1, stride))
    for first in range(0, len(whole), at_once):
        yield whole[first : first + at_once], stride
    if left := scored % stride:
        yield [scored - left], left
