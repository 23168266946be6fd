"""Base classes of rotary encodings with other angles, which adapt a trained model to longer sequences."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.encodings.encoding import (
    Encoding,
    HeadVectors,
    KeyIDs,
    KeyVectors,
    QueryIDs,
    QueryVectors,
    Scores,
    TokenIDs,
)
from lengthwise.encodings.rotary import RotarySettings, apply_rotary, rotary_frequencies

# Knowledge of an encoding whose factor is the ratio of the test length to the training length.
LENGTH_FACTOR = ("length factor",)
# Function from a device to the radians per ID of every pair of components, in double precision.
Frequencies = Callable[[torch.device], Float[Tensor, " pair"]]


class ScaledRotaryEncoding(Encoding):
    """Rotary with plain frequencies in training, and scaled frequencies and the factor ``gain`` at evaluation.

    For fine-tuning, ``in_training=True`` applies the scaling in training too.
    """

    def __init__(
        self, plain_frequencies: Frequencies, scaled_frequencies: Frequencies, *, in_training: bool, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.plain_frequencies = plain_frequencies
        self.scaled_frequencies = scaled_frequencies
        self.in_training = in_training
        self.gain = gain

    def rotate(self, x: HeadVectors, position_ids: TokenIDs) -> HeadVectors:
        """Return queries or keys with each pair of adjacent components rotated."""
        if self.training and not self.in_training:
            return apply_rotary(x, position_ids, self.plain_frequencies(x.device))
        return self.gain * apply_rotary(x, position_ids, self.scaled_frequencies(x.device))


def check_min_head_width(d_head: int) -> None:
    """Raise ``SettingError`` unless a head has at least two pairs of components, and therefore two frequencies."""
    if d_head % 2 or d_head < 4:
        raise SettingError(
            f"d_head {d_head} is odd or below 4, but a scaled base needs at least two pairs of components; choose "
            "d_model and num_heads so that d_model / num_heads is even and at least 4"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRotary(RotarySettings):
    """Base class of settings for sequences ``factor`` times as long as in training with plain rotary.

    ``fastest`` is the frequency of the first pair of components in radians per ID, before scaling.
    Scaling is active at evaluation, and also in training if ``in_training`` is True.
    """

    factor: float = 8.0
    in_training: bool = False

    given: ClassVar[tuple[str, ...]] = LENGTH_FACTOR

    def _check(self) -> None:
        """Raise ``SettingError`` for a ``base`` or ``fastest`` that is too small, or a ``factor`` below 1."""
        RotarySettings._check(self)
        if self.factor < 1:
            raise SettingError(f"factor {self.factor} is below 1; use 1 for plain rotary, or more for longer sequences")

    def build_scaled_encoding(self, d_head: int, *, base: float, fastest: float) -> Encoding:
        """Return a module whose scaled frequencies use the given ``base`` and ``fastest`` instead of the settings."""
        plain_frequencies = partial(rotary_frequencies, d_head, self.base, self.fastest)
        scaled_frequencies = partial(rotary_frequencies, d_head, base, fastest)
        return ScaledRotaryEncoding(plain_frequencies, scaled_frequencies, in_training=self.in_training)


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
            return apply_rotary(query, query_ids, plain_frequencies) @ apply_rotary(key, key_ids, plain_frequencies).mT
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
