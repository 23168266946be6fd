"""Examples: what a task yields, before any position scheme has seen it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """One batch of sequences with everything the task knows about them.

    ``tokens`` holds prompt, response and end token; responses may be ragged, the fill after the end token is never
    scored. ``is_answer`` marks the response tokens, the end token included. ``coupling`` numbers the groups of tokens
    that are computed together (one row per level). ``places`` counts the tokens of each number or string from 1, 0
    marks those outside of one. ``support`` lists, for each answer token, the token indexes that it depends on; -1
    fills.
    """

    tokens: Int[np.ndarray, "batch seq"]
    prompt_length: Int[np.ndarray, " batch"]
    is_answer: Bool[np.ndarray, "batch seq"]
    coupling: Int[np.ndarray, "level batch seq"] | None = None
    places: Int[np.ndarray, "batch seq"] | None = None
    support: Int[np.ndarray, "batch seq k"] | None = None

    def __len__(self) -> int:
        """The number of sequences."""
        return len(self.tokens)

    @property
    def response_end(self) -> Int[np.ndarray, " batch"]:
        """The token index of each sequence's end token."""
        seq = self.tokens.shape[1]
        return seq - 1 - self.is_answer[:, ::-1].argmax(axis=1)

    def select(self, rows: Int[np.ndarray, " some"]) -> "Examples":
        """Some of its sequences."""
        return Examples(
            tokens=self.tokens[rows],
            prompt_length=self.prompt_length[rows],
            is_answer=self.is_answer[rows],
            coupling=None if self.coupling is None else self.coupling[:, rows],
            places=None if self.places is None else self.places[rows],
            support=None if self.support is None else self.support[rows],
        )
