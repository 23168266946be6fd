"""YaRN: rotary with slow pairs interpolated, fast ones as they are, and sharper attention."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from lengthwise.core.errors import SettingError
from lengthwise.core.type_checks import check_types
from lengthwise.encodings.encoding import Encoding, EncodingSettings, EncodingSize
from lengthwise.encodings.rotary import check_pairs, rotary_frequencies
from lengthwise.encodings.scaled_rotary import ScaledRotaryEncoding, check_original_length, check_scaling

# A ramp between equal ends is a step.
NARROWEST_RAMP = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class YaRN(EncodingSettings):
    """Pair i turns by ``p * ((1 - r_i) * f_i + r_i * f_i / factor)``, f being the frequencies of plain rotary.

    The ramp r rises from 0 at the pair that makes ``beta_fast`` whole turns within ``original_length`` IDs to 1 at the
    one that makes ``beta_slow``, both rounded outwards. It is linear in i, as in the authors' code and in transformers;
    the paper's text lets it be linear in the number of turns. Queries and keys are multiplied by
    ``0.1 ln(factor) + 1``.

    For a model trained with plain rotary: the scaling acts at evaluation, and with ``in_training`` in training too
    (the paper fine-tunes).
    """

    factor: float = 8.0
    original_length: int = 2048
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    base: float = 10_000.0
    fastest: float = 1.0
    in_training: bool = False

    name: ClassVar[str] = "yarn"
    summary: ClassVar[str] = "rotary with slow pairs interpolated, fast ones kept, attention sharpened"
    paper: ClassVar[str] = "Peng et al. 2024 (arXiv 2309.00071)"
    real_valued: ClassVar[bool] = True
    shift_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_types(self)
        check_scaling(self.base, self.fastest, self.factor)
        check_original_length(self.original_length)
        if not self.beta_fast > self.beta_slow > 0:
            raise SettingError(
                f"beta_fast {self.beta_fast} and beta_slow {self.beta_slow} bound no ramp; "
                "use beta_fast > beta_slow > 0"
            )

    def build(self, size: EncodingSize) -> Encoding:
        """Nothing to learn."""
        check_pairs(size.d_head)
        return ScaledRotaryEncoding(
            partial(rotary_frequencies, size.d_head, self.base, self.fastest),
            partial(by_parts, self, size.d_head),
            in_training=self.in_training,
            gain=0.1 * math.log(self.factor) + 1,
        )


def by_parts(settings: YaRN, d_head: int, device: torch.device) -> Float[Tensor, " pair"]:
    """Every pair's radians per ID, between kept and divided by the factor."""

    def pair_that_makes(turns: float) -> float:
        within = settings.original_length * settings.fastest / (2 * math.pi)
        return d_head * math.log(within / turns) / (2 * math.log(settings.base))

    start = max(math.floor(pair_that_makes(settings.beta_fast)), 0)
    end = min(math.ceil(pair_that_makes(settings.beta_slow)), d_head - 1)
    pairs = torch.arange(d_head // 2, dtype=torch.float64, device=device)
    ramp = ((pairs - start) / max(end - start, NARROWEST_RAMP)).clamp(0, 1)
    kept = rotary_frequencies(d_head, settings.base, settings.fastest, device)
    return (1 - ramp) * kept + ramp * kept / settings.factor
