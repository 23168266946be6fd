"""A target token and what stands before it: far tokens that may be hidden, near tokens that never are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The context of one target; every token keeps its position ID whatever is hidden.

    ``start`` holds the tokens that every text of the model begins with (none, or its beginning-of-text token): like
    the near tokens they are never hidden, and they are no far tokens.
    """

    start: Int[np.ndarray, " start"]
    far: Int[np.ndarray, " far"]
    near: Int[np.ndarray, " near"]
    target: int

    @property
    def num_far(self) -> int:
        """How many tokens may be hidden."""
        return len(self.far)

    @property
    def tokens(self) -> Int[np.ndarray, " seq"]:
        """The whole context, in its order."""
        return np.concatenate([self.start, self.far, self.near])

    def shown(self, visible: Bool[np.ndarray, " far"]) -> Bool[np.ndarray, " seq"]:
        """Which tokens of the whole context stay when these far ones do."""
        return np.concatenate([np.ones(len(self.start), bool), visible, np.ones(len(self.near), bool)])

    def only(self, kept: Sequence[int]) -> Bool[np.ndarray, " far"]:
        """Which far tokens are visible when these alone are."""
        visible = np.zeros(self.num_far, bool)
        visible[list(kept)] = True
        return visible

    def with_far(self, far: Int[np.ndarray, " far"]) -> "Window":
        """The same target with other far tokens in the same places."""
        return replace(self, far=far)
