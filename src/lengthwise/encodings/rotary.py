"""Rotary encoding (RoPE, Su et al. 2021): rotation of queries and keys by angles proportional to the ID."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.devices import cache_outside_traces
from lengthwise.core.errors import SettingError
from lengthwise.encodings.encoding import (
    Encoding,
    EncodingSettings,
    EncodingSize,
    HeadVectors,
    KeyIDs,
    KeyVectors,
    QueryVectors,
    TokenIDs,
)


@cache_outside_traces
def rotary_frequencies(d_head: int, base: float, fastest: float, device: torch.device) -> Float[Tensor, " pair"]:
    """Return ``fastest * base^(-2i / d_head)`` radians per ID for pair i, in double precision."""
    # A tensor from inference mode would be invalid in a later backward pass.
    with torch.inference_mode(False):
        exponents = torch.arange(0, d_head, 2, dtype=torch.float64, device=device) / d_head
        return fastest * base**-exponents


def apply_rotary(x: HeadVectors, position_ids: TokenIDs, frequencies: Float[Tensor, " d_head//2"]) -> HeadVectors:
    """Rotate each pair of adjacent components by ``ID * frequency`` radians."""
    return apply_rotations(x, rotary_cos_sin(position_ids, frequencies))


def rotary_cos_sin(position_ids: TokenIDs, frequencies: Float[Tensor, " pair"]) -> Float[Tensor, "batch 1 seq pair 2"]:
    """Return the cosines and sines of the angles ``ID * frequency``, in radians."""
    # The angles are in double precision until the remainder, because float32 is inexact for large IDs.
    return angles_to_cos_sin(position_ids[:, None, :, None] * frequencies)


def angles_to_cos_sin(angles: Float[Tensor, "batch #heads seq pair"]) -> Float[Tensor, "batch #heads seq pair 2"]:
    """Return the cosines and sines of angles in radians, without full turns, in float32."""
    angles = torch.remainder(angles, 2 * math.pi).float()
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def apply_rotations(x: HeadVectors, rotations: Float[Tensor, "batch #heads seq d_head//2 2"]) -> HeadVectors:
    """Multiply each pair of adjacent components, as a complex number, by a rotation."""
    pairs = x.float().reshape(*x.shape[:-1], -1, 2)
    if torch.compiler.is_compiling():
        # torch.compile generates no code for complex numbers.
        (real, imaginary), (cos, sin) = pairs.unbind(-1), rotations.unbind(-1)
        rotated = torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1)
    else:
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(rotations))
    return rotated.flatten(-2).to(x.dtype)


def check_even_head_width(d_head: int) -> None:
    """Raise ``SettingError`` for an odd head width, because rotary needs pairs of components."""
    if d_head % 2:
        raise SettingError(
            f"d_head {d_head} is odd, but rotary needs pairs of components; choose d_model and num_heads so that "
            "d_model / num_heads is even"
        )


class RotaryEncoding(Encoding):
    """Rotation of pair i of a head by ``p * fastest * base^(-2i / d_head)`` radians at ID p."""

    is_relative = True

    def __init__(self, base: float = 10_000.0, fastest: float = 1.0) -> None:
        super().__init__()
        self.base = base
        self.fastest = fastest

    def rotate(self, x: HeadVectors, position_ids: TokenIDs) -> HeadVectors:
        """Return queries or keys with each pair of adjacent components rotated."""
        return apply_rotations(x, self._rotations(x, position_ids))

    def rotate_queries_and_keys(
        self, query: QueryVectors, key: KeyVectors, key_ids: KeyIDs
    ) -> tuple[QueryVectors, KeyVectors]:
        """Return rotated queries and keys; the queries belong to the last tokens of the keys."""
        rotations = self._rotations(key, key_ids)
        return apply_rotations(query, rotations[:, :, key.shape[2] - query.shape[2] :]), apply_rotations(key, rotations)

    def _rotations(self, x: HeadVectors, position_ids: TokenIDs) -> Float[Tensor, "batch 1 seq d_head//2 2"]:
        return rotary_cos_sin(position_ids, rotary_frequencies(x.shape[-1], self.base, self.fastest, x.device))


@dataclass(frozen=True, slots=True, kw_only=True)
class RotarySettings(EncodingSettings):
    """Base class of settings with the frequencies ``fastest * base^(-2i / d_head)`` in radians per ID for pair i."""

    base: float = 10_000.0
    fastest: float = 1.0

    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def _check(self) -> None:
        """Raise ``SettingError`` unless all frequencies are positive and decrease with the index of the pair."""
        if self.base <= 1 or self.fastest <= 0:
            raise SettingError(
                f"rotary base {self.base} or fastest {self.fastest} is too small; use base > 1 and fastest > 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary(RotarySettings):
    """RoPE with frequencies that decrease from ``fastest`` to about ``fastest / base`` radians per ID.

    ``fastest`` is the frequency of the first pair of components, which rotates fastest. The paper uses ``fastest=1``.
    A larger ``fastest`` and a smaller ``base`` separate adjacent IDs more sharply.
    """

    name: ClassVar[str] = "rotary"
    summary: ClassVar[str] = "rotation of queries and keys in proportion to the ID (RoPE)"
    paper: ClassVar[str] = "Su et al. 2021 (arXiv 2104.09864)"

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` for an odd ``d_head``."""
        check_even_head_width(decoder_size.d_head)
        return RotaryEncoding(self.base, self.fastest)
