"""Base classes and checks of scaled rotary encodings, which adapt a trained model to longer sequences."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.encodings.encoding import Encoding, EncodingSettings, HeadVectors
from lengthwise.encodings.rotary import check_rotary_base, rotary_frequencies, rotate_pairs

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

    def rotate(self, x: HeadVectors, position_ids: Real[Tensor, "batch seq"]) -> HeadVectors:
        """Return queries or keys with each pair of adjacent components rotated."""
        if self.training and not self.in_training:
            return rotate_pairs(x, position_ids, self.plain_frequencies(x.device))
        return self.gain * rotate_pairs(x, position_ids, self.scaled_frequencies(x.device))


def check_scaling(base: float, fastest: float, factor: float) -> None:
    """Raise ``SettingError`` for a ``base`` or ``fastest`` that is too small, or a ``factor`` below 1."""
    check_rotary_base(base, fastest)
    if factor < 1:
        raise SettingError(f"factor {factor} is below 1; use 1 for plain rotary, or more for longer sequences")


def check_original_length(original_length: int) -> None:
    """Raise ``SettingError`` for an ``original_length`` below 1."""
    if original_length < 1:
        raise SettingError(f"original_length {original_length} is too small; use the number of IDs in training")


def check_two_pairs(d_head: int) -> None:
    """Raise ``SettingError`` unless a head has at least two pairs of components, and therefore two frequencies."""
    if d_head % 2 or d_head < 4:
        raise SettingError(
            f"d_head {d_head} is odd or below 4, but a scaled base needs at least two pairs of components; choose "
            "d_model and num_heads so that d_model / num_heads is even and at least 4"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRotary(EncodingSettings):
    """Base class of settings for sequences ``factor`` times as long as in training with plain rotary.

    ``fastest`` is the frequency of the first pair of components in radians per ID, before scaling.
    Scaling is active at evaluation, and also in training if ``in_training`` is True.
    """

    factor: float = 8.0
    base: float = 10_000.0
    fastest: float = 1.0
    in_training: bool = False

    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True
    knowledge: ClassVar[tuple[str, ...]] = LENGTH_FACTOR

    def __post_init__(self) -> None:
        check_types(self)
        check_scaling(self.base, self.fastest, self.factor)

    def build_scaled(self, d_head: int, *, base: float, fastest: float) -> Encoding:
        """Return a module whose scaled frequencies use the given ``base`` and ``fastest`` instead of the settings."""
        plain_frequencies = partial(rotary_frequencies, d_head, self.base, self.fastest)
        scaled_frequencies = partial(rotary_frequencies, d_head, base, fastest)
        return ScaledRotaryEncoding(plain_frequencies, scaled_frequencies, in_training=self.in_training)
