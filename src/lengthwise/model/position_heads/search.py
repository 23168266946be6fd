"""Search head, which predicts the ID of the prompt token with the best content match to the next token."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.model.position_heads.head import (
    IDs,
    NextIDDistribution,
    PositionHead,
    PromptKeys,
    Vectors,
    distinct_id_distribution,
    sum_probability_by_id,
)


class ContentSearchHead(PositionHead):
    """Softmax over prompt tokens that depends only on their content; the head sums the probabilities of equal IDs.

    The next token and the prompt tokens have different projections, so scores are asymmetric, and the head can learn
    an order of tokens. The content term of the pointer head can only learn similarity. Equal tokens score equally.
    """

    def __init__(self, d_model: int, num_position_ids: int, d_search: int = 64) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_search, bias=False)
        self.key = nn.Linear(d_model, d_search, bias=False)
        # An order needs a large range of scores. A small initial gain would make learning slow.
        self.log_gain = nn.Parameter(torch.tensor(math.log(100.0)))

    def keys(self, embeddings: Vectors, position_ids: IDs) -> Float[Tensor, "batch token d_key"]:
        """Return normalized projections of the token embeddings; the keys do not depend on the IDs."""
        return nn.functional.normalize(self.key(embeddings), dim=-1)

    def forward(
        self, hidden: Vectors, current_ids: IDs, next_embeddings: Vectors, prompt: PromptKeys
    ) -> NextIDDistribution:
        """Return a distribution over the prompt's distinct IDs."""
        query = nn.functional.normalize(self.query(next_embeddings), dim=-1)
        scores = (prompt.sharpness * self.log_gain.exp() * query) @ prompt.keys.mT
        token_probabilities = scores.float().masked_fill(~prompt.is_prompt[:, None], -math.inf).softmax(dim=-1)
        return distinct_id_distribution(sum_probability_by_id(token_probabilities, prompt), prompt)
