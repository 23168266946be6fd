"""Context of a target token, and predictions with some of its far tokens hidden, in batches of queries."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, sqrt
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from lengthwise.evaluation.language_model import NextTokenModel


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetWindow:
    """Context of one target. Hidden tokens do not change the position IDs of other tokens.

    ``start`` contains the tokens before the far tokens, which are always visible: the start token of the model (if
    any) and the sink tokens.
    """

    start: Int[np.ndarray, " start"]
    far: Int[np.ndarray, " far"]
    near: Int[np.ndarray, " near"]
    target: int

    @property
    def num_far_tokens(self) -> int:
        """Number of visible and hidden far tokens."""
        return len(self.far)

    @property
    def tokens(self) -> Int[np.ndarray, " seq"]:
        """All tokens of the context, in text order."""
        return np.concatenate([self.start, self.far, self.near])

    def expand_mask(self, visibility_mask: Bool[np.ndarray, " far"]) -> Bool[np.ndarray, " seq"]:
        """Extend a visibility mask of the far tokens to all tokens; start and near tokens are visible."""
        return np.concatenate([np.ones(len(self.start), bool), visibility_mask, np.ones(len(self.near), bool)])

    def visibility_mask(self, indices: Sequence[int]) -> Bool[np.ndarray, " far"]:
        """Return a visibility mask of the far tokens, which is True at ``indices`` and False elsewhere."""
        mask = np.zeros(self.num_far_tokens, bool)
        mask[list(indices)] = True
        return mask

    def shorten(self, far: int, near: int) -> "TargetWindow":
        """Return a copy with only the last ``far`` far tokens and the last ``near`` near tokens, or fewer."""
        return replace(self, far=self.far[-far:], near=self.near[-near:])


# strict: the model reads only visible tokens. masked: it reads all tokens, but near tokens attend only to visible ones.
# decode: it reads all tokens, and only the last token attends to visible tokens alone, as after evictions from a cache.
MODES = ("strict", "masked", "decode")
# Maximum number of log-probabilities in a forward pass per token of ``forward_tokens``.
LOG_PROBS_PER_TOKEN = 1 << 12

VisibilityMask = Bool[np.ndarray, " far"]
# Indices of queries, and the log-probabilities of the next token for each query.
Predictions = tuple[list[int], Float[Tensor, "batch vocab"]]


class WindowEvaluator:
    """Evaluator of a model on one window with some far tokens hidden.

    ``states_by_kind`` keeps the states of the far tokens. Windows with the same start and far tokens can share it.
    """

    def __init__(
        self, model: NextTokenModel, window: TargetWindow, states_by_kind: dict[str, Any] | None = None
    ) -> None:
        self.model, self.window = model, window
        self._states_by_kind = {} if states_by_kind is None else states_by_kind
        self.tokens, self.num_prefix = torch.from_numpy(window.tokens), len(window.start) + window.num_far_tokens
        self.position_ids = model.assign_position_ids(self.tokens)
        self.near, self.near_ids = self.tokens[self.num_prefix :], self.position_ids[..., self.num_prefix :]

    @property
    def states(self) -> Any:
        """States of the start and far tokens, from one pass that hides no tokens."""
        return self.prefill("far tokens", self.num_prefix)

    def prefill(
        self, kind: str, num_prefix: int, build_mask: Callable[[], Bool[Tensor, "seq seq"] | None] = lambda: None
    ) -> Any:
        """Return the states of the first ``num_prefix`` tokens, computed once for each ``kind``."""
        # Not a cached property: in Python 3.11, its lock would stop all threads that share forward passes.
        if kind not in self._states_by_kind:
            states = self.model.prefill(self.tokens, self.position_ids, num_prefix, build_mask())
            self._states_by_kind[kind] = states
        return self._states_by_kind[kind]

    def log_probs(self, visibility_masks: Bool[np.ndarray, "queries far"], mode: str) -> Iterator[Predictions]:
        """Yield the predictions for each visibility mask, in one of ``MODES``."""
        if mode == "strict":
            return self._strict_predictions(visibility_masks)
        # The last tokens do not attend to hidden tokens, but other tokens do.
        num_queries = len(self.near) if mode == "masked" else 1
        states = self.states if num_queries == len(self.near) else self.states_before_last_token
        near, near_ids = self.near[-num_queries:], self.near_ids[..., -num_queries:]
        predict = partial(self.model.log_probs_with_mask, states, near, near_ids)
        expanded = np.stack([self.window.expand_mask(mask) for mask in visibility_masks])
        masks = torch.from_numpy(expanded[:, : expanded.shape[1] - num_queries])
        return predict_in_batches(self.model, predict, masks, num_queries)

    @property
    def states_before_last_token(self) -> Any:
        """States of all tokens but the last near token, from one pass that hides no tokens."""
        return self.prefill(f"all but the last of {len(self.tokens)} tokens", len(self.tokens) - 1)

    def _strict_predictions(self, visibility_masks: Bool[np.ndarray, "queries far"]) -> Iterator[Predictions]:
        """Yield the predictions of ``strict_log_probs``, up to twice as fast: queries share unhidden prefixes."""
        masks = np.stack([self.window.expand_mask(mask) for mask in visibility_masks])
        seq = masks.shape[1]
        # With a larger step, the model reads fewer prefixes, but repeats more tokens after each prefix.
        prefix_step = max(1, ceil(seq / sqrt(len(visibility_masks) / 2)))
        first_hidden = np.where(masks.all(axis=1), seq - 1, masks.argmin(axis=1))
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        prefixes = np.minimum(first_hidden, seq - 1) // prefix_step * prefix_step
        for query, prefix in enumerate(prefixes.tolist()):
            groups[prefix, int(masks[query, prefix:].sum())].append(query)
        ungrouped: list[int] = []
        for (prefix, length), queries in groups.items():
            if prefix * (len(queries) - 1) <= seq:
                ungrouped += queries
            else:
                yield from self._prefix_predictions(prefix, length, queries, masks)
        ungrouped_masks = [(self.window, visibility_masks[query]) for query in ungrouped]
        for indices, log_probs in strict_log_probs(self.model, ungrouped_masks):
            yield [ungrouped[index] for index in indices], log_probs

    def _prefix_predictions(
        self, prefix: int, length: int, queries: list[int], masks: Bool[np.ndarray, "all seq"]
    ) -> Iterator[Predictions]:
        """Yield the predictions of queries that share a prefix and have ``length`` visible tokens after it."""
        states = self.model.prefill(self.tokens, self.position_ids, prefix)
        predict = partial(self.model.log_probs, states=states)
        suffix_masks = torch.from_numpy(masks[queries, prefix:])
        tokens = torch.stack([self.tokens[prefix:][mask] for mask in suffix_masks])
        ids = torch.stack([self.position_ids[..., prefix:][..., mask] for mask in suffix_masks])
        # Each sequence attends to a copy of the states.
        yield from _predict(queries, (tokens, ids), predict, forward_batch_size(self.model, length + prefix // 8))


def strict_log_probs(
    model: NextTokenModel, queries: Sequence[tuple[TargetWindow, VisibilityMask]]
) -> Iterator[Predictions]:
    """Yield the predictions of a model that reads only the visible tokens of each window.

    The position IDs of a token are those in the whole window, so they do not depend on the mask. The model does not
    read hidden tokens, so they cannot leak. Sequences of equal length share a forward pass.
    """
    queries_by_length: dict[int, list[int]] = defaultdict(list)
    for index, (window, visibility_mask) in enumerate(queries):
        queries_by_length[len(window.start) + int(visibility_mask.sum()) + len(window.near)].append(index)
    for length, indices in sorted(queries_by_length.items()):
        max_batch_size = forward_batch_size(model, length)
        for batch_start in range(0, len(indices), max_batch_size):
            batch = indices[batch_start : batch_start + max_batch_size]
            tokens, ids = zip(*(_visible_tokens(model, *queries[index]) for index in batch), strict=True)
            yield from _predict(batch, (torch.stack(tokens), torch.stack(ids)), model.log_probs, max_batch_size)


def _visible_tokens(
    model: NextTokenModel, window: TargetWindow, visibility_mask: VisibilityMask
) -> tuple[Int[Tensor, " visible"], Real[Tensor, "*level visible"]]:
    """Return the visible tokens of a window, with their position IDs in the whole window."""
    tokens, is_visible = torch.from_numpy(window.tokens), torch.from_numpy(window.expand_mask(visibility_mask))
    return tokens[is_visible], model.assign_position_ids(tokens)[..., is_visible]


def forward_batch_size(model: NextTokenModel, length: int) -> int:
    """Return the number of sequences of ``length`` tokens per forward pass, with one prediction each."""
    max_log_probs = LOG_PROBS_PER_TOKEN * model.forward_tokens
    return max(1, min(model.forward_tokens // length, max_log_probs // model.vocabulary_size))


def predict_in_batches(
    model: NextTokenModel, predict: Callable[[Tensor], Tensor], masks: Bool[Tensor, "queries states"], num_queries: int
) -> Iterator[Predictions]:
    """Yield the predictions for each mask; a prediction reads ``num_queries`` tokens."""
    yield from _predict(list(range(len(masks))), (masks,), predict, forward_batch_size(model, 2 * num_queries))


def _predict(
    indices: list[int], inputs: tuple[Tensor, ...], predict: Callable[..., Tensor], max_batch_size: int
) -> Iterator[Predictions]:
    """Yield the predictions batch by batch. A batch that does not fit in memory is split in halves."""
    for batch_start in range(0, len(indices), max_batch_size):
        batch = slice(batch_start, batch_start + max_batch_size)
        batch_indices, batch_inputs = indices[batch], tuple(tensor[batch] for tensor in inputs)
        log_probs = None
        try:
            log_probs = predict(*batch_inputs)
        except torch.OutOfMemoryError:
            if len(batch_indices) == 1:
                raise
        if log_probs is None:
            yield from _predict(batch_indices, batch_inputs, predict, -(-len(batch_indices) // 2))
        else:
            yield batch_indices, log_probs
