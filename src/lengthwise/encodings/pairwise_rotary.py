"""Rotary scores with one angle per query and key, for encodings that cannot rotate queries and keys separately."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.encodings.encoding import Encoding, KeyIDs, KeyVectors, QueryIDs, QueryVectors, Scores
from lengthwise.encodings.rotary import rotary_frequencies, rotate_pairs


class PairwiseRotaryEncoding(Encoding):
    """Rotary that rotates during the computation of scores; a subclass overrides ``distances`` or ``frequencies``.

    Keys, including cached keys, are stored without rotation. Training uses the scores of plain rotary, unless
    ``in_training`` is True.
    """

    has_scores = True

    def __init__(self, base: float, fastest: float, *, in_training: bool) -> None:
        super().__init__()
        self.base = base
        self.fastest = fastest
        self.in_training = in_training

    def distances(self, query_ids: QueryIDs, key_ids: KeyIDs) -> Float[Tensor, "batch query key"]:
        """Return the ID distances that multiply the frequencies, in double precision."""
        return query_ids.double()[:, :, None] - key_ids.double()[:, None, :]

    def frequencies(self, d_head: int, query_ids: QueryIDs, key_ids: KeyIDs) -> Float[Tensor, "pair #batch #query 1"]:
        """Return the radians per ID of every pair of components, in double precision."""
        return rotary_frequencies(d_head, self.base, self.fastest, query_ids.device)[:, None, None, None]

    def scores(self, query: QueryVectors, key: KeyVectors, query_ids: QueryIDs, key_ids: KeyIDs) -> Scores:
        """Return the unscaled scores, summed over pairs of components."""
        d_head = query.shape[-1]
        if self.training and not self.in_training:
            plain_frequencies = rotary_frequencies(d_head, self.base, self.fastest, query.device)
            return rotate_pairs(query, query_ids, plain_frequencies) @ rotate_pairs(key, key_ids, plain_frequencies).mT
        inputs = (self.distances(query_ids, key_ids), self.frequencies(d_head, query_ids, key_ids))
        scores: Tensor = _PairwiseScores.apply(query.float(), key.float(), *inputs)  # type: ignore[no-untyped-call]
        return scores


class _PairwiseScores(torch.autograd.Function):
    """Scores ``Re(q conj(k) exp(i * distance * frequency))``, summed over pairs of components in a loop.

    The backward pass recomputes the angles, because they need ``d_head / 2`` times as much memory as the scores.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, distances: Tensor, frequencies: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, distances, frequencies)
        scores = query.new_zeros(*query.shape[:3], key.shape[2])
        for pair, (cos, sin) in enumerate(_cosines_and_sines(distances, frequencies)):
            components = (2 * pair, 2 * pair + 1)
            query_real, query_imaginary = (query[..., component, None] for component in components)
            key_real, key_imaginary = (key[:, :, None, :, component].contiguous() for component in components)
            scores.addcmul_((query_real * key_real).addcmul_(query_imaginary, key_imaginary), cos)
            scores.addcmul_((query_real * key_imaginary).addcmul_(query_imaginary, key_real, value=-1), sin)
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return the gradients of the queries and keys; the scores are linear in each of the two."""
        query, key, distances, frequencies = ctx.saved_tensors
        d_query, d_key = torch.empty_like(query), torch.empty_like(key)
        for pair_index, (cos, sin) in enumerate(_cosines_and_sines(distances, frequencies)):
            components = slice(2 * pair_index, 2 * pair_index + 2)
            query_pair, key_pair = query[..., components], key[..., components]
            d_cos, d_sin = gradients[0] * cos, gradients[0] * sin
            d_query[..., components] = d_cos @ key_pair - d_sin @ _multiply_by_i(key_pair)
            d_key[..., components] = d_cos.mT @ query_pair + d_sin.mT @ _multiply_by_i(query_pair)
        return d_query, d_key, None, None


def _cosines_and_sines(distances: Tensor, frequencies: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the cosine and sine of the angles for every pair of components, of shape (batch, 1, query, key)."""
    for frequency in frequencies:
        num_turns = distances * (frequency / (2 * math.pi))  # batch query key
        angles = (num_turns - num_turns.round()).float()[:, None] * (2 * math.pi)
        yield angles.cos(), angles.sin()


def _multiply_by_i(x: Tensor) -> Tensor:
    """Multiply pairs of components by the imaginary unit."""
    return torch.stack([-x[..., 1], x[..., 0]], dim=-1)
