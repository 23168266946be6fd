"""Context of a target token: far tokens, which can be hidden, and near tokens, which are always visible."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Context of one target. Hidden tokens do not change the position IDs of other tokens.

    ``start`` contains the tokens before the far tokens, which are always visible: the start token of the model (if
    any) and the sink tokens.
    """

    start: Int[np.ndarray, " start"]
    far: Int[np.ndarray, " far"]
    near: Int[np.ndarray, " near"]
    target: int

    @property
    def num_far(self) -> int:
        """Number of visible and hidden far tokens."""
        return len(self.far)

    @property
    def tokens(self) -> Int[np.ndarray, " seq"]:
        """All tokens of the context, in text order."""
        return np.concatenate([self.start, self.far, self.near])

    def expand(self, visibility_mask: Bool[np.ndarray, " far"]) -> Bool[np.ndarray, " seq"]:
        """Extend a visibility mask of the far tokens to all tokens; start and near tokens are visible."""
        return np.concatenate([np.ones(len(self.start), bool), visibility_mask, np.ones(len(self.near), bool)])

    def visibility_mask(self, indices: Sequence[int]) -> Bool[np.ndarray, " far"]:
        """Return a visibility mask of the far tokens, which is True at ``indices`` and False elsewhere."""
        mask = np.zeros(self.num_far, bool)
        mask[list(indices)] = True
        return mask

    def with_far(self, far: Int[np.ndarray, " far"]) -> "Window":
        """Return a copy with other far tokens."""
        return replace(self, far=far)
