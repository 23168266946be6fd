"""Losses of targets with parts of their context hidden: what is hidden, and how many are asked at once."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.influence.probing.next_token_model import NextTokenModel
from lengthwise.influence.probing.window import Window

# Strict: the model reads only what is visible. Masked: it reads all, and the near tokens attend to what is visible.
MODES = ("strict", "masked")
# Log-probabilities made in one forward, per token that it may read: a prediction is as long as the vocabulary.
NUMBERS_PER_TOKEN = 1 << 12

Visible = Bool[np.ndarray, " far"]


def strict(
    model: NextTokenModel, asked: Sequence[tuple[Window, Visible]]
) -> Iterator[tuple[list[int], Float[Tensor, "rows vocab"]]]:
    """Log-probabilities of the next token where the model reads the visible tokens alone, at their own IDs.

    Nothing of a hidden token can leak. Yields which of the asked, and theirs; rows of one length go together.
    """
    by_length: dict[int, list[int]] = defaultdict(list)
    for place, (window, visible) in enumerate(asked):
        by_length[len(window.start) + int(visible.sum()) + len(window.near)].append(place)
    for length, places in sorted(by_length.items()):
        at_once = rows_at_once(model, length)
        for first in range(0, len(places), at_once):
            chosen = places[first : first + at_once]
            shown = [asked[place][0].shown(asked[place][1]) for place in chosen]
            tokens = [asked[place][0].tokens[keep] for place, keep in zip(chosen, shown, strict=True)]
            ids = [keep.nonzero()[0] for keep in shown]
            yield from split(chosen, (_rows(tokens), _rows(ids)), model.log_probs)


def rows_at_once(model: NextTokenModel, length: int, predictions: int = 1) -> int:
    """Return how many rows of so many tokens, with so many predictions each, go into one forward."""
    numbers = NUMBERS_PER_TOKEN * model.forward_tokens
    return max(1, min(model.forward_tokens // length, numbers // (predictions * model.vocabulary_size)))


def split(
    places: list[int], inputs: tuple[Tensor, ...], ask: Callable[..., Tensor]
) -> Iterator[tuple[list[int], Float[Tensor, "rows vocab"]]]:
    """The answers, in halves where memory does not suffice for all at once."""
    try:
        made = ask(*inputs)
    except torch.OutOfMemoryError:
        if len(places) == 1:
            raise
        made = None
    if made is not None:
        yield places, made
        return
    half = len(places) // 2
    for part in (slice(None, half), slice(half, None)):
        yield from split(places[part], tuple(each[part] for each in inputs), ask)


def _rows(rows: list[Any]) -> Tensor:
    return torch.from_numpy(np.stack(rows))


class Masked:
    """One window whose far tokens are read once; the near ones then attend to any choice of them.

    The states of visible far tokens still summarise their own past, hidden tokens among it.
    """

    def __init__(self, model: NextTokenModel, window: Window) -> None:
        self.model, self.window = model, window
        tokens, num_read = torch.from_numpy(window.tokens), len(window.start) + window.num_far
        ids = torch.arange(len(tokens))
        self.near, self.near_ids = tokens[num_read:], ids[num_read:]
        self.states = model.prefill(tokens, ids, num_read)

    def log_probs(
        self, visible: Bool[np.ndarray, "rows far"]
    ) -> Iterator[tuple[list[int], Float[Tensor, "rows vocab"]]]:
        """As ``strict``, for choices of visible far tokens."""
        at_once = rows_at_once(self.model, 2 * len(self.near))
        start = np.ones((len(visible), len(self.window.start)), bool)
        rows = torch.from_numpy(np.concatenate([start, visible], axis=1))
        for first in range(0, len(visible), at_once):
            part = rows[first : first + at_once]
            yield from split(list(range(first, first + len(part))), (part,), self._ask)

    def _ask(self, visible: Tensor) -> Tensor:
        return self.model.log_probs_with_mask(self.states, self.near, self.near_ids, visible)
