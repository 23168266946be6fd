"""Losses with short context for every token of a long text, computed in a few forward passes."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.experiments.decoder_model import DecoderModel
from lengthwise.hf.causal_lm import CausalLM
from lengthwise.influence.hidden_context import LOG_PROBS_PER_TOKEN, forward_batch_size


def short_context_losses(
    model: DecoderModel | CausalLM, tokens: Int[np.ndarray, " seq"], *, near: int, stride: int
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
    max_windows = LOG_PROBS_PER_TOKEN * model.forward_tokens // (stride * model.vocabulary_size)
    num_windows = max(1, min(forward_batch_size(model, near + stride), max_windows))
    for starts, num_scored in _window_batches(len(tokens) - near, stride, num_windows):
        batch = torch.from_numpy(np.stack([tokens[start : start + near + num_scored] for start in starts])).long()
        ids = torch.stack([model.assign_position_ids(context) for context in batch[:, :-1]])
        batch_losses = _losses(model, batch[:, :-1], ids, batch[:, near:]).cpu().double().numpy()
        for start, window_losses in zip(starts, batch_losses, strict=True):
            losses[start : start + num_scored] = window_losses
    return losses


@torch.no_grad()
def _losses(
    model: DecoderModel | CausalLM,
    tokens: Int[Tensor, "batch seq"],
    position_ids: Real[Tensor, "batch *level seq"],
    targets: Int[Tensor, "batch t"],
) -> Float[Tensor, "batch t"]:
    """Return the losses (nats) of ``targets``: the tokens that follow each of the last ``t`` tokens."""
    indexes = torch.arange(tokens.shape[1] - targets.shape[1], tokens.shape[1])
    if isinstance(model, DecoderModel):
        ids = model._decoder_ids(position_ids)
        hidden, _ = model.decoder(tokens.to(model.device), ids, query_start=int(indexes[0]))
        logits = model.decoder.token_logits(hidden)
    else:
        mask = model._causal_mask(position_ids)
        logits = model._forward(tokens, position_ids, mask, logit_indexes=indexes).logits.float()
    labels = targets.to(logits.device).flatten()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="none").view(targets.shape)


def _window_batches(num_scored: int, stride: int, num_windows: int) -> Iterator[tuple[list[int], int]]:
    """Yield batches of window starts, and the number of scored tokens per window, which may be smaller at the end."""
    starts = list(range(0, num_scored - stride + 1, stride))
    for batch_start in range(0, len(starts), num_windows):
        yield starts[batch_start : batch_start + num_windows], stride
    if remainder := num_scored % stride:
        yield [num_scored - remainder], remainder
