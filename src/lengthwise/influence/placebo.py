"""Sampler of placebo (control) far tokens from another document, or from elsewhere in the same document."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.influence.targets import Target
from lengthwise.tasks import TokenizedDocument

# Sources of far tokens other than the own text ("own").
OTHER_SOURCE, ELSEWHERE_SOURCE = "other", "elsewhere"
FarTokens = Int[np.ndarray, " far"]


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

    def check_other_documents(self, targets: Sequence[Target]) -> None:
        """Raise ``SettingError`` if a target has no other document with at least ``far`` tokens."""
        for name in {target.text.name for target in targets}:
            if not self._num_other_starts(name):
                raise SettingError(
                    f"no text except {name} has at least {self.far} tokens, but a study needs far tokens of another "
                    "text; add texts (five or more for intervals), or use a smaller --far"
                )

    def sample_other_document(self, target: Target, rng: np.random.Generator) -> FarTokens:
        """Sample far tokens from another document."""
        document_start, document_end = (int(self.start_offsets[index]) for index in self.piece_ranges[target.text.name])
        far_start = int(rng.integers(self._num_other_starts(target.text.name)))
        # Skip the start indexes in the document of the target.
        return self._far_tokens(far_start if far_start < document_start else far_start + document_end - document_start)

    def sample_same_document(self, target: Target, rng: np.random.Generator) -> FarTokens | None:
        """Sample far tokens from the same document, outside the target's context. None if the document is too short."""
        pieces = self.piece_ranges[target.text.name]
        document_start, document_end = (int(self.start_offsets[index]) for index in pieces)
        text_index = next(index for index in range(*pieces) if self.texts[index] is target.text)
        text_start, text_end = int(self.start_offsets[text_index]), int(self.start_offsets[text_index + 1])
        # Exclude start indexes from which far tokens would overlap the context or contain the target.
        excluded_start = max(text_start, min(text_end, text_start + target.place - self.near - 2 * self.far + 1))
        excluded_end = min(text_end, text_start + target.place + 1)
        num_starts = (excluded_start - document_start) + (document_end - excluded_end)
        if num_starts == 0:
            return None
        far_start = document_start + int(rng.integers(num_starts))
        return self._far_tokens(far_start if far_start < excluded_start else far_start + excluded_end - excluded_start)

    def _num_other_starts(self, name: str) -> int:
        first_index, end_index = self.piece_ranges[name]
        return int(self.start_offsets[-1] - self.start_offsets[end_index] + self.start_offsets[first_index])

    def _far_tokens(self, far_start: int) -> FarTokens:
        text_index = int(np.searchsorted(self.start_offsets, far_start, side="right")) - 1
        far_offset = far_start - int(self.start_offsets[text_index])
        return self.texts[text_index].tokens[far_offset : far_offset + self.far].astype(np.int64)
