"""The error of a bound whose condition fails, and the conditions that several bounds share."""

import math

from lengthwise.core.errors import LengthwiseError


class BoundError(LengthwiseError):
    """A bound does not hold here; the message names the condition, what came, and a counterexample without it."""


def finite(value: float, what: str, counterexample: str) -> float:
    """The value, unless it is infinite; ``what`` names the condition and says what to change."""
    if not math.isfinite(value):
        raise BoundError(f"{what} (it is {value}; counterexample {counterexample} shows what happens without)")
    return value


def check_room(trained: int, tested: int, span: int, spans: int) -> None:
    """Refuse a trained length below ``spans`` times the span, and one beyond the tested length."""
    if tested < trained:
        raise BoundError(f"tested length {tested} is below trained length {trained}; bounds are for longer ones")
    if trained < spans * span:
        raise BoundError(
            f"trained length {trained} is below {spans} times the span of {span}; train at {spans * span} or longer "
            "(counterexample C2b shows what sets do that training has no room for)"
        )
