"""Far tokens that are not the target's own: those of another text, and those from elsewhere in the same document."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from lengthwise.core.errors import SettingError
from lengthwise.influence.targets import Target
from lengthwise.tasks import TokenizedDocument

# Sources of far tokens beside the target's own.
OTHER, ELSEWHERE = "other", "elsewhere"
Far = Int[np.ndarray, " far"]


class Placebo:
    """Draws far tokens in a row for a target, each place where they may begin equally likely.

    ``texts`` may be pieces of longer ones; pieces of one document have its name and stand in a row.
    """

    def __init__(self, texts: Sequence[TokenizedDocument], near: int, far: int) -> None:
        self.texts, self.near, self.far = texts, near, far
        # Beginnings before each text, and the texts of each document.
        self.before = np.cumsum([0, *(max(0, len(text.tokens) - far + 1) for text in texts)])
        self.pieces: dict[str, tuple[int, int]] = {}
        for place, text in enumerate(texts):
            self.pieces[text.name] = (self.pieces.get(text.name, (place, place))[0], place + 1)

    def check(self, targets: Sequence[Target]) -> None:
        """Raise ``SettingError`` if a target has no other text to compare with."""
        for name in {target.text.name for target in targets}:
            if not self._of_others(name):
                raise SettingError(
                    f"no text beside {name} has {self.far} tokens, and a study compares with another text's far "
                    "tokens; give two texts or more (five for intervals), or a smaller --far"
                )

    def other(self, target: Target, rng: np.random.Generator) -> Far:
        """Far tokens of another document."""
        first, last = (self.before[text] for text in self.pieces[target.text.name])
        drawn = int(rng.integers(self._of_others(target.text.name)))
        # Beginnings within the target's own document are left out.
        return self._from(drawn if drawn < first else drawn + int(last - first))

    def elsewhere(self, target: Target, rng: np.random.Generator) -> Far | None:
        """Far tokens of the same document that do not overlap the target's context; None where it is too short."""
        first, last = (int(self.before[text]) for text in self.pieces[target.text.name])
        text = next(each for each in range(*self.pieces[target.text.name]) if self.texts[each] is target.text)
        begin, end = int(self.before[text]), int(self.before[text + 1])
        # Those that end before the context begins, and those that begin behind the target.
        before = max(begin, min(end, begin + target.place - self.near - 2 * self.far + 1))
        behind = min(end, begin + target.place + 1)
        allowed = (before - first) + (last - behind)
        if allowed == 0:
            return None
        drawn = first + int(rng.integers(allowed))
        return self._from(drawn if drawn < before else drawn + behind - before)

    def _of_others(self, name: str) -> int:
        first, last = self.pieces[name]
        return int(self.before[-1] - self.before[last] + self.before[first])

    def _from(self, beginning: int) -> Far:
        text = int(np.searchsorted(self.before, beginning, side="right")) - 1
        place = beginning - int(self.before[text])
        return self.texts[text].tokens[place : place + self.far].astype(np.int64)
