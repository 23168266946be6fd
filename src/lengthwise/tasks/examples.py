"""Batches of examples, which a task returns before a position scheme assigns IDs."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Batch of sequences with their coupling, step_index and depends_on, if the task declares them.

    ``tokens`` has prompt, response and end token. Responses may have different lengths; the loss ignores padding after
    the end token. ``is_answer`` marks the response tokens, including the end token. ``coupling`` has one array per
    level, with equal numbers for tokens that are computed together. ``step_index`` numbers the tokens of each number or
    string from 1, and is 0 elsewhere. ``depends_on`` has the token indexes that each answer depends on, padded with -1.
    """

    tokens: Int[np.ndarray, "batch seq"]
    prompt_length: Int[np.ndarray, " batch"]
    is_answer: Bool[np.ndarray, "batch seq"]
    coupling: Int[np.ndarray, "level batch seq"] | None = None
    step_index: Int[np.ndarray, "batch seq"] | None = None
    depends_on: Int[np.ndarray, "batch seq k"] | None = None

    @classmethod
    def with_prompt_length(
        cls,
        tokens: Int[np.ndarray, "batch seq"],
        prompt_length: int,
        *,
        coupling: Int[np.ndarray, "level #batch seq"] | None = None,
        step_index: Int[np.ndarray, "#batch seq"] | None = None,
        depends_on: Int[np.ndarray, "#batch seq k"] | None = None,
    ) -> "Examples":
        """Build a batch with prompts of equal length; all other tokens are answers. Arrays broadcast over the batch."""
        tokens_shape = tokens.shape
        return cls(
            tokens=tokens,
            prompt_length=np.full(len(tokens), prompt_length),
            is_answer=np.broadcast_to(np.arange(tokens_shape[1]) >= prompt_length, tokens_shape),
            coupling=None if coupling is None else np.broadcast_to(coupling, (len(coupling), *tokens_shape)),
            step_index=None if step_index is None else np.broadcast_to(step_index, tokens_shape),
            depends_on=None
            if depends_on is None
            else np.broadcast_to(depends_on, (*tokens_shape, depends_on.shape[2])),
        )

    @classmethod
    def from_unanswered_prompt(cls, tokens: Int[np.ndarray, "1 seq"], prompt_length: int) -> "Examples":
        """Return a prompt, followed by placeholders for an unknown response."""
        return cls(tokens=tokens, prompt_length=np.array([prompt_length]), is_answer=np.zeros(tokens.shape, dtype=bool))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def response_end(self) -> Int[np.ndarray, " batch"]:
        """Token index of the end token of each sequence."""
        return self.tokens.shape[1] - 1 - self.is_answer[:, ::-1].argmax(axis=1)

    def prompts_and_responses(self) -> Iterator[tuple[Int[np.ndarray, " prompt"], Int[np.ndarray, " response"]]]:
        """Yield the tokens of the prompt and of the response, without the end token, of each sequence."""
        for tokens, prompt_length, end in zip(self.tokens, self.prompt_length, self.response_end, strict=True):
            yield tokens[:prompt_length], tokens[prompt_length:end]

    def select(self, indices: Int[np.ndarray, " subset"]) -> "Examples":
        """Return the sequences of the batch with these indices."""
        return Examples(
            tokens=self.tokens[indices],
            prompt_length=self.prompt_length[indices],
            is_answer=self.is_answer[indices],
            coupling=None if self.coupling is None else self.coupling[:, indices],
            step_index=None if self.step_index is None else self.step_index[indices],
            depends_on=None if self.depends_on is None else self.depends_on[indices],
        )
