"""Rotary scores whose angle belongs to the pair of query and key, where turning each alone cannot give it."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Real
from torch import Tensor

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
        self, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "batch query key"]:
        """What the frequencies are multiplied with, in double precision."""
        return query_ids.double()[:, :, None] - key_ids.double()[:, None, :]

    def frequencies(
        self, d_head: int, query_ids: Real[Tensor, "batch query"], key_ids: Real[Tensor, "batch key"]
    ) -> Float[Tensor, "pair #batch #query 1"]:
        """Radians per ID of every pair of components, in double precision."""
        return rotary_frequencies(d_head, self.base, self.fastest, query_ids.device)[:, None, None, None]

    def scores(
        self,
        query: Float[Tensor, "batch heads query d_head"],
        key: Float[Tensor, "batch heads key d_head"],
        query_ids: Real[Tensor, "batch query"],
        key_ids: Real[Tensor, "batch key"],
    ) -> Float[Tensor, "batch heads query key"]:
        """The sum over pairs of components."""
        d_head = query.shape[-1]
        if self.training and not self.in_training:
            plain = rotary_frequencies(d_head, self.base, self.fastest, query.device)
            return turn(query, query_ids, plain) @ turn(key, key_ids, plain).mT
        frequencies = self.frequencies(d_head, query_ids, key_ids)
        made: Tensor = _PairwiseScores.apply(  # type: ignore[no-untyped-call]
            query.float(), key.float(), self.distances(query_ids, key_ids), frequencies
        )
        return made


class _PairwiseScores(torch.autograd.Function):
    """``Re(q conj(k) exp(i * distance * frequency))``, summed over pairs of components, one pair at a time.

    The backward pass makes the angles again: kept, they would take as much memory as scores times ``d_head``.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, distances: Tensor, frequencies: Tensor) -> Tensor:
        """The scores of every query and key."""
        ctx.save_for_backward(query, key, distances, frequencies)
        scores = query.new_zeros(*query.shape[:3], key.shape[2])
        for pair, (cos, sin) in enumerate(_turns(distances, frequencies)):
            real, imaginary = (query[..., part, None] for part in (2 * pair, 2 * pair + 1))
            key_real, key_imaginary = (key[:, :, None, :, part].contiguous() for part in (2 * pair, 2 * pair + 1))
            scores.addcmul_((real * key_real).addcmul_(imaginary, key_imaginary), cos)
            scores.addcmul_((real * key_imaginary).addcmul_(imaginary, key_real, value=-1), sin)
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Scores are linear in either side, so its gradient is the other side, turned."""
        query, key, distances, frequencies = ctx.saved_tensors
        of_query, of_key = torch.empty_like(query), torch.empty_like(key)
        for pair, (cos, sin) in enumerate(_turns(distances, frequencies)):
            part = slice(2 * pair, 2 * pair + 2)
            q, k = query[..., part], key[..., part]
            straight, crossed = gradients[0] * cos, gradients[0] * sin
            of_query[..., part] = straight @ k - crossed @ _quarter_turn(k)
            of_key[..., part] = straight.mT @ q + crossed.mT @ _quarter_turn(q)
        return of_query, of_key, None, None


def _turns(distances: Tensor, frequencies: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cosine and sine of every pair of components, with one axis for all heads."""
    for frequency in frequencies:
        turns = distances * (frequency / (2 * math.pi))  # batch query key
        angle = (turns - turns.round()).float()[:, None] * (2 * math.pi)
        yield angle.cos(), angle.sin()


def _quarter_turn(x: Tensor) -> Tensor:
    """Pairs of components multiplied by i."""
    return torch.stack([-x[..., 1], x[..., 0]], dim=-1)
