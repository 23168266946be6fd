"""Placebo far tokens: from another document, or from elsewhere in the same document."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.influence.targets import Target
from lengthwise.tasks import TokenizedDocument

# Sources of far tokens, beside "own".
OTHER, ELSEWHERE = "other", "elsewhere"
Far = Int[np.ndarray, " far"]


class PlaceboSampler:
    """Sampler of consecutive far tokens for a target, uniform over all start indexes.

    ``texts`` may be pieces of documents; pieces of one document have the same name and are adjacent.
    """

    def __init__(self, texts: Sequence[TokenizedDocument], near: int, far: int) -> None:
        self.texts, self.near, self.far = texts, near, far
        # Cumulative number of start indexes before each text, and the range of texts of each document.
        self.starts = np.cumsum([0, *(max(0, len(text.tokens) - far + 1) for text in texts)])
        self.pieces: dict[str, tuple[int, int]] = {}
        for index, text in enumerate(texts):
            self.pieces[text.name] = (self.pieces.get(text.name, (index, index))[0], index + 1)

    def check(self, targets: Sequence[Target]) -> None:
        """Raise ``SettingError`` if a target has no other document to sample from."""
        for name in {target.text.name for target in targets}:
            if not self._num_other_starts(name):
                raise SettingError(
                    f"no text except {name} has {self.far} tokens, and a study compares with the far tokens of "
                    "another text; add texts (five or more for intervals), or use a smaller --far"
                )

    def sample_other(self, target: Target, rng: np.random.Generator) -> Far:
        """Sample far tokens from another document."""
        first, last = (self.starts[text] for text in self.pieces[target.text.name])
        start = int(rng.integers(self._num_other_starts(target.text.name)))
        # Skip the start indexes in the target's own document.
        return self._far_tokens(start if start < first else start + int(last - first))

    def sample_elsewhere(self, target: Target, rng: np.random.Generator) -> Far | None:
        """Sample far tokens of the same document outside the target's context; None if the document is too short."""
        first, last = (int(self.starts[text]) for text in self.pieces[target.text.name])
        text = next(each for each in range(*self.pieces[target.text.name]) if self.texts[each] is target.text)
        begin, end = int(self.starts[text]), int(self.starts[text + 1])
        # Start indexes whose tokens end before the context, and start indexes after the target.
        before = max(begin, min(end, begin + target.place - self.near - 2 * self.far + 1))
        after = min(end, begin + target.place + 1)
        number = (before - first) + (last - after)
        if number == 0:
            return None
        start = first + int(rng.integers(number))
        return self._far_tokens(start if start < before else start + after - before)

    def _num_other_starts(self, name: str) -> int:
        first, last = self.pieces[name]
        return int(self.starts[-1] - self.starts[last] + self.starts[first])

    def _far_tokens(self, start: int) -> Far:
        text = int(np.searchsorted(self.starts, start, side="right")) - 1
        offset = start - int(self.starts[text])
        return self.texts[text].tokens[offset : offset + self.far].astype(np.int64)
