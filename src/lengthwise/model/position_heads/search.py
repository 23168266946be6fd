"""Search head: the next ID is that of a prompt token, found by comparing its content with the token just chosen."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.model.position_heads.head import NextIDs, PositionHead, Prompt, over_distinct_ids, summed_by_id


class Search(PositionHead):
    """Softmax over prompt tokens by content alone; the mass of equal IDs is summed.

    The token just chosen and prompt token j are projected differently, so the score need not be the same the other way
    round: it can say which token comes next in an order. The pointer head's content term only says which are alike.
    Tokens that are the same cannot be told apart.
    """

    def __init__(self, d_model: int, num_position_ids: int, d_search: int = 64) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_search, bias=False)
        self.key = nn.Linear(d_model, d_search, bias=False)
        # The scores of an order span far more than those of a choice: with a flat start it is learned slowly.
        self.log_gain = nn.Parameter(torch.tensor(math.log(100.0)))

    def keys(
        self, embeddings: Float[Tensor, "batch prompt d_model"], position_ids: Int[Tensor, "batch prompt"]
    ) -> Float[Tensor, "batch prompt d_key"]:
        """Of the tokens alone."""
        return nn.functional.normalize(self.key(embeddings), dim=-1)

    def forward(
        self,
        hidden: Float[Tensor, "batch query d_model"],
        own_ids: Int[Tensor, "batch query"],
        next_embeddings: Float[Tensor, "batch query d_model"],
        prompt: Prompt,
    ) -> NextIDs:
        """Over the prompt's distinct IDs."""
        query = nn.functional.normalize(self.query(next_embeddings), dim=-1)
        scores = (prompt.sharpness * self.log_gain.exp() * query) @ prompt.keys.mT
        mass = scores.float().masked_fill(~prompt.inside[:, None], -math.inf).softmax(dim=-1)
        return over_distinct_ids(summed_by_id(mass, prompt), prompt)
