"""Abstract head for small offsets, with the classifier of the rank and increment heads."""

from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.model.position_heads.head import PositionHead, Prompt, Vectors


class OffsetScores(nn.Module):
    """Linear scores of all offsets, based on the hidden state and the next token."""

    def __init__(self, d_model: int, num_offsets: int) -> None:
        super().__init__()
        self.from_hidden = nn.Linear(d_model, num_offsets)
        self.from_next = nn.Linear(d_model, num_offsets, bias=False)

    def forward(self, hidden: Vectors, next_embeddings: Vectors) -> Float[Tensor, "batch token offset"]:
        """Return unnormalized scores in float32."""
        return (self.from_hidden(hidden) + self.from_next(next_embeddings)).float()


class OffsetHead(PositionHead):
    """Abstract position head that computes a score for each of ``OFFSETS``."""

    OFFSETS = (-1, 0, 1, 2)

    def __init__(self, d_model: int, num_position_ids: int) -> None:
        super().__init__()
        self.scores = OffsetScores(d_model, len(self.OFFSETS))

    def num_scores(self, prompt: Prompt) -> int:
        """Return the number of offsets of all queries at one index."""
        return len(prompt.position_ids) * len(self.OFFSETS)
