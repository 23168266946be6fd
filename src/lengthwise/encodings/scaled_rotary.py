"""What the scalings of rotary share: a model trained with plain angles reads longer sequences with other ones."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Real
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.encodings.encoding import Encoding
from lengthwise.encodings.rotary import check_turning, turn

# The radians per ID of every pair, in double precision, made on a device.
Frequencies = Callable[[torch.device], Float[Tensor, " pair"]]


class ScaledRotaryEncoding(Encoding):
    """Rotary with ``scaled`` frequencies and its result times ``gain``; ``plain`` rotary while the module trains.

    ``in_training`` scales there too, for fine-tuning.
    """

    def __init__(self, plain: Frequencies, scaled: Frequencies, *, in_training: bool, gain: float = 1.0) -> None:
        super().__init__()
        self.plain = plain
        self.scaled = scaled
        self.in_training = in_training
        self.gain = gain

    def rotate(
        self, x: Float[Tensor, "batch heads seq d_head"], position_ids: Real[Tensor, "batch seq"]
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Neighbouring components turn together."""
        if self.training and not self.in_training:
            return turn(x, position_ids, self.plain(x.device))
        return self.gain * turn(x, position_ids, self.scaled(x.device))


def check_scaling(base: float, fastest: float, factor: float) -> None:
    """Refuse angles that do not slow down, and a factor that would shorten."""
    check_turning(base, fastest)
    if factor < 1:
        raise SettingError(f"factor {factor} shortens; use 1 for plain rotary or more for longer sequences")


def check_original_length(original_length: int) -> None:
    """Refuse a training range without an ID."""
    if original_length < 1:
        raise SettingError(f"original_length {original_length} holds no ID; use the number of IDs met in training")


def check_scalable(d_head: int) -> None:
    """Refuse a head whose slowest pair is also its fastest: no base can slow the one and keep the other."""
    if d_head % 2 or d_head < 4:
        raise SettingError(
            f"d_head {d_head} is not two pairs or more, a scaled base needs these; "
            "choose d_model / num_heads even and at least 4"
        )
