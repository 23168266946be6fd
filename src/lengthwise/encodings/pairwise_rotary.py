"""Rotary scores whose angle belongs to the pair of query and key, where turning each alone cannot give it."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lengthwise.encodings.encoding import Encoding
from lengthwise.encodings.rotary import rotary_frequencies, turn


class PairwiseRotaryEncoding(Encoding):
    """Plain rotary, made in the scores; a subclass changes ``distances`` or ``frequencies``.

    Keys stay unturned, also in a cache. While the module trains the scores are those of plain rotary, unless
    ``in_training``.
    """

    has_scores = True

    def __init__(self, base: float, fastest: float, *, in_training: bool) -> None:
        super().__init__()
        self.base = base
        self.fastest = fastest
        self.in_training = in_training

    def distances(
        self,
        query_ids: Int[Tensor, "batch query"] | Float[Tensor, "batch query"],
        key_ids: Int[Tensor, "batch key"] | Float[Tensor, "batch key"],
    ) -> Float[Tensor, "batch query key"]:
        """What the frequencies are multiplied with, in double precision."""
        return query_ids.double()[:, :, None] - key_ids.double()[:, None, :]

    def frequencies(
        self,
        d_head: int,
        query_ids: Int[Tensor, "batch query"] | Float[Tensor, "batch query"],
        key_ids: Int[Tensor, "batch key"] | Float[Tensor, "batch key"],
    ) -> Float[Tensor, "pair #batch #query 1"]:
        """Radians per ID of every pair of components, in double precision."""
        return rotary_frequencies(d_head, self.base, self.fastest, query_ids.device)[:, None, None, None]

    def scores(
        self,
        query: Float[Tensor, "batch heads query d_head"],
        key: Float[Tensor, "batch heads key d_head"],
        query_ids: Int[Tensor, "batch query"] | Float[Tensor, "batch query"],
        key_ids: Int[Tensor, "batch key"] | Float[Tensor, "batch key"],
    ) -> Float[Tensor, "batch heads query key"]:
        """The sum over pairs of components."""
        d_head = query.shape[-1]
        if self.training and not self.in_training:
            plain = rotary_frequencies(d_head, self.base, self.fastest, query.device)
            return turn(query, query_ids, plain) @ turn(key, key_ids, plain).mT
        distances = self.distances(query_ids, key_ids)
        scores = torch.zeros((), device=query.device)
        for pair, frequency in enumerate(self.frequencies(d_head, query_ids, key_ids)):
            part = slice(2 * pair, 2 * pair + 2)
            given = query[..., part], key[..., part], distances, frequency
            scores = scores + (_again_when_backward(*given) if torch.is_grad_enabled() else _pair_scores(*given))
        return scores


def _again_when_backward(*given: Tensor) -> Tensor:
    """One pair's scores without keeping what their gradient needs, which would be held for all pairs at once."""
    made: Tensor = checkpoint(_pair_scores, *given, use_reentrant=False, preserve_rng_state=False)
    return made


def _pair_scores(
    query: Float[Tensor, "batch heads query 2"],
    key: Float[Tensor, "batch heads key 2"],
    distances: Float[Tensor, "batch query key"],
    frequency: Float[Tensor, "#batch #query 1"],
) -> Float[Tensor, "batch heads query key"]:
    """``Re(q conj(k) exp(i * distance * frequency))`` of one pair of components."""
    angle = torch.remainder(distances * frequency, 2 * math.pi).float()[:, None]  # batch 1 query key
    crossed = torch.stack([key[..., 1], -key[..., 0]], dim=-1)
    return (query @ key.mT) * angle.cos() + (query @ crossed.mT) * angle.sin()
