"""Which tokens are asked about: chosen before anything is known of them, then sorted by what far context gains."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import stream
from lengthwise.influence.probing.window import Window
from lengthwise.tasks import TokenizedDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A token of a text, by its place there."""

    text: TokenizedDocument
    place: int

    def window(self, near: int, far: int, start: Sequence[int] = (), sink: int = 0) -> Window:
        """Its context: ``near`` tokens before it, ``far`` ones before these, and ``sink`` first ones, never hidden."""
        tokens = self.text.tokens[self.place - near - far - sink : self.place + 1].astype(np.int64)
        first, far_tokens, near_tokens, target = np.split(tokens, [sink, sink + far, sink + far + near])
        return Window(
            start=np.concatenate([np.array(start, np.int64), first]),
            far=far_tokens,
            near=near_tokens,
            target=int(target[0]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When far context clearly helps: the loss falls by more than ``gap`` nats, to less than ``below`` if given."""

    gap: float = 0.5
    below: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.gap < math.inf:
            raise SettingError(f"a gap of {self.gap} nats tells no target from others; use 0 or more")

    def clear(self, loss_short: float, loss_long: float) -> bool:
        """Whether a target with these losses is one that needs far context."""
        return loss_short - loss_long > self.gap and (self.below is None or loss_long < self.below)


# Fang et al. 2024 (arXiv:2410.23771), key tokens.
LONGPPL = Rule(gap=2.0, below=2.0)


def choose_targets(texts: Sequence[TokenizedDocument], *, context: int, number: int | None, seed: int) -> list[Target]:
    """``number`` targets (None: all there are), each place with ``context`` tokens before it equally likely.

    In the order of the texts. ``SettingError`` when no text is long enough.
    """
    eligible = np.array([max(0, len(text.tokens) - context) for text in texts])
    total = int(eligible.sum())
    if total == 0:
        longest = max((len(text.tokens) for text in texts), default=0)
        raise SettingError(
            f"no text is long enough: the longest has {longest} tokens, and a target needs {context} before it; "
            "give longer texts, or a smaller --near or --far"
        )
    if number is None or number >= total:
        chosen = np.arange(total)
    else:
        chosen = np.sort(stream(seed, "targets").choice(total, size=number, replace=False, shuffle=False))
    ends = eligible.cumsum()
    of_text = np.searchsorted(ends, chosen, side="right")
    return [
        Target(text=texts[text], place=int(context + place - (ends[text] - eligible[text])))
        for place, text in zip(chosen, of_text, strict=True)
    ]


def cut(texts: Sequence[TokenizedDocument], piece: int) -> Iterator[TokenizedDocument]:
    """Texts in pieces of so many tokens, no context reaching over their ends; the last piece is shorter."""
    for text in texts:
        for first in range(0, len(text.tokens), piece):
            yield replace(text, tokens=text.tokens[first : first + piece], first=first)
