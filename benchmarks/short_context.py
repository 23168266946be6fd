"""Losses with short context for every token of a long text, computed in a few forward passes."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int

from lengthwise.core.errors import SettingError
from lengthwise.evaluation.language_model import NextTokenModel
from lengthwise.influence.hidden_context import batch_size


def short_context_losses(
    model: NextTokenModel, tokens: Int[np.ndarray, " seq"], *, near: int, stride: int
) -> Float[np.ndarray, " scored"]:
    """Return the loss (nats) of every token except the first ``near`` tokens.

    Each token has ``near`` to ``near + stride - 1`` tokens of context, as in Fang et al. 2024 (arXiv:2410.23771):
    each window of ``near + stride`` tokens scores its last ``stride`` tokens. Raises ``SettingError`` if the text has
    at most ``near`` tokens.
    """
    if len(tokens) <= near:
        raise SettingError(
            f"near={near} needs at least {near + 1} tokens, but the text has {len(tokens)}; use a smaller near"
        )
    losses = np.empty(len(tokens) - near)
    num_windows = batch_size(model, near + stride, num_predictions=stride)
    for starts, num_scored in _window_batches(len(tokens) - near, stride, num_windows):
        batch = torch.from_numpy(np.stack([tokens[start : start + near + num_scored] for start in starts])).long()
        ids = torch.stack([model.assign_ids(context) for context in batch[:, :-1]])
        batch_losses = model.losses(batch[:, :-1], ids, batch[:, near:]).cpu().double().numpy()
        for start, window_losses in zip(starts, batch_losses, strict=True):
            losses[start : start + num_scored] = window_losses
    return losses


def _window_batches(num_scored: int, stride: int, num_windows: int) -> Iterator[tuple[list[int], int]]:
    """Yield batches of window starts, and the number of scored tokens per window, which may be smaller at the end."""
    starts = list(range(0, num_scored - stride + 1, stride))
    for batch_start in range(0, len(starts), num_windows):
        yield starts[batch_start : batch_start + num_windows], stride
    if remainder := num_scored % stride:
        yield [num_scored - remainder], remainder
