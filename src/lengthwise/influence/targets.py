"""Target tokens of a study, the rule for a clear gain from far context, and control far tokens."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
from jaxtyping import Int

from lengthwise.core.defaults import CLEAR_GAP
from lengthwise.core.errors import SettingError
from lengthwise.core.randomness import random_stream
from lengthwise.influence.hidden_context import TargetWindow
from lengthwise.tasks import TokenizedDocument

# Sources of far tokens other than the own text ("own").
OTHER_SOURCE, ELSEWHERE_SOURCE = "other", "elsewhere"
FarTokens = Int[np.ndarray, " far"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetToken:
    """Token that a model predicts in a study; ``place`` is its token index in ``text``.

    ``index_in_block`` is the number of targets of the same block before it, which are additional near tokens.
    """

    text: TokenizedDocument
    place: int
    index_in_block: int = 0

    def window(self, near: int, far: int, start: Sequence[int] = (), sink: int = 0) -> TargetWindow:
        """Return the window of ``sink + far + near`` tokens before the block, and the tokens of the block before it.

        ``start`` precedes these tokens.
        """
        near += self.index_in_block
        tokens = self.text.tokens[self.place - near - far - sink : self.place + 1].astype(np.int64)
        sink_tokens, far_tokens, near_tokens, target = np.split(tokens, [sink, sink + far, sink + far + near])
        start_tokens = np.concatenate([np.array(start, np.int64), sink_tokens])
        return TargetWindow(start=start_tokens, far=far_tokens, near=near_tokens, target=int(target[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearGainSelection:
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
LONGPPL_RULE = ClearGainSelection(gap=2.0, below=2.0)


def sample_targets(
    texts: Sequence[TokenizedDocument], *, context: int, num_targets: int | None, seed: int, block: int = 1
) -> list[TargetToken]:
    """Sample uniformly among the tokens with at least ``context`` tokens before them, in blocks of ``block`` tokens.

    The last block of a text and the last sampled block may be shorter. ``num_targets=None`` means all. Targets are in
    text order. Raises ``SettingError`` if no text is long enough.
    """
    text_counts = np.array([max(0, len(text.tokens) - context) for text in texts])
    num_eligible = int(text_counts.sum())
    if num_eligible == 0:
        max_num_tokens = max((len(text.tokens) for text in texts), default=0)
        raise SettingError(
            f"the longest text has {max_num_tokens} tokens, but a target needs {context} tokens before it; "
            "use longer texts, or a smaller --near or --far"
        )
    starts = [(text, start) for text, count in enumerate(text_counts.tolist()) for start in range(0, count, block)]
    if num_targets is not None and num_targets < num_eligible:
        rng = random_stream(seed, "targets")
        num_blocks = min(len(starts), ceil(num_targets / block))
        selected = np.sort(rng.choice(len(starts), size=num_blocks, replace=False, shuffle=False))
        starts = [starts[index] for index in selected]
    targets = [
        TargetToken(text=texts[text], place=context + start + index, index_in_block=index)
        for text, start in starts
        for index in range(min(block, text_counts[text] - start))
    ]
    return targets[:num_targets]


def split_texts(texts: Sequence[TokenizedDocument], max_tokens: int) -> Iterator[TokenizedDocument]:
    """Split texts into pieces of ``max_tokens`` tokens; the last piece of a text may be shorter."""
    for text in texts:
        for piece_start in range(0, len(text.tokens), max_tokens):
            yield replace(text, tokens=text.tokens[piece_start : piece_start + max_tokens], start_index=piece_start)


class PlaceboSampler:
    """Sampler of consecutive far tokens that replace the far tokens of a target. All start indexes are equally likely.

    ``texts`` may be pieces of documents. Pieces of one document have the same name and are adjacent in the list.
    """

    def __init__(self, texts: Sequence[TokenizedDocument], near: int, far: int) -> None:
        self.texts, self.near, self.far = texts, near, far
        # Cumulative number of start indexes before each text, and the range of texts of each document.
        self.start_offsets = np.cumsum([0, *(max(0, len(text.tokens) - far + 1) for text in texts)])
        self.piece_ranges: dict[str, tuple[int, int]] = {}
        for index, text in enumerate(texts):
            self.piece_ranges[text.name] = (self.piece_ranges.get(text.name, (index, index))[0], index + 1)

    def check_other_documents(self, targets: Sequence[TargetToken]) -> None:
        """Raise ``SettingError`` if a target has no other document with at least ``far`` tokens."""
        for name in {target.text.name for target in targets}:
            first_text, end_text = self.piece_ranges[name]
            if self.start_offsets[-1] == self.start_offsets[end_text] - self.start_offsets[first_text]:
                raise SettingError(
                    f"no text except {name} has at least {self.far} tokens, but a study needs far tokens of another "
                    "text; add texts (five or more for intervals), or use a smaller --far"
                )

    def sample(self, source: str, target: TargetToken, rng: np.random.Generator) -> FarTokens | None:
        """Sample far tokens from another document, or from elsewhere in the same document.

        Tokens from elsewhere are outside the context of the last target of a block. Returns None if there are none.
        """
        first_text, end_text = self.piece_ranges[target.text.name]
        document_start, document_end = int(self.start_offsets[first_text]), int(self.start_offsets[end_text])
        if source == OTHER_SOURCE:
            start, end = 0, int(self.start_offsets[-1])
            excluded_start, excluded_end = document_start, document_end
        else:
            start, end = document_start, document_end
            text_index = next(index for index in range(first_text, end_text) if self.texts[index] is target.text)
            text_start, text_end = int(self.start_offsets[text_index]), int(self.start_offsets[text_index + 1])
            # Exclude start indexes from which far tokens would overlap the context or contain the target.
            context_start = target.place - target.index_in_block - self.near - self.far
            excluded_start = max(text_start, min(text_end, text_start + context_start - self.far + 1))
            excluded_end = min(text_end, text_start + target.place + 1)
        num_starts = (excluded_start - start) + (end - excluded_end)
        if num_starts == 0:
            return None
        far_start = start + int(rng.integers(num_starts))
        if far_start >= excluded_start:
            far_start += excluded_end - excluded_start
        text_index = int(np.searchsorted(self.start_offsets, far_start, side="right")) - 1
        far_offset = far_start - int(self.start_offsets[text_index])
        return self.texts[text_index].tokens[far_offset : far_offset + self.far].astype(np.int64)
