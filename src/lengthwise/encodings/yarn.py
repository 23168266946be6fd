"""YaRN (Peng et al. 2024): rotary with slow pairs interpolated, fast pairs unchanged, and sharper attention."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_at_least
from lengthwise.encodings.encoding import Encoding, EncodingSize
from lengthwise.encodings.rotary import check_even_head_width, rotary_frequencies
from lengthwise.encodings.scaled_rotary import ScaledRotary, ScaledRotaryEncoding

# Minimum width of the ramp, to avoid a division by 0.
MIN_RAMP_WIDTH = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class YaRN(ScaledRotary):
    """Rotary that rotates pair i by ``p * ((1 - r_i) * f_i + r_i * f_i / factor)`` radians at ID p.

    f_i is the frequency of plain rotary, ``fastest * base^(-2i / d_head)`` radians per ID. The ramp r rises
    from 0 at the pair with ``beta_fast`` full turns in ``original_length`` IDs to 1 at the pair with ``beta_slow``
    turns. The index of the first pair is rounded down, and the index of the second pair is rounded up. The ramp is
    linear in i, as in the authors' code. In the paper's text, it is linear in the number of turns. Queries and keys
    are multiplied by ``0.1 ln(factor) + 1``.

    Use it for a model trained with plain rotary. Scaling is active at evaluation, and also in training if
    ``in_training`` is True, as in the paper's fine-tuning.
    """

    original_length: int = 2048
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    name: ClassVar[str] = "yarn"
    summary: ClassVar[str] = "rotary with interpolated slow pairs, unchanged fast pairs and sharper attention"
    paper: ClassVar[str] = "Peng et al. 2024 (arXiv 2309.00071)"

    def _check(self) -> None:
        ScaledRotary._check(self)
        check_at_least(self, 1, "original_length")
        if not self.beta_fast > self.beta_slow > 0:
            raise SettingError(
                f"beta_fast {self.beta_fast} and beta_slow {self.beta_slow} do not define a ramp; "
                "use beta_fast > beta_slow > 0"
            )

    def build(self, decoder_size: EncodingSize) -> Encoding:
        """Return the module, without parameters; raise ``SettingError`` for an odd ``d_head``."""
        check_even_head_width(decoder_size.d_head)
        return ScaledRotaryEncoding(
            partial(rotary_frequencies, decoder_size.d_head, self.base, self.fastest),
            partial(yarn_frequencies, self, decoder_size.d_head),
            in_training=self.in_training,
            gain=0.1 * math.log(self.factor) + 1,
        )


def yarn_frequencies(settings: YaRN, d_head: int, device: torch.device) -> Float[Tensor, " pair"]:
    """Return the radians per ID of every pair of components, in double precision."""

    def pair_index(num_turns: float) -> float:
        max_turns = settings.original_length * settings.fastest / (2 * math.pi)
        return d_head * math.log(max_turns / num_turns) / (2 * math.log(settings.base))

    ramp_start = max(math.floor(pair_index(settings.beta_fast)), 0)
    ramp_end = min(math.ceil(pair_index(settings.beta_slow)), d_head - 1)
    pair_indexes = torch.arange(d_head // 2, dtype=torch.float64, device=device)
    ramp = ((pair_indexes - ramp_start) / max(ramp_end - ramp_start, MIN_RAMP_WIDTH)).clamp(0, 1)
    plain_frequencies = rotary_frequencies(d_head, settings.base, settings.fastest, device)
    return (1 - ramp) * plain_frequencies + ramp * plain_frequencies / settings.factor
