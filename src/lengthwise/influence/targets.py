"""Target tokens of a study: random sampling, and the rule for a clear gain from far context."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lengthwise.core.defaults import CLEAR_GAP
from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.influence.probing.window import Window
from lengthwise.tasks import TokenizedDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Token that a model predicts in a study; ``place`` is its token index in ``text``."""

    text: TokenizedDocument
    place: int

    def window(self, near: int, far: int, start: Sequence[int] = (), sink: int = 0) -> Window:
        """Return the window of ``sink + far + near`` tokens before the target; ``start`` precedes these tokens."""
        tokens = self.text.tokens[self.place - near - far - sink : self.place + 1].astype(np.int64)
        sink_tokens, far_tokens, near_tokens, target = np.split(tokens, [sink, sink + far, sink + far + near])
        start_tokens = np.concatenate([np.array(start, np.int64), sink_tokens])
        return Window(start=start_tokens, far=far_tokens, near=near_tokens, target=int(target[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRule:
    """Rule for a clear gain: far context lowers the loss by more than ``gap``, to less than ``below`` nats (if set)."""

    gap: float = CLEAR_GAP
    below: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.gap < math.inf:
            raise SettingError(f"invalid gap of {self.gap} nats; use 0 or more")

    def is_clear(self, loss_short: float, loss_long: float) -> bool:
        """Return True if the loss with far context is clearly lower than the loss with near tokens only."""
        return loss_short - loss_long > self.gap and (self.below is None or loss_long < self.below)


# Rule for key tokens of Fang et al. 2024 (arXiv:2410.23771).
LONGPPL_RULE = GapRule(gap=2.0, below=2.0)


def sample_targets(
    texts: Sequence[TokenizedDocument], *, context: int, num_targets: int | None, seed: int
) -> list[Target]:
    """Sample uniformly among the tokens with at least ``context`` tokens before them.

    ``num_targets=None`` means all. Targets are in text order. Raises ``SettingError`` if no text is long enough.
    """
    text_counts = np.array([max(0, len(text.tokens) - context) for text in texts])
    num_eligible = int(text_counts.sum())
    if num_eligible == 0:
        max_num_tokens = max((len(text.tokens) for text in texts), default=0)
        raise SettingError(
            f"the longest text has {max_num_tokens} tokens, but a target needs {context} tokens before it; "
            "use longer texts, or a smaller --near or --far"
        )
    selected = np.arange(num_eligible)
    if num_targets is not None and num_targets < num_eligible:
        rng = stream(seed, "targets")
        selected = np.sort(rng.choice(num_eligible, size=num_targets, replace=False, shuffle=False))
    cumulative_counts = text_counts.cumsum()
    text_indices = np.searchsorted(cumulative_counts, selected, side="right")
    places = context + selected - (cumulative_counts - text_counts)[text_indices]
    return [Target(text=texts[index], place=int(place)) for index, place in zip(text_indices, places, strict=True)]


def split_texts(texts: Sequence[TokenizedDocument], max_tokens: int) -> Iterator[TokenizedDocument]:
    """Split texts into pieces of ``max_tokens`` tokens; the last piece of a text may be shorter."""
    for text in texts:
        for piece_start in range(0, len(text.tokens), max_tokens):
            yield replace(text, tokens=text.tokens[piece_start : piece_start + max_tokens], start_index=piece_start)
